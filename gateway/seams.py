"""What `gateway.serve` needs of the parts around it, as small protocols; `gateway.app` hands in what fulfils them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.backends import Backend
from gateway.classify import Classifier
from gateway.lossless.served import Served
from gateway.policy import Policy, Rule
from gateway.routing import Snapshot
from gateway.tap import Kept
from gateway.types import BackendState, Classification, Decision, GenerateRequest, RequestRecord


class RecordSink(Protocol):
    """Where records go: the recorder, which never blocks and never raises."""

    def submit(self, record: RequestRecord) -> None:
        """Take a record."""
        ...


class TextSink(Protocol):
    """Where the text of a rule's share of requests goes (`gateway.texts`), which never blocks and never raises."""

    def submit(self, kept: Kept) -> None:
        """Take a text."""
        ...


class AuditSink(Protocol):
    """Where answers to be audited go (`gateway.lossless.auditor`), which never blocks and never raises."""

    def submit(self, served: Served) -> None:
        """Take a complete answer."""
        ...


class Generation(Protocol):
    """A policy with what it needs at work (`gateway.generations`); a request keeps the one that it began with."""

    @property
    def policy(self) -> Policy:
        """The rules."""
        ...

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The policy's backends, by name."""
        ...

    @property
    def classifier(self) -> Classifier:
        """What tells its tasks apart."""
        ...


class Decide(Protocol):
    """The decision (`gateway.routing.decide`): pure, from memory."""

    def __call__(
        self,
        request: GenerateRequest,
        classification: Classification,
        rule: Rule,
        snapshot: Snapshot,
        backends: Mapping[str, BackendState],
        *,
        prompt_tokens: int,
        draw: float,
        policy: str,
        conversation: str = "",
        home: str = "",
    ) -> Decision:
        """Return the arm to take, and why."""
        ...

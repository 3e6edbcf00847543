"""What a policy says, as frozen structs. `loader.py` makes them; `match.py`, routing, backends and the page read them.

Times are seconds, shares are fractions in [0, 1]. Field names are those of the YAML keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal, Protocol

import msgspec

from gateway.policy.conditions import Always, Condition
from gateway.policy.facts import Facts
from gateway.types import PLAIN, Arm, Path, PathWish

BackendKind = Literal["engine", "vllm", "sglang", "llamacpp", "openai"]
BACKEND_KINDS: tuple[BackendKind, ...] = ("engine", "vllm", "sglang", "llamacpp", "openai")
P99Metric = Literal["tpot", "itl", "ttft", "e2e"]
Mode = Literal["enforce", "observe"]


class Task(msgspec.Struct, frozen=True):
    """One entry of the taxonomy."""

    name: str
    description: str = ""
    examples: tuple[str, ...] = ()


class ClassifierConfig(msgspec.Struct, frozen=True):
    """Which artefact tells tasks apart, and from which confidence on it is believed."""

    artefact: str | None = None
    """Path of a trained artefact; None is the shipped one."""
    threshold: float = 0.3
    """Below this confidence a request counts as `fallback_task`."""
    fallback_task: str = "chat"


class BackendConfig(msgspec.Struct, frozen=True):
    """A server (or a pool of equal ones) and the arms it offers."""

    name: str
    kind: BackendKind = "engine"
    urls: tuple[str, ...] = ()
    """Base URLs of the replicas, without a trailing slash."""
    model: str | None = None
    """The model's name upstream; None: the server's only model."""
    arms: tuple[Arm, ...] | Literal["auto"] = "auto"
    """`auto`: all that the server says it can do."""
    api_key: str | None = msgspec.field(default=None)
    """Sent as bearer token; never shown."""
    connect_timeout: float = 2.0
    first_token_timeout: float = 120.0
    token_timeout: float = 60.0
    """Longest silence between two events of a stream."""
    max_connections: int = 512

    @property
    def url(self) -> str:
        """The first replica's base URL."""
        return self.urls[0]

    def __repr__(self) -> str:
        return f"BackendConfig({self.name!r}, {self.kind!r}, {self.urls!r})"


class BreakEven(msgspec.Struct, frozen=True):
    """When a difference between arms counts."""

    margin: float = 0.005
    """An arm replaces another only if it is better by this share."""
    confidence: float = 0.975
    """One-sided confidence of that statement."""
    min_requests: int = 5
    """Requests of an arm before its statistics may decide (until then decisions say `no_data`)."""
    half_life: float = 1800.0
    """Age in seconds at which a statistic counts half."""


class P99(msgspec.Struct, frozen=True):
    """The guard over the slowest percent: an absolute budget, a ratio to the plain path, or both."""

    metric: P99Metric = "tpot"
    window: float = 600.0
    budget: float | None = None
    """Seconds that p99 may not exceed."""
    max_ratio_to_plain: float | None = None
    """p99 of the speculative path over p99 of the plain path may not exceed this."""


class Store(msgspec.Struct, frozen=True):
    """Whether prompts and completions are kept. Default: they are not."""

    prompts: float = 0.0
    """Share of requests whose text is kept."""
    retention: float = 30 * 86400.0
    """Seconds after which it is deleted."""


class Rule(msgspec.Struct, frozen=True):
    """Requests that satisfy `when` may take `arms`, chosen under these thresholds."""

    name: str
    when: Condition = Always()
    path: PathWish = "auto"
    arms: tuple[str, ...] | None = None
    """Patterns such as `engine/ngram-k4`, `engine/*`, `ngram-*`, `plain`; None allows every arm."""
    draft_lengths: tuple[int, ...] | None = None
    """The k allowed on the speculative path; None allows all."""
    break_even: BreakEven = BreakEven()
    zero_accept_alarm: float | None = 0.8
    """Zero-accept rate at which an alarm is raised; None is off. It never switches an arm."""
    p99: P99 | None = None
    """None: no guard."""
    probe: float = 0.1
    """Share of requests that may try another arm, at most; it shrinks by itself as certainty grows."""
    holdout: float = 0.01
    """Share of conversations kept on fixed paths, to measure what routing is worth."""
    sticky: bool = True
    """Whether a conversation keeps its backend unless leaving pays for the lost prefix cache."""
    fallback_path: Path = "plain"
    """Taken while the statistics are out of reach (`stale`), and when no other allowed arm can serve."""
    priority: int | None = None
    """Forwarded to engines that take a priority."""
    store: Store = Store()
    audit: float = 0.0
    """Share of greedy requests sent to both paths to compare their output."""
    mode: Mode = "enforce"
    """`observe`: decide and record only; the request goes the way it would go without this rule."""
    owner: str = ""
    line: int = 0
    """Where the rule begins in its file; 0 for the implicit default rule."""

    def lists(self, arm: Arm) -> bool:
        """Return whether `arms` and `draft_lengths` name this arm, whatever `path` says."""
        if self.draft_lengths is not None and arm.k and arm.k not in self.draft_lengths:
            return False
        return self.arms is None or _named(self.arms, arm)

    def allows(self, arm: Arm) -> bool:
        """Return whether a request under this rule may take `arm` (`path` included)."""
        return self.path in ("auto", arm.path) and self.lists(arm)


@lru_cache(maxsize=8192)
def _named(patterns: tuple[str, ...], arm: Arm) -> bool:
    """Return whether one of the patterns names `arm`."""
    return any(arm_matches(pattern, arm) for pattern in patterns)


def arm_matches(pattern: str, arm: Arm) -> bool:
    """Return whether a pattern with `*` names an arm.

    Without a slash it speaks of every backend; a method alone stands for all its k.
    """
    where, slash, label = pattern.rpartition("/")
    if slash and not fnmatchcase(arm.backend, where):
        return False
    return fnmatchcase(arm.label, label) or (arm.k > 0 and label != PLAIN and label == arm.method)


class Lookup(Protocol):
    """The compiled rules."""

    def __call__(self, facts: Facts) -> Rule:
        """Return the first rule that holds."""

    def enforced(self, facts: Facts) -> Rule:
        """Return the first rule that holds and is not merely observed."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy, checked and ready to match. Immutable: a request keeps the one it began with."""

    name: str
    """File name or label, for messages."""
    text: str = field(repr=False)
    """The source, references included; what is hashed, stored and rolled back to."""
    hash: str
    """First 12 hex digits of the SHA-256 of `text`."""
    tasks: tuple[Task, ...]
    classifier: ClassifierConfig
    backends: tuple[BackendConfig, ...]
    rules: tuple[Rule, ...]
    """In order; the last one has no condition."""
    warnings: tuple[str, ...] = ()
    """`FILE:LINE:COL: warning: …`."""
    matcher: Lookup = field(repr=False, compare=False, kw_only=True)
    """Made by `match.compile_rules`."""

    @property
    def task_names(self) -> tuple[str, ...]:
        """The taxonomy's names, in order."""
        return tuple(task.name for task in self.tasks)

    def backend(self, name: str) -> BackendConfig | None:
        """Return the backend of that name, if any."""
        return next((backend for backend in self.backends if backend.name == name), None)

    def rule(self, name: str) -> Rule | None:
        """Return the rule of that name, if any."""
        return next((rule for rule in self.rules if rule.name == name), None)

"""A policy with what it needs at work: its backends and classifier, exchanged as a whole. Wired by `gateway.app`.

A request takes the generation that is current when it begins and keeps it: its rule, its backends. Backends whose
description did not change are carried over; others are started and given a moment to answer before they are used, and
those no longer named are closed once their last request has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.backends import Backend
from gateway.classify import Classifier
from gateway.errors import ArtefactError, PolicyError
from gateway.policy import BackendConfig, Policy

log = logging.getLogger(__name__)
PATIENCE_S = 3.0
"""A new backend may take so long to answer before it is used unseen."""
DRAIN_S = 600.0
"""A request on a backend that is no longer named may take so long."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Generation:
    """What a request keeps."""

    policy: Policy
    backends: Mapping[str, Backend]
    classifier: Classifier
    fresh: tuple[Backend, ...] = field(default=(), compare=False)
    """Started for this generation."""


class Generations:
    """The current generation, and the ends of those before."""

    def __init__(
        self,
        first: Generation,
        *,
        make: Callable[[BackendConfig], Backend],
        load: Callable[[str | None], Classifier],
    ) -> None:
        self.current = first
        self._make = make
        self._load = load
        self._draining: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the first generation's backends."""
        for backend in self.current.backends.values():
            await backend.start()

    async def aclose(self) -> None:
        """Close everything."""
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)
        for backend in self.current.backends.values():
            await backend.aclose()

    async def prepare(self, policy: Policy) -> Generation:
        """Make a generation ready, without touching the current one.

        Raises:
            PolicyError: its classifier cannot be loaded.
        """
        now = self.current
        old = {config.name: config for config in now.policy.backends}
        kept = {name: now.backends[name] for name, config in _named(policy).items() if old.get(name) == config}
        try:
            same = policy.classifier.artefact == now.policy.classifier.artefact
            classifier = now.classifier if same else await asyncio.to_thread(self._load, policy.classifier.artefact)
        except ArtefactError as error:
            raise PolicyError([f"{policy.name}:1:1: error: classifier.artefact: {error}"]) from error
        made = {name: self._make(config) for name, config in _named(policy).items() if name not in kept}
        order = {name: made.get(name) or kept[name] for name in _named(policy)}
        generation = Generation(policy, order, classifier, tuple(made.values()))
        try:
            for backend in generation.fresh:
                await backend.start()
            await _answering(generation.fresh)
        except BaseException:
            await self.discard(generation)
            raise
        return generation

    def commit(self, generation: Generation) -> None:
        """Let requests that begin from now on take this generation."""
        before, self.current = self.current, generation
        left = [backend for backend in before.backends.values() if backend not in generation.backends.values()]
        for backend in left:
            task = asyncio.create_task(_drain(backend), name=f"drain {backend.name}")
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)

    async def discard(self, generation: Generation) -> None:
        """Close what was made for a generation that will not be used."""
        for backend in generation.fresh:
            await backend.aclose()


def _named(policy: Policy) -> dict[str, BackendConfig]:
    return {config.name: config for config in policy.backends}


async def _answering(backends: Sequence[Backend]) -> None:
    """Wait until all answer, a little while at most: whoever does not is used as it is, and reported as down."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not all(backend.state().healthy for backend in backends):  # noqa: ASYNC110  # known by looking only
                await asyncio.sleep(_LOOK_S)


async def _drain(backend: Backend) -> None:
    """Close a backend when its last request has ended."""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await asyncio.sleep(1.0)  # a request may have begun and not been sent yet
                while getattr(backend, "in_flight", 0) > 0:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(_LOOK_S)
    finally:
        await asyncio.shield(backend.aclose())
        log.info("backend %s closed: no longer in the policy", backend.name)

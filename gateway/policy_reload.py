"""Keeps a gateway on the policy in force: watches the file, Redis and the database; applies and rolls back by API.

Whatever arrives is checked first, made ready beside the one in force, then swapped in one step; what cannot be used is
remembered (`Held.rejected`) and changes nothing. Started by `gateway.app`, called by `gateway.api.policy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from gateway.db import Activation, Database
from gateway.errors import BreakevenError, Conflict, NotFound, PolicyError, StoreUnavailable
from gateway.generations import Generation, Generations
from gateway.policy import Policy, parse_policy
from gateway.policy.lifecycle import Held, Origin
from gateway.policy.source import PolicyFile
from gateway.stats.policy import PolicyChannel

log = logging.getLogger(__name__)
EVERY_S = 0.4
"""Between two looks: a change is everywhere in well under 2 s."""
_DATABASE_EVERY = 2
_START_S = 2.0


class PolicyReloader:
    """One per gateway process."""

    def __init__(
        self,
        generations: Generations,
        *,
        file: PolicyFile | None = None,
        database: Database | None = None,
        channel: PolicyChannel | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.held = Held(generations.current.policy, since=time.time())
        self._generations = generations
        self._file = file
        self._database = database
        self._channel = channel
        self._env = env
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._refused: set[int] = set()
        """Activations that cannot be used here, so that they are tried once."""
        self._changed = False
        """Whether the file has changed since the start without being recorded yet."""
        self._settled = database is None
        """Whether the file at start and the database have been reconciled."""

    async def start(self) -> None:
        """Find out which policy is in force, waiting a little at most, then keep watching. Never fails."""
        with contextlib.suppress(BreakevenError, TimeoutError):
            await asyncio.wait_for(self._settle(), _START_S)
        self._task = asyncio.create_task(self._watch(), name="policy")

    async def aclose(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._channel is not None:
            await self._channel.aclose()

    async def read(self, text: str, name: str) -> Policy:
        """Check a text beside the event loop, so that requests go on meanwhile. Raises PolicyError."""
        return await asyncio.to_thread(parse_policy, text, name, env=self._env)

    async def apply(
        self, text: str, *, name: str, actor: str, reason: str, expected: str, origin: Origin = "api"
    ) -> Activation:
        """Check a policy and put it into force on all gateways. `expected`: the hash seen in force, or `*` for any.

        Raises:
            PolicyError: it cannot be used.
            Conflict: another policy is in force than the caller saw.
            StoreUnavailable: the database does not answer, so nothing would be kept.
        """
        policy = await self.read(text, name)
        await self._settle()
        async with self._lock:
            generation = await self._generations.prepare(policy)
            try:
                made = await self._record(policy, actor, reason, origin, None if expected == "*" else expected)
            except BaseException:
                await self._generations.discard(generation)
                raise
            self._commit(generation, origin, made.id)
        await self._tell(made.id, policy)
        return made

    async def rollback(self, to: str | None, *, actor: str, reason: str, expected: str) -> Activation:
        """Put an earlier version into force again: the one of that hash, else the one before the present.

        Raises:
            NotFound: there is no such version.
        """
        database = self._need_database()
        if to is None:
            history = await database.policy_history(limit=200)
            before = next((entry for entry in history if entry.hash != history[0].hash), None)
            if before is None:
                raise NotFound("there is no earlier policy to go back to", param="hash", code="no_such_version")
            to = before.hash
        found = await database.policy_text(to)
        if found is None:
            raise NotFound(f"no policy version {to[:64]!r}", param="hash", code="no_such_version")
        _, name, text = found
        return await self.apply(text, name=name, actor=actor, reason=reason, expected=expected, origin="rollback")

    async def history(self, *, limit: int = 200) -> list[Activation]:
        """Return activations, newest first."""
        return await self._need_database().policy_history(limit=limit)

    async def version(self, hash: str) -> tuple[str, str, str] | None:
        """Return (hash, name, text) of a version, by its hash or the beginning of it."""
        return await self._need_database().policy_text(hash)

    async def _record(
        self, policy: Policy, actor: str, reason: str, origin: Origin, expected: str | None
    ) -> Activation:
        """Write an activation. Raises Conflict."""
        database = self._need_database()
        made = await database.activate_policy(
            policy.hash, policy.name, policy.text, actor=actor, origin=origin, reason=reason, expected=expected
        )
        if made is None:
            latest = await database.latest_activation()
            now = f"{latest.hash} by {latest.actor}" if latest else "none"
            raise Conflict(
                f"the policy in force is {now}, not {expected}; look at it and try again", code="policy_changed"
            )
        return made

    def _need_database(self) -> Database:
        if self._database is None:
            raise StoreUnavailable("no database is configured: policy versions cannot be kept")
        return self._database

    async def _tell(self, activation: int, policy: Policy) -> None:
        """Tell the other gateways at once; those that Redis does not reach ask the database."""
        if self._channel is not None:
            with contextlib.suppress(StoreUnavailable):
                await self._channel.publish(activation, policy.hash, policy.text)

    def _commit(self, generation: Generation, origin: Origin, activation: int) -> None:
        """Swap: no await between the two lines, so that no request sees half of it."""
        if generation.policy.hash != self.held.policy.hash:
            self._generations.commit(generation)
            log.info("policy %s (%s) in force, from %s", generation.policy.hash, generation.policy.name, origin)
        self.held = self.held.accept(generation.policy, origin, activation, time.time())

    def _refuse(self, source: str, error: BreakevenError) -> None:
        findings = error.diagnostics if isinstance(error, PolicyError) else [str(error)]
        self.held = self.held.refuse(source, findings, time.time())
        log.error("policy from %s refused, %s stays in force: %s", source, self.held.policy.hash, findings[0])

    async def _watch(self) -> None:
        """Look at file, Redis and database for ever; nothing that happens there ends it."""
        looks: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (1, self._look_at_file),
            (1, self._look_at_channel),
            (_DATABASE_EVERY, self._look_at_database),
        ]
        turn = 0
        while True:
            await asyncio.sleep(EVERY_S)
            turn += 1
            for every, look in looks:
                if turn % every == 0:
                    await self._guarded(look)

    async def _guarded(self, look: Callable[[], Awaitable[None]]) -> None:
        try:
            await look()
        except StoreUnavailable:
            pass  # told by the stores' own states; the policy in force stays
        except Exception:
            log.exception("looking for a new policy")

    async def _look_at_file(self) -> None:
        if self._file is None:
            return
        try:
            policy = await asyncio.to_thread(self._file.changed)
        except PolicyError as error:
            self._refuse(self._file.name, error)
            return
        if policy is not None:
            self.held = self.held.forgive(self._file.name)
            if policy.hash != self.held.policy.hash:
                await self._take(policy, "file", self._file.name)

    async def _take(self, policy: Policy, origin: Origin, source: str) -> None:
        """Put a policy from this gateway's file into force; recorded where the database answers."""
        async with self._lock:
            try:
                generation = await self._generations.prepare(policy)
            except BreakevenError as error:
                self._refuse(source, error)
                return
            activation = 0
            try:
                activation = (await self._record(policy, "file", source, origin, None)).id
            except StoreUnavailable:
                self._settled, self._changed = False, True
            self._commit(generation, origin, activation)
        if activation:
            await self._tell(activation, policy)

    async def _look_at_channel(self) -> None:
        if self._channel is None:
            return
        told = await self._channel.latest()
        if told is None or told[0] == self.held.activation or told[0] in self._refused:
            return
        try:
            await self._look_at_database()
        except StoreUnavailable:
            if told[0] > self.held.activation:
                await self._follow(*told)

    async def _look_at_database(self) -> None:
        if self._database is None:
            if self._channel is not None and (told := await self._channel.latest()) and told[0] > self.held.activation:
                await self._follow(*told)
            return
        if not self._settled:
            await self._settle()
            return
        latest = await self._database.latest_activation()
        if latest is not None:
            await self._follow(latest.id, latest.hash)

    async def _settle(self) -> None:
        """Once after the start: the file wins if it is new to the database, else what was in force last.

        The shipped default file never replaces a policy that someone applied, so that an upgrade changes nothing.
        """
        if self._database is None:
            return
        async with self._lock:
            if self._settled:
                return
            mine, file = self.held.policy, self._file
            newer = await self._applied_since(self._database, mine)
            if newer is None:
                made = await self._record(mine, "file", file.name if file else mine.name, "file", None)
                self.held = self.held.accept(mine, "file", made.id, time.time())
            self._settled, self._changed = True, False
        if newer is None:
            await self._tell(made.id, mine)
        else:
            await self._follow(newer.id, newer.hash)

    async def _applied_since(self, database: Database, mine: Policy) -> Activation | None:
        """Return what was put into force otherwise and shall stay so; None where the file wins."""
        latest, file = await database.latest_activation(), self._file
        if self._changed or latest is None or latest.hash == mine.hash or latest.origin == "file":
            return None
        last_file = await database.latest_activation("file")
        shipped = file is None or file.shipped
        return latest if shipped or last_file is None or last_file.hash == mine.hash else None

    async def _follow(self, activation: int, hash: str) -> None:
        """Take over what another gateway (or the command line) has put into force.

        What was read from a store may be old by now: this gateway never goes back to an activation before its own.
        """
        if activation <= self.held.activation or activation in self._refused:
            return
        if hash == self.held.policy.hash:
            self.held = self.held.accept(self.held.policy, self.held.origin, activation, time.time())
            return
        found = await self._text_of(hash)
        if found is None:
            return
        name, text = found
        source = f"version {hash}"
        async with self._lock:
            if activation <= self.held.activation:
                return
            try:
                policy = await self.read(text, name)
                generation = await self._generations.prepare(policy)
            except BreakevenError as error:
                self._refused.add(activation)
                self._refuse(source, error)
                return
            self._commit(generation, "api", activation)

    async def _text_of(self, hash: str) -> tuple[str, str] | None:
        """Return (name, text) of a version, from Redis first: the database may be away."""
        if self._channel is not None:
            with contextlib.suppress(StoreUnavailable):
                text = await self._channel.text(hash)
                if text is not None:
                    return f"policy {hash}", text
        if self._database is None:
            return None
        found = await self._database.policy_text(hash)
        return (found[1], found[2]) if found else None

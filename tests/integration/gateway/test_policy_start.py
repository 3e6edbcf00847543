"""Which policy is in force when a gateway starts: the file, or what was put into force last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.classify import Classifier
from gateway.db import Activation, Database
from gateway.generations import Generation, Generations
from gateway.policy import parse_policy
from gateway.policy.source import PolicyFile
from gateway.policy_reload import PolicyReloader


def text(rule: str) -> str:
    return f"version: 1\nbackends: {{e: {{url: 'http://127.0.0.1:9', arms: plain}}}}\nrules: [{{name: {rule}}}]\n"


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = Database(f"sqlite+aiosqlite:///{tmp_path / 'p.db'}")
    await found.migrate()
    yield found
    await found.aclose()


class Never:
    """A backend that is never asked anything."""

    name = "e"

    def __init__(self, *_: object) -> None:
        self.closed = False

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True


async def in_force(database: Database | None, folder: Path, rule: str, *, shipped: bool = False) -> str:
    """Start a gateway's reloader with a file and return the name of the rule in force."""
    (folder / "p.yaml").write_text(text(rule), encoding="utf-8")
    file = PolicyFile(folder / "p.yaml", env={}, shipped=shipped)
    first = Generation(file.load(), {"e": Never()}, Classifier.load())  # type: ignore[dict-item]
    generations = Generations(first, make=Never, load=lambda _: Classifier.load())  # type: ignore[arg-type]
    reloader = PolicyReloader(generations, file=file, database=database, env={})
    await reloader.start()
    found = reloader.held.policy.rules[0].name
    assert generations.current.policy is reloader.held.policy
    await reloader.aclose()
    await generations.aclose()
    return found


async def put(database: Database, rule: str, origin: str = "api") -> None:
    policy = parse_policy(text(rule), "x", env={})
    await database.activate_policy(policy.hash, "x", policy.text, actor="ann", origin=origin)


async def test_the_first_start_takes_and_records_the_file(database: Database, tmp_path: Path) -> None:
    assert await in_force(database, tmp_path, "mine") == "mine"
    (only,) = await database.policy_history()
    assert (only.origin, only.reason) == ("file", str(tmp_path / "p.yaml"))


async def test_what_was_applied_stays_while_the_file_is_the_same(database: Database, tmp_path: Path) -> None:
    await in_force(database, tmp_path, "mine")
    await put(database, "applied")
    assert await in_force(database, tmp_path, "mine") == "applied"
    assert await in_force(database, tmp_path, "changed") == "changed"
    await put(database, "mine", "rollback")
    assert await in_force(database, tmp_path, "changed") == "mine"


async def test_the_shipped_file_never_replaces_what_was_applied(database: Database, tmp_path: Path) -> None:
    await in_force(database, tmp_path, "version 1", shipped=True)
    assert await in_force(database, tmp_path, "version 2", shipped=True) == "version 2"
    await put(database, "applied")
    assert await in_force(database, tmp_path, "version 3", shipped=True) == "applied"


async def test_applied_before_the_first_start(database: Database, tmp_path: Path) -> None:
    await put(database, "applied")
    assert await in_force(database, tmp_path, "mine") == "applied"


async def test_without_a_usable_database_the_file_holds(tmp_path: Path) -> None:
    assert await in_force(None, tmp_path, "mine") == "mine"
    empty = Database(f"sqlite+aiosqlite:///{tmp_path / 'no' / 'such' / 'folder.db'}")
    assert await in_force(empty, tmp_path, "mine") == "mine"
    await empty.aclose()
    for thread in threading.enumerate():  # those of connections that failed end by themselves, and need the loop for it
        if "_connection_worker_thread" in thread.name:
            await asyncio.to_thread(thread.join, 10)


async def test_an_applied_policy_that_cannot_be_used_here_leaves_the_file_in_force(
    database: Database, tmp_path: Path
) -> None:
    await in_force(database, tmp_path, "mine")
    broken = "version: 1\nbackends: {e: {url: '${BREAKEVEN_ELSEWHERE}'}}\n"
    await database.activate_policy("0" * 12, "x", broken, actor="ann", origin="api")
    assert await in_force(database, tmp_path, "mine") == "mine"


class Slow(Database):
    """A database whose answer about the activation in force arrives late, as on a busy machine."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.hold: asyncio.Event | None = None
        self.read = asyncio.Event()

    async def latest_activation(self, origin: str | None = None) -> Activation | None:
        found = await super().latest_activation(origin)
        if self.hold is not None:
            self.read.set()
            await self.hold.wait()
        return found


async def test_an_old_answer_never_takes_a_gateway_back(database: Database, tmp_path: Path) -> None:
    slow = Slow(f"sqlite+aiosqlite:///{tmp_path / 'p.db'}")
    first = Generation(parse_policy(text("one"), "x", env={}), {"e": Never()}, Classifier.load())  # type: ignore[dict-item]
    generations = Generations(first, make=Never, load=lambda _: Classifier.load())  # type: ignore[arg-type]
    reloader = PolicyReloader(generations, database=slow, env={})
    await reloader._settle()
    await put(database, "two")
    slow.hold = asyncio.Event()
    looking = asyncio.create_task(reloader._look_at_database())
    await slow.read.wait()
    held, slow.hold = slow.hold, None
    await reloader.apply(text("three"), name="x", actor="ann", reason="", expected="*")
    held.set()
    await looking
    assert generations.current.policy.rules[0].name == "three"
    assert reloader.held.policy is generations.current.policy
    await put(database, "four")
    await reloader._look_at_database()
    assert generations.current.policy.rules[0].name == "four"
    await generations.aclose()
    await slow.aclose()


async def test_what_is_applied_before_the_file_could_be_recorded_comes_after_it(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(text("mine"), encoding="utf-8")
    file = PolicyFile(tmp_path / "p.yaml", env={}, shipped=False)
    first = Generation(file.load(), {"e": Never()}, Classifier.load())  # type: ignore[dict-item]
    generations = Generations(first, make=Never, load=lambda _: Classifier.load())  # type: ignore[arg-type]
    reloader = PolicyReloader(generations, file=file, database=database, env={})
    settled = asyncio.create_task(reloader._settle())
    await reloader.apply(text("applied"), name="x", actor="ann", reason="", expected="*")
    await settled
    assert [entry.origin for entry in await database.policy_history()] == ["api", "file"]
    assert reloader.held.policy is generations.current.policy
    assert generations.current.policy.rules[0].name == "applied"
    await generations.aclose()
    assert await in_force(database, tmp_path, "mine") == "applied"

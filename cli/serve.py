"""`breakeven serve`: everything on one machine with one command: embedded Redis, SQLite, the engine and the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http.client
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

if TYPE_CHECKING:
    from cli.supervisor import ChildSpec, Supervisor
    from gateway.settings import Settings

ENGINE_OPTIONS = {
    "model": "BREAKEVEN_MODEL",
    "draft_model": "BREAKEVEN_DRAFT_MODEL",
    "draft_head": "BREAKEVEN_DRAFT_HEAD",
    "models_dir": "BREAKEVEN_MODELS_DIR",
    "dtype": "BREAKEVEN_DTYPE",
    "device": "BREAKEVEN_DEVICE",
}
"""Options that only the engine understands, and the variables that carry them there."""


@click.command()
@click.option("--host", help="Address to listen on (BREAKEVEN_HOST; default 127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port, 0 for any free one (BREAKEVEN_PORT; default 8000).")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where all state lives.")
@click.option("--policy", "path", type=click.Path(path_type=Path, dir_okay=False), help="Policy file.")
@click.option("--model", help="Target model: built-in name, local folder or hub id (BREAKEVEN_MODEL).")
@click.option("--draft-model", help="Draft model (BREAKEVEN_DRAFT_MODEL; default none).")
@click.option("--draft-head", help="Feature-fed head: a file, auto or none (BREAKEVEN_DRAFT_HEAD; default auto).")
@click.option("--models-dir", type=click.Path(path_type=Path, file_okay=False), help="Where fetched models are kept.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), help="Precision (BREAKEVEN_DTYPE).")
@click.option("--device", help="auto, cpu, cuda, … (BREAKEVEN_DEVICE).")
@click.option("--redis-url", help="Use this Redis rather than the embedded one (BREAKEVEN_REDIS_URL).")
@click.option("--database-url", help="Use this PostgreSQL rather than SQLite (BREAKEVEN_DATABASE_URL).")
def serve(  # noqa: PLR0917  # click passes by name
    host: str | None,
    port: int | None,
    data_dir: Path | None,
    path: Path | None,
    redis_url: str | None,
    database_url: str | None,
    **engine: object,
) -> None:
    """Serve the OpenAI API on one machine, with everything it needs."""
    from gateway.errors import PolicyError, SettingsError
    from gateway.settings import Settings

    try:
        settings = Settings.from_env(
            host=host, port=port, data_dir=data_dir, path=path, redis_url=redis_url, database_url=database_url
        )
        for name, variable in ENGINE_OPTIONS.items():
            if engine[name] is not None:
                os.environ[variable] = str(engine[name])
        plan = make_plan(settings)
    except (SettingsError, PolicyError, OSError) as error:
        raise click.ClickException(str(error)) from error
    failure = asyncio.run(run(plan))
    if failure:
        raise click.ClickException(failure)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run; everything that can be refused has been checked, nothing has been started."""

    settings: Settings
    lock: BinaryIO
    """Held while we run: two must not share a data folder."""
    host: str
    port: int
    engine_port: int | None
    """None: the policy names no backend that we would start."""
    with_redis: bool
    """Whether the embedded one is started."""

    @property
    def url(self) -> str:
        """Where clients go."""
        host = self.local_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def local_host(self) -> str:
        """The address at which we reach our own gateway."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host).strip("[]")  # noqa: S104 — not bound to


def make_plan(settings: Settings) -> Plan:
    """Check everything before anything starts: folder, lock, port, policy, URLs.

    Raises PolicyError, SettingsError, or ClickException saying what to do.
    """
    data_dir = settings.server.data_dir
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = (data_dir / "serve.lock").open("a+b")
    except OSError as error:
        raise click.ClickException(
            f"data folder {data_dir}: {error.strerror}; choose another with --data-dir"
        ) from error
    try:
        _take_lock(lock, data_dir)
        return _checked(settings, lock)
    except BaseException:
        lock.close()
        raise


def _checked(settings: Settings, lock: BinaryIO) -> Plan:
    from gateway.db.engine import parse_url
    from gateway.policy import load_policy
    from gateway.stats.connection import connect

    host, port = settings.server.host, free_port(settings.server.host, settings.server.port)
    engine_port = free_port("127.0.0.1", 0)
    ours = f"http://127.0.0.1:{engine_port}"
    policy = load_policy(settings.policy.path, env={**os.environ, "BREAKEVEN_ENGINE_URL": ours})
    is_named = any(ours in backend.urls for backend in policy.backends)
    parse_url(settings.database_url)
    if settings.stores.redis_url:
        connect(settings.stores.redis_url, timeout_s=1.0, connections=1)
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()} port {port}\n".encode())
    lock.flush()
    return Plan(settings, lock, host, port, engine_port if is_named else None, not settings.stores.redis_url)


def _take_lock(lock: BinaryIO, data_dir: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read(100).decode("ascii", "replace").strip() or "unknown"
        raise click.ClickException(
            f"data folder {data_dir} is in use by another `breakeven serve` (process {holder}); "
            "stop it, or choose another folder with --data-dir"
        ) from None


def free_port(host: str, port: int) -> int:
    """Return a port that can be listened on. Raises ClickException where `port` cannot.

    On Linux it stays ours until this process ends: the child that will listen there takes it by `SO_REUSEADDR`, and
    nobody who asks for a free port is given it while the model loads.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port"
            ) from error
        found: int = probe.getsockname()[1]
        if sys.platform == "linux":
            probe.detach()
        return found


def say(line: str) -> None:
    """Tell progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


async def run(plan: Plan) -> str:
    """Start everything, say when it is ready, keep it running until a signal; return why it failed, or nothing."""
    from cli.supervisor import Supervisor

    began = time.monotonic()
    supervisor = Supervisor(say)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.end)
    starting = asyncio.create_task(_start(plan, supervisor, began))
    waiting = asyncio.create_task(supervisor.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and starting.exception() is not None:
        supervisor.end(str(starting.exception()))
    await waiting
    starting.cancel()
    say("stopping" if not supervisor.failure else "stopping everything")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _kill_all, supervisor)
    await supervisor.stop()
    return supervisor.failure


def _kill_all(supervisor: Supervisor) -> None:
    """A second signal: no more patience."""
    for child in supervisor.children:
        if child.process is not None and child.process.returncode is None:
            child.process.kill()


async def _start(plan: Plan, supervisor: Supervisor, began: float) -> None:
    """Start the parts in order of need, and print one line when an answer can be had."""
    redis_url = await _start_redis(plan, supervisor)
    await _prepare_database(plan)
    env = {"BREAKEVEN_REDIS_URL": redis_url, "BREAKEVEN_DATA_DIR": str(plan.settings.server.data_dir.resolve())}
    if plan.engine_port is not None:
        say("engine: loading the model")
        supervisor.add(engine_spec(plan.engine_port))
        env["BREAKEVEN_ENGINE_URL"] = f"http://127.0.0.1:{plan.engine_port}"
    else:
        say(f"engine: not started, {plan.settings.policy.path.name} names other backends")
    gateway = supervisor.add(gateway_spec(plan, env))
    await gateway.ready.wait()
    await _until_ready(plan)
    seconds = time.monotonic() - began
    click.echo(f"Breakeven is ready after {seconds:.1f} s: {plan.url}/v1 (page: {plan.url}/ops)")
    sys.stdout.flush()


async def _until_ready(plan: Plan) -> None:
    """Return when an arm can answer."""
    while True:
        if await asyncio.to_thread(answers, plan.local_host, plan.port, "/readyz"):
            return
        await asyncio.sleep(0.1)


async def _start_redis(plan: Plan, supervisor: Supervisor) -> str:
    """Start the embedded server, or look whether the given one answers; return its URL. Never fails for Redis' sake."""
    from cli.embedded_redis import EmbeddedRedis
    from cli.supervisor import ChildSpec
    from gateway.errors import StoreUnavailable
    from gateway.stats import StatsStore

    if not plan.with_redis:
        url = plan.settings.stores.redis_url
        store = StatsStore(url, timeout_s=1.0)
        try:
            await store.ping()
            say("redis: answers")
        except StoreUnavailable as error:
            say(f"redis: not reachable, starting anyway; statistics are spooled until it is ({error})")
        await store.aclose()
        return url
    embedded = EmbeddedRedis(plan.settings.server.data_dir)
    try:
        spec = ChildSpec(
            "redis", embedded.command(), embedded.answers, needed=False, quiet=True, prepare=embedded.prepare
        )
    except (ImportError, OSError) as error:
        say(f"redis: the embedded server is not available here ({error}); set BREAKEVEN_REDIS_URL. Starting anyway")
        return embedded.url
    child = supervisor.add(spec)
    try:
        await asyncio.wait_for(child.ready.wait(), 10.0)
        say("redis: embedded server is up")
    except TimeoutError:
        say("redis: the embedded server is not up yet, going on without it")
    return embedded.url


async def _prepare_database(plan: Plan) -> None:
    """Migrate; a database that does not answer is migrated by the gateway when it does."""
    from gateway.db import Database
    from gateway.errors import StoreUnavailable

    database = Database(plan.settings.database_url, timeout_s=5.0)
    try:
        await database.migrate()
        say(f"database: {database.url} is ready")
    except StoreUnavailable as error:
        say(f"database: not ready, starting anyway; records are spooled until it is ({error})")
    finally:
        await database.aclose()


def engine_spec(port: int) -> ChildSpec:
    """Return how the engine is run; its options travel in the environment."""
    from cli.supervisor import ChildSpec

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = str(max(1, cores - 1))  # two torch threads beside any busy process collapse
    return ChildSpec(
        "engine",
        [sys.executable, "-m", "engine", "--host", "127.0.0.1", "--port", str(port), "--threads", threads],
        lambda: asyncio.to_thread(answers, "127.0.0.1", port, "/health"),
        env={"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": threads},
    )


def gateway_spec(plan: Plan, env: dict[str, str]) -> ChildSpec:
    """Return how the gateway is run."""
    from cli.supervisor import ChildSpec

    settings = plan.settings
    env = env | {"BREAKEVEN_HOST": plan.host, "BREAKEVEN_PORT": str(plan.port)}
    env |= {"BREAKEVEN_POLICY": str(settings.policy.path.resolve())}
    env |= {"BREAKEVEN_DATABASE_URL": settings.stores.database_url}
    return ChildSpec(
        "gateway",
        [sys.executable, "-m", "cli.main", "gateway", "--log-level", "warning"],
        lambda: asyncio.to_thread(answers, plan.local_host, plan.port, "/healthz"),
        env=env,
        stop_s=settings.server.drain_s + 5.0,
    )


def answers(host: str, port: int, path: str) -> bool:
    """Whether a GET succeeds; no proxy is asked."""
    connection = http.client.HTTPConnection(host, port, timeout=2.0)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False

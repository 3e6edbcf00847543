"""`breakeven gateway`: the gateway alone, in front of engines that already run."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gateway.settings import Settings


@click.command()
@click.option("--host", help="Address to listen on (BREAKEVEN_HOST; default 127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port, 0 for any free one (BREAKEVEN_PORT; default 8000).")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Spool and files.")
@click.option("--policy", "path", type=click.Path(path_type=Path, dir_okay=False), help="Policy file.")
@click.option("--redis-url", help="Live statistics (BREAKEVEN_REDIS_URL).")
@click.option("--database-url", help="Records and keys (BREAKEVEN_DATABASE_URL; default SQLite in the data folder).")
@click.option(
    "--log-level", type=click.Choice(["error", "warning", "info", "debug"]), default="info", show_default=True
)
def gateway(  # noqa: PLR0917  # click passes by name
    host: str | None,
    port: int | None,
    data_dir: Path | None,
    path: Path | None,
    redis_url: str | None,
    database_url: str | None,
    log_level: str,
) -> None:
    """Serve the OpenAI API in front of the backends that the policy names."""
    from gateway.errors import BreakevenError
    from gateway.settings import Settings

    try:
        settings = Settings.from_env(
            host=host, port=port, data_dir=data_dir, path=path, redis_url=redis_url, database_url=database_url
        )
        run(settings, log_level)
    except BreakevenError as error:
        raise click.ClickException(str(error)) from error


def run(settings: Settings, log_level: str) -> None:
    """Listen and serve until a signal. Raises ClickException where the port is in use."""
    import asyncio

    import uvicorn

    from cli.huge_pages import use_huge_pages
    from gateway.api.protocol import GatewayProtocol
    from gateway.app import create_app
    from gateway.logs import configure

    configure(log_level, settings.telemetry.log_format)
    asyncio.run(check_keys(settings))
    with listen(settings.server.host, settings.server.port) as listening:
        app = create_app(settings)
        tame_collector()
        use_huge_pages()
        host, port = listening.getsockname()[:2]
        click.echo(f"gateway on http://{f'[{host}]' if ':' in host else host}:{port}", err=True)
        config = uvicorn.Config(
            app,
            http=GatewayProtocol,
            log_config=None,
            log_level=log_level,
            access_log=False,
            timeout_graceful_shutdown=int(settings.server.drain_s),
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            lifespan="on",
        )
        server = uvicorn.Server(config)
        app.state["draining"] = lambda: server.should_exit  # endless streams (`/ops/events`) must not hold the exit up
        server.run(sockets=[listening])
    if not server.started:
        raise SystemExit(3)


def tame_collector() -> None:
    """Leave what lives for ever out of garbage collection, and collect less often: a full one stalls every stream."""
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def check_keys(settings: Settings) -> None:
    """Refuse to listen where others can reach it before a key exists. A database that is away is not asked again here.

    Raises:
        SettingsError: no key exists.
    """
    from gateway.access import is_loopback, require_keys
    from gateway.db import Database
    from gateway.errors import StoreUnavailable

    if is_loopback(settings.server.host):
        return
    settings.server.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.database_url)
    try:
        await database.migrate()
        keys = await database.list_keys()
    except StoreUnavailable as error:
        click.echo(f"warning: API keys cannot be read yet: {error}", err=True)
        return
    finally:
        await database.aclose()
    require_keys(settings.server.host, keys)


def listen(host: str, port: int) -> socket.socket:
    """Bind the address now, so that a port in use is told before anything else starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port"
        ) from error
    listening.listen(2048)
    return listening

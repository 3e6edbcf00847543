"""Runs the Alembic migrations on an open connection. Called by `Database` and by the migrations' own environment."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Connection

from gateway.db.models import Base
from gateway.errors import StoreUnavailable


def alembic_config(connection: Connection | None = None) -> Config:
    """Return the configuration that finds the `migrations` package wherever it is installed."""
    spec = find_spec("migrations")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package 'migrations' is not installed beside 'gateway'")
    config = Config()
    config.set_main_option("script_location", str(Path(spec.origin).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest revision."""
    command.upgrade(alembic_config(connection), "head")


def downgrade(connection: Connection, revision: str) -> None:
    """Take the schema back to `revision` (`base` is empty)."""
    command.downgrade(alembic_config(connection), revision)


def pending(connection: Connection) -> list[str]:
    """Return the revisions that are not applied yet, oldest first.

    Raises StoreUnavailable where the schema was made by a newer version.
    """
    scripts = ScriptDirectory.from_config(alembic_config())
    applied = MigrationContext.configure(connection).get_current_heads()
    try:
        newest_first = [script.revision for script in scripts.iterate_revisions("heads", applied or "base")]
    except (CommandError, ResolutionError) as error:
        raise StoreUnavailable(f"database: its schema ({', '.join(applied)}) is newer than this version") from error
    return [revision for revision in reversed(newest_first) if revision not in applied]


def differences(connection: Connection) -> list[str]:
    """Return how the tables differ from the models; empty where the migrations are complete."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return [str(difference) for difference in compare_metadata(context, Base.metadata)]

"""What the reports read besides the page's sums: strata of the randomised comparison, tails, and the queries' own text.

Part of `Database`; roll-ups only. The text that is shown is compiled from the very statements that are run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from sqlalchemy import Dialect, Select, select

from gateway.db import queries
from gateway.db.models import CELL_COLUMNS, ActivityRollup, Cell, DecisionChange, LatencyRollup
from gateway.db.queries import ActivitySums
from gateway.db.transactions import Transactions
from gateway.db.types import utc
from gateway.histogram import LogHistogram, Metric
from gateway.types import Arm

TAIL_METRICS: tuple[Metric, ...] = ("itl", "tpot")


class Stratum(msgspec.Struct):
    """Sums of requests that were alike before it was drawn which path they take."""

    task: str
    temperature: str
    context: str
    arm: Arm
    key_id: str
    state: str
    """`Decision.state`: `holdout` was drawn at random."""
    sums: ActivitySums


class Tail(msgspec.Struct):
    """The latencies of one task in one arm at one load band."""

    task: str
    arm: Arm
    load: int
    metric: Metric
    histogram: LogHistogram


class Query(msgspec.Struct):
    """A query behind figures, as it was sent."""

    id: str
    about: str
    sql: str


class Evidence(msgspec.Struct):
    """All of it, over one window."""

    strata: list[Stratum]
    tails: list[Tail]
    queries: list[Query]


class EvidenceReads(Transactions):
    """The method that `Database` inherits."""

    async def evidence(self, first: int, last: int) -> Evidence:
        """Return what the roll-ups of minutes `first` … `last` say; a minute is Unix time // 60."""
        async with self._read(60.0) as connection:
            rows = await connection.execute(_strata(first, last))
            strata = [_stratum(row) for row in rows.fetchall()]
            packed = await queries.grouped(connection, _tails(first, last), lambda row: (tuple(row[:6]), row[6]))
            dialect = connection.dialect
        tails = await asyncio.to_thread(_merged, packed)
        return Evidence(strata, tails, statements(dialect, first, last))


def statements(dialect: Dialect, first: int, last: int) -> list[Query]:
    """Return the text of every query of a report over minutes `first` … `last`."""
    cells = [getattr(Cell, name) for name in CELL_COLUMNS]
    changes = select(DecisionChange.__table__).where(DecisionChange.at >= utc(first * 60))
    named: tuple[tuple[str, str, Any], ...] = (
        ("strata", "time and tokens by stratum, arm, application and kind of decision", _strata(first, last)),
        ("cells", "steps, rounds and acceptance by cell", queries.sums_by(cells, first, last)),
        ("tails", "packed latency histograms by task, arm and load; merged after reading", _tails(first, last)),
        ("switches", "the switch log", changes.order_by(DecisionChange.id.desc())),
    )
    return [Query(name, about, _text(statement, dialect)) for name, about, statement in named]


def _text(statement: Any, dialect: Dialect) -> str:  # noqa: ANN401  # any Select
    return str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _strata(first: int, last: int) -> Any:  # noqa: ANN401  # any Select
    return queries.sums_by(
        (
            Cell.task, Cell.temperature, Cell.context, Cell.backend, Cell.method, Cell.k,
            ActivityRollup.key_id, ActivityRollup.state,
        ),
        first,
        last,
    )  # fmt: skip


def _stratum(row: Any) -> Stratum:  # noqa: ANN401  # a row of this query
    return Stratum(row[0], row[1], row[2], Arm(*row[3:6]), row[6], row[7], queries.sums_of(row[8:]))


def _tails(first: int, last: int) -> Select[*tuple[Any, ...]]:
    table = LatencyRollup
    query = select(Cell.task, Cell.backend, Cell.method, Cell.k, Cell.load, table.metric, table.histogram)
    return (
        query.select_from(table)
        .join(Cell, Cell.id == table.cell_id)
        .where(queries.within(table, first, last), table.metric.in_(TAIL_METRICS))
    )


def _merged(packed: dict[tuple[Any, ...], list[bytes]]) -> list[Tail]:
    return [
        Tail(key[0], Arm(*key[1:4]), key[4], key[5], LogHistogram.merge_encoded(packed[key])) for key in sorted(packed)
    ]

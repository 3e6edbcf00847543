"""Told minutes, hours, days and weeks are packed; sums tell the holdout's draw instead of the decision's state.

Of older requests it is not known whether the holdout could have held them: those that several arms were open to count as
drawn, at the default share of 1 %.

Revision 0007, after 0006.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.db.packed import pack, pack_histograms, unpack, unpack_histograms

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SUMS = (
    "requests", "failed", "errors", "fallbacks", "loops", "prompt_tokens", "completion_tokens", "overhead_us",
    "ttft_us", "e2e_us", "measured", "decode_tokens", "decode_us", "tokens_tokens", "tokens_time", "time_time", "rounds",
    "drafted", "accepted", "zero_rounds", "undrafted", "draft_us", "verify_us", "plain_us", "expected_plain_us",
    "expected_round_plain_us", "accelerator_tokens", "accelerator_us", "tokens_accelerator",
    "accelerator_accelerator", *(f"accepted_{count}" for count in range(17)),
)  # fmt: skip
DRAW = "CASE WHEN state = 'holdout' THEN -10000 WHEN state IN ('ok', 'no_data', 'probe') THEN 10000 ELSE 0 END"
SPANS = ((1, 0, 15), (60, 60, 60), (1440, 1440, 1440), (10080, 1440, 10080))
"""What packed rows tell apart, the span of the old rows that they are made of, and the minutes of one packed row."""
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    _lock("activity_rollups", "latency_rollups")
    _create(
        "activity_minutes",
        [_whole("minute"), _cell("activity_minutes"), _word("key_id", 64), _whole("draw")],
        [_whole(name) for name in SUMS],
    )
    _create(
        "latency_minutes",
        [_whole("minute"), _cell("latency_minutes"), _word("metric", 8), _word("writer", 64)],
        [_blob("histogram")],
    )
    _create("activity_packed", [_whole("span"), _whole("minute")], [sa.Column("keys", JSON, nullable=False), _blob("data")])
    _create("latency_packed", [_whole("span"), _whole("minute"), _word("metric", 8)], [_blob("data")])
    summed = ", ".join(f"sum({_old(name)})" for name in SUMS)
    op.execute(
        f"INSERT INTO activity_minutes (minute, cell_id, key_id, draw, {', '.join(SUMS)}) "
        f"SELECT minute, cell_id, key_id, {DRAW}, {summed} FROM activity_rollups WHERE span = 1 "
        f"GROUP BY minute, cell_id, key_id, {DRAW}"
    )
    op.execute(
        "INSERT INTO latency_minutes (minute, cell_id, metric, writer, histogram) "
        "SELECT minute, cell_id, metric, writer, histogram FROM latency_rollups WHERE span = 1"
    )
    for span, old, length in SPANS:
        for start in _starts("activity_rollups", length, old):
            _pack_activity(span, old, start, start + length - 1)
        for start in _starts("latency_rollups", length, old):
            _pack_latency(span, old, start, start + length - 1)
    op.drop_table("activity_rollups")
    op.drop_table("latency_rollups")


def downgrade() -> None:
    _lock("activity_minutes", "latency_minutes", "activity_packed", "latency_packed")
    late = [name for name in SUMS if "accelerator" in name]
    early = [name for name in SUMS if name not in late and name != "errors"]
    plain, drafted = early[:25], early[25:]
    _create(
        "activity_rollups",
        [_whole("span"), _whole("minute"), _cell("activity_rollups"), _word("key_id", 64), _word("state", 16)],
        [
            *(_whole(name) for name in [*plain, *drafted]),
            *(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0") for name in late),
        ],
    )
    _create(
        "latency_rollups",
        [_whole("span"), _whole("minute"), _cell("latency_rollups"), _word("metric", 8), _word("writer", 64)],
        [_whole("count"), _blob("histogram")],
    )
    bind = op.get_bind()
    for start in _starts("activity_minutes", 60):
        rows = _rows("activity_minutes", ["minute", "cell_id", "key_id", "draw", *SUMS], start, start + 59)
        _unpacked_sums(1, ((row[2], row[0], row[1], *row[3:]) for row in rows))
    for start in _starts("latency_minutes", 60):
        rows = _rows("latency_minutes", ["minute", "cell_id", "metric", "writer", "histogram"], start, start + 59)
        _unpacked_latencies([{"span": 1, **_counted(row)} for row in map(tuple, rows)])
    for span, old, _length in SPANS[:3]:
        packed = sa.table("activity_packed", *(sa.column(name) for name in ("span", "minute", "data")), sa.column("keys", JSON))
        where = sa.select(packed.c.minute, packed.c["keys"], packed.c.data).where(packed.c.span == span)
        for start, keys, data in bind.execute(where).fetchall():
            rows = zip(*(column.tolist() for column in unpack(data)))
            _unpacked_sums(old, ((keys[row[2]], start + row[0], row[1], *row[3:]) for row in rows))
        where = sa.text("SELECT minute, metric, data FROM latency_packed WHERE span = :span")
        for start, metric, data in bind.execute(where, {"span": span}).fetchall():
            (offsets, cells), lengths, buckets, counts = unpack_histograms(data)
            ends = np.cumsum(lengths)
            _unpacked_latencies(
                [
                    {"span": old, **_counted((int(start + offsets[at]), int(cells[at]), metric, "compacted",
                     _packed(dict(zip(buckets[end - n:end].tolist(), counts[end - n:end].tolist())))))}
                    for at, (end, n) in enumerate(zip(ends, lengths))
                ]
            )  # fmt: skip
    for table in ("activity_packed", "latency_packed", "activity_minutes", "latency_minutes"):
        op.drop_table(table)


def _lock(*tables: str) -> None:
    """Let a gateway that still writes to these wait, so that nothing is added to what was read already."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")


def _old(name: str) -> str:
    """Return what was kept instead: errors were not told from other failures."""
    return "failed" if name == "errors" else name


def _create(name: str, key: list[sa.Column], others: list[sa.Column]) -> None:
    """Make a table that SQLite keeps by its key."""
    names = [column.name for column in key]
    op.create_table(
        name, *key, *others, sa.PrimaryKeyConstraint(*names, name=op.f(f"pk_{name}")), sqlite_with_rowid=False
    )


def _whole(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


def _cell(table: str) -> sa.Column:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    known = sa.ForeignKey("cells.id", name=op.f(f"fk_{table}_cell_id_cells"))
    return sa.Column("cell_id", kind, known, autoincrement=False, nullable=False)


def _word(name: str, length: int) -> sa.Column:
    return sa.Column(name, sa.String(length=length), nullable=False)


def _blob(name: str) -> sa.Column:
    return sa.Column(name, sa.LargeBinary(), nullable=False)


def _starts(table: str, length: int, span: int | None = None) -> list[int]:
    """Return the beginnings of the pieces of time of which there are rows."""
    where = "" if span is None else f"WHERE span = {span}"
    query = f"SELECT DISTINCT minute - minute % {length} FROM {table} {where}"
    return sorted(op.get_bind().execute(sa.text(query)).scalars())


def _rows(table: str, names: list[str], start: int, end: int, more: str = "") -> list[sa.Row]:
    query = f"SELECT {', '.join(names)} FROM {table} WHERE minute BETWEEN :a AND :b {more}"
    return list(op.get_bind().execute(sa.text(query), {"a": start, "b": end}))


def _pack_activity(span: int, old: int, start: int, end: int) -> None:
    summed = ", ".join(f"CAST(sum({_old(name)}) AS BIGINT)" for name in SUMS)
    offset = f"minute - {start}" if span == 1 else "0"
    names = [offset, "cell_id", "key_id", DRAW, summed]
    groups = f"{'minute, ' if span == 1 else ''}cell_id, key_id, {DRAW}"
    rows = _rows("activity_rollups", names, start, end, f"AND span = {old} GROUP BY {groups}")
    keys = sorted({row[2] for row in rows})
    numbers = [(row[0], row[1], keys.index(row[2]), *row[3:]) for row in rows]
    data = pack(list(np.array(numbers, dtype=np.int64).T))
    table = sa.table("activity_packed", *(sa.column(name) for name in ("span", "minute", "data")), sa.column("keys", JSON))
    op.bulk_insert(table, [{"span": span, "minute": start, "keys": keys, "data": data}])


def _pack_latency(span: int, old: int, start: int, end: int) -> None:
    by_metric: dict[str, list[tuple[int, int, bytes]]] = {}
    offset = f"minute - {start}" if span == 1 else "0"
    names = ["metric", offset, "cell_id", "histogram"]
    for metric, *row in _rows("latency_rollups", names, start, end, f"AND span = {old}"):
        by_metric.setdefault(metric, []).append(tuple(row))
    for metric, found in by_metric.items():
        entries = [(*row, *entry) for *row, blob in found for entry in _unpacked(blob).items()]
        offsets, cells, buckets, counts = np.array(entries, dtype=np.int64).T
        place = {"span": span, "minute": start, "metric": metric}
        _put("latency_packed", {**place, "data": pack_histograms([offsets, cells], buckets, counts)})


def _unpacked_sums(span: int, rows: Iterable[tuple]) -> None:
    """Write rows (key, minute, cell, draw, sums) as they were: shares of the draw were not told apart."""
    names = ["span", "minute", "cell_id", "key_id", "state", *SUMS]
    found: dict[tuple, list[int]] = {}
    for key_id, minute, cell, draw, *sums in rows:
        state = "holdout" if draw < 0 else "ok" if draw else "forced"
        place = (span, minute, cell, key_id, state)
        found[place] = [one + more for one, more in zip(found.get(place, [0] * len(sums)), sums)]
    made = [dict(zip(names, (*place, *sums))) for place, sums in found.items()]
    for row in made:
        del row["errors"]
    _put("activity_rollups", *made)


def _unpacked_latencies(rows: list[dict]) -> None:
    _put("latency_rollups", *rows)


def _counted(row: tuple) -> dict:
    count = sum(_unpacked(row[4]).values())
    return dict(zip(("minute", "cell_id", "metric", "writer", "histogram"), row)) | {"count": count}


def _put(table: str, *rows: dict) -> None:
    if rows:
        op.bulk_insert(sa.table(table, *(sa.column(name) for name in rows[0])), list(rows))


def _unpacked(blob: bytes) -> dict[int, int]:
    """Return bucket → count: a version byte, then (step of the bucket, count) as base-128 numbers, low digits first."""
    numbers, value, shift = [], 0, 0
    for byte in blob[1:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    found, bucket = {}, 0
    for step, count in zip(numbers[::2], numbers[1::2], strict=True):
        bucket += step
        found[bucket] = count
    return found


def _packed(counts: dict[int, int]) -> bytes:
    out, before = bytearray((1,)), 0
    for bucket in sorted(counts):
        for value in (bucket - before, counts[bucket]):
            while value > 0x7F:
                out.append(value & 0x7F | 0x80)
                value >>= 7
            out.append(value)
        before = bucket
    return bytes(out)

"""Day rows tell all of their compacted hours, not only those whose hour rows are gone; SQLite keeps roll-ups by their key.

Revision 0006, after 0005.
"""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

DAY = 1440
ACTIVITY_KEY = ("span", "minute", "cell_id", "key_id", "state")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _rebuild("WITHOUT ROWID")
    _add_activity(1)
    _add_latencies()


def downgrade() -> None:
    _add_activity(-1)
    op.execute("DELETE FROM latency_rollups WHERE span = 1440 AND minute IN "
               "(SELECT minute - minute % 1440 FROM latency_rollups WHERE span = 60)")
    op.execute("DELETE FROM activity_rollups WHERE span = 1440 AND requests = 0")
    if op.get_bind().dialect.name == "sqlite":
        _rebuild("")


def _rebuild(option: str) -> None:
    """Make both tables anew; their rows are found by nothing but their key."""
    for table in ("latency_rollups", "activity_rollups"):
        query = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name")
        made = op.get_bind().execute(query, {"name": table}).scalar_one()
        body = made.partition("(")[2].rpartition(")")[0]
        op.execute(f"CREATE TABLE {table}_new ({body}) {option}")
        op.execute(f"INSERT INTO {table}_new SELECT * FROM {table}")
        op.execute(f"DROP TABLE {table}")
        op.execute(f"ALTER TABLE {table}_new RENAME TO {table}")


def _add_activity(sign: int) -> None:
    """Add (or take away) the hours that have rows to the rows of their days."""
    columns = [column["name"] for column in sa.inspect(op.get_bind()).get_columns("activity_rollups")]
    sums = [name for name in columns if name not in ACTIVITY_KEY]
    added = ", ".join(f"{name} = activity_rollups.{name} + excluded.{name}" for name in sums)
    op.execute(
        f"INSERT INTO activity_rollups ({', '.join((*ACTIVITY_KEY, *sums))}) "
        f"SELECT {DAY}, minute - minute % {DAY}, cell_id, key_id, state, "
        f"{', '.join(f'{sign} * sum({name})' for name in sums)} FROM activity_rollups WHERE span = 60 "
        f"GROUP BY minute - minute % {DAY}, cell_id, key_id, state "
        f"ON CONFLICT ({', '.join(ACTIVITY_KEY)}) DO UPDATE SET {added}"
    )


def _add_latencies() -> None:
    table = sa.table(
        "latency_rollups", *(sa.column(name) for name in ("span", "minute", "cell_id", "metric", "writer", "count", "histogram"))
    )
    bind = op.get_bind()
    days = bind.execute(sa.select(table.c.minute).where(table.c.span == 60).distinct()).scalars()
    for day in sorted({minute - minute % DAY for minute in days}):
        inside = sa.or_(
            sa.and_(table.c.span == 60, table.c.minute.between(day, day + DAY - 1)),
            sa.and_(table.c.span == DAY, table.c.minute == day),
        )
        found: dict[tuple[int, str], list[bytes]] = {}
        for row in bind.execute(sa.select(table.c.cell_id, table.c.metric, table.c.histogram).where(inside)):
            found.setdefault((row[0], row[1]), []).append(row[2])
        bind.execute(sa.delete(table).where(table.c.span == DAY, table.c.minute == day))
        rows = []
        for (cell_id, metric), packed in found.items():
            merged = Counter()
            for blob in packed:
                merged.update(_unpacked(blob))
            rows.append({"span": DAY, "minute": day, "cell_id": cell_id, "metric": metric, "writer": "compacted",
                         "count": merged.total(), "histogram": _packed(merged)})
        bind.execute(sa.insert(table), rows)


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

"""Losslessness audits: sums by hour, arms and outcome; the answers that parted, with the place. Part of `Database`.

Written by `gateway.lossless.auditor`, read by `gateway.ops`. No text is kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from sqlalchemy import case, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import AuditFinding, AuditRollup
from gateway.db.records import clean, insert_for
from gateway.db.transactions import Transactions
from gateway.db.types import utc

KEEP_S = 90 * 86400.0
"""Findings are kept so long; sums stay."""
_KEY = ("hour", "task", "plain_arm", "spec_arm", "outcome")


class AuditResult(msgspec.Struct, kw_only=True):
    """One audited request."""

    request_id: str
    at: float
    """Unix time of the request."""
    task: str
    rule: str
    policy: str
    plain_arm: str
    spec_arm: str
    served: str
    """The path whose answer the client got."""
    outcome: str
    """`equal`, `near_tie`, `different`, `unexplained` (no log-probabilities to tell by) or `failed` (no answer)."""
    field: str = ""
    position: int | None = None
    token: int | None = None
    gap: float | None = None


class AuditSums(msgspec.Struct):
    """Audits of one speculative arm."""

    arm: str
    audited: int = 0
    """Those that got an answer."""
    equal: int = 0
    near_tie: int = 0
    different: int = 0
    unexplained: int = 0
    failed: int = 0
    largest_gap: float | None = None
    """Among those that parted, where known."""

    @property
    def parted(self) -> int:
        """Those whose answers were not equal."""
        return self.near_tie + self.different + self.unexplained


class Audits(Transactions):
    """The methods that `Database` inherits."""

    async def insert_audits(self, results: Sequence[AuditResult]) -> None:
        """Add results to the sums, keep those that parted, and let findings past their time go."""
        if not results:
            return
        parted = [result for result in results if result.outcome not in ("equal", "failed")]
        async with self._write() as connection:
            await _add(connection, results)
            if parted:
                rows = [clean({**msgspec.structs.asdict(one), "at": utc(one.at)}) for one in parted]
                await connection.execute(insert(AuditFinding), rows)
                await connection.execute(delete(AuditFinding).where(AuditFinding.at < utc(time.time() - KEEP_S)))

    async def audit_sums(self, since: float, until: float | None = None) -> list[AuditSums]:
        """Return the audits of each speculative arm between two Unix times, to the hour."""
        table = AuditRollup
        last = int((time.time() if until is None else until) // 3600)
        query = (
            select(table.spec_arm, table.outcome, func.sum(table.requests), func.max(table.largest_gap))
            .where(table.hour >= int(since // 3600), table.hour <= last)
            .group_by(table.spec_arm, table.outcome)
            .order_by(table.spec_arm)
        )
        sums: dict[str, AuditSums] = {}
        async with self._read() as connection:
            for arm, outcome, requests, gap in await connection.execute(query):
                into = sums.setdefault(arm, AuditSums(arm))
                setattr(into, outcome, int(requests))
                into.audited += int(requests) if outcome != "failed" else 0
                into.largest_gap = max((g for g in (into.largest_gap, gap) if g is not None), default=None)
        return list(sums.values())

    async def audit_findings(self, since: float, *, limit: int = 20) -> list[AuditResult]:
        """Return the newest answers that parted, newest first."""
        table = AuditFinding.__table__
        columns = [table.c[name] for name in AuditResult.__struct_fields__]
        query = select(*columns).where(table.c.at >= utc(since)).order_by(table.c.id.desc()).limit(limit)
        async with self._read() as connection:
            rows = [row._mapping for row in await connection.execute(query)]
        return [AuditResult(**{**row, "at": row["at"].timestamp()}) for row in rows]


async def _add(connection: AsyncConnection, results: Sequence[AuditResult]) -> None:
    """Add to the shared rows, in key order."""
    counts: dict[tuple[int, str, str, str, str], tuple[int, float | None]] = {}
    for one in results:
        key = (int(one.at // 3600), clean(one.task), clean(one.plain_arm), clean(one.spec_arm), one.outcome)
        number, gap = counts.get(key, (0, None))
        counts[key] = (number + 1, max((g for g in (gap, one.gap) if g is not None), default=None))
    for key, (number, gap) in sorted(counts.items(), key=lambda item: item[0]):
        row = dict(zip(_KEY, key, strict=True)) | {"requests": number, "largest_gap": gap}
        statement = insert_for(connection, AuditRollup)
        new = statement.excluded
        larger = case(
            (AuditRollup.largest_gap.is_(None), new.largest_gap),
            (new.largest_gap > AuditRollup.largest_gap, new.largest_gap),
            else_=AuditRollup.largest_gap,
        )
        added = {"requests": AuditRollup.requests + new.requests, "largest_gap": larger}
        await connection.execute(statement.on_conflict_do_update(index_elements=_KEY, set_=added), row)

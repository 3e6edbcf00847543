"""The tables. Seen by `gateway.db` and the migrations; everyone else asks `Database`.

requests           one row per request; the only one with retention in days
request_texts      prompt and answer of the requests whose rule says `store`; each row has its own end
cells              the key of a statistic (`CellKey`) ↔ a small number, so that roll-up rows stay small
latency_minutes    histograms per minute, cell, metric and writer (each gateway has its own rows: no lost updates)
activity_minutes   integer sums per minute, cell, API key and draw of the holdout (added to in place)
latency_packed     what hours, days and weeks have told of the minutes, and the minutes themselves for two days: one row
activity_packed    a span of time, and a metric
policy_versions    every policy text that was ever active, by content hash; policy_activations says when
decision_changes   the switch log: which arm replaced which, and the numbers that caused it
audit_rollups      losslessness audits: how many by hour, arms and outcome; audit_findings those that parted, no text
api_keys           hashed; audit_log says who changed what
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from gateway.db.types import BigId, JsonValue, UtcDateTime

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
CELL_COLUMNS = ("backend", "epoch", "method", "k", "task", "temperature", "context", "load")
MINUTE, HOUR, DAY, WEEK = 1, 60, 1440, 10080
"""What packed rows tell apart, minutes."""
PIECE = 15
"""Minutes of which one packed row tells each; the other rows cover their span."""
ACCEPTED_COLUMNS = 17
"""`accepted_0` … `accepted_16`: rounds with that many accepted draft tokens, the last for 16 and more."""


class Base(DeclarativeBase):
    """Common naming, so that migrations can address every constraint on both databases."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 — read by SQLAlchemy, a class attribute by its protocol
        datetime: UtcDateTime(),
        dict[str, Any]: JsonValue,
        list[Any]: JsonValue,
        int: BigInteger(),
        str: Text(),
        bytes: LargeBinary(),
    }


class Request(Base):
    """One request, as `RequestRecord` says; seconds unless named otherwise."""

    __tablename__ = "requests"
    __table_args__ = (Index(None, "at"), Index(None, "key_id", "at"), Index(None, "end_user", "at"))

    request_id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    endpoint: Mapped[str]
    model: Mapped[str]
    key_id: Mapped[str]
    end_user: Mapped[str]
    task: Mapped[str]
    confidence: Mapped[float]
    source: Mapped[str]
    backend: Mapped[str]
    method: Mapped[str]
    k: Mapped[int]
    epoch: Mapped[str]
    load: Mapped[int]
    rule: Mapped[str]
    policy: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    propensity: Mapped[float]
    incumbent: Mapped[str]
    stream: Mapped[bool]
    temperature: Mapped[float]
    status: Mapped[int]
    error_code: Mapped[str | None]
    finish_reason: Mapped[str | None]
    prompt_tokens: Mapped[int | None]
    completion_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]
    overhead_s: Mapped[float]
    ttft_s: Mapped[float | None]
    tpot_s: Mapped[float | None]
    e2e_s: Mapped[float]
    rounds: Mapped[int | None]
    drafted: Mapped[int | None]
    accepted: Mapped[int | None]
    zero_rounds: Mapped[int | None]
    fallback: Mapped[bool]
    loop: Mapped[bool]
    conversation: Mapped[str]
    decision: Mapped[dict[str, Any]]
    """The decision's numbers, vetoes and speculation."""
    spec: Mapped[dict[str, Any] | None]
    """Acceptance and cost in full, step lists included."""
    signals: Mapped[dict[str, Any]]


class RequestText(Base):
    """Prompt and answer of one request, as `StoredText` says."""

    __tablename__ = "request_texts"
    __table_args__ = (Index(None, "at"), Index(None, "expires_at"))

    request_id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    expires_at: Mapped[datetime]
    endpoint: Mapped[str]
    model: Mapped[str]
    key_id: Mapped[str]
    end_user: Mapped[str]
    task: Mapped[str]
    rule: Mapped[str]
    policy: Mapped[str]
    status: Mapped[int]
    prompt: Mapped[str]
    completion: Mapped[str]
    truncated: Mapped[bool]


class Cell(Base):
    """A `CellKey`."""

    __tablename__ = "cells"
    __table_args__ = (UniqueConstraint(*CELL_COLUMNS, name="uq_cells_key"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    backend: Mapped[str]
    epoch: Mapped[str]
    method: Mapped[str]
    k: Mapped[int]
    task: Mapped[str]
    temperature: Mapped[str] = mapped_column(String(16))
    context: Mapped[str] = mapped_column(String(16))
    load: Mapped[int]


class LatencyMinute(Base):
    """A packed `LogHistogram` of one metric in a minute that its hour does not tell yet."""

    __tablename__ = "latency_minutes"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  # read by SQLAlchemy; the key would be kept twice

    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Unix time // 60."""
    cell_id: Mapped[int] = mapped_column(ForeignKey("cells.id"), primary_key=True)
    metric: Mapped[str] = mapped_column(String(8), primary_key=True)
    writer: Mapped[str] = mapped_column(String(64), primary_key=True)
    histogram: Mapped[bytes]


class LatencyPacked(Base):
    """All histograms of one metric in a span of time, as `packed.pack_histograms` packs them."""

    __tablename__ = "latency_packed"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  # as above

    span: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """60 for an hour, 1440 for a day, 10080 for a week; 1 for 15 minutes that are still told apart."""
    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Unix time // 60 of its beginning (UTC)."""
    metric: Mapped[str] = mapped_column(String(8), primary_key=True)
    data: Mapped[bytes]
    """By minute (counted from the beginning) and cell."""


class ActivityPacked(Base):
    """All sums of a span of time, as `packed.pack` packs columns."""

    __tablename__ = "activity_packed"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  # as above

    span: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """As above."""
    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    keys: Mapped[list[Any]]
    """Ids of the API keys, which `data` names by their places."""
    data: Mapped[bytes]
    """Minute (counted from the beginning), cell, key, draw, then the sums of `activity_minutes` in its order."""


class ActivityMinute(Base):
    """Integer sums over the requests of one minute that its hour does not tell yet. Times in microseconds."""

    __tablename__ = "activity_minutes"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  # as above

    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cell_id: Mapped[int] = mapped_column(ForeignKey("cells.id"), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    draw: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Share of the holdout that could have held the request, in millionths; negative if it did, 0 if it could not."""
    requests: Mapped[int]
    failed: Mapped[int]
    """Anything but 200, clients' own mistakes and leaving included."""
    errors: Mapped[int]
    """What burns the error budget: 5xx, and streams that broke off."""
    fallbacks: Mapped[int]
    loops: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    overhead_us: Mapped[int]
    ttft_us: Mapped[int]
    e2e_us: Mapped[int]
    measured: Mapped[int]
    """Requests behind the next five sums: those that taught something about speed."""
    decode_tokens: Mapped[int]
    """Σ tokens after the first."""
    decode_us: Mapped[int]
    """Σ time from the first token to the last."""
    tokens_tokens: Mapped[int]
    """Σ tokens², for intervals with the request as the sampling unit; times in units of 100 µs here."""
    tokens_time: Mapped[int]
    time_time: Mapped[int]
    rounds: Mapped[int]
    drafted: Mapped[int]
    accepted: Mapped[int]
    zero_rounds: Mapped[int]
    undrafted: Mapped[int]
    draft_us: Mapped[int]
    verify_us: Mapped[int]
    plain_us: Mapped[int]
    """Σ time of undrafted steps."""
    expected_plain_us: Mapped[int]
    """Σ (tokens emitted by decode steps × T_plain expected at the request's own load and context)."""
    expected_round_plain_us: Mapped[int]
    """Σ (rounds × T_plain expected at the request's own load and context)."""
    accelerator_tokens: Mapped[int]
    """Σ tokens of those measured requests whose steps' times and batch are known: behind the next three."""
    accelerator_us: Mapped[int]
    """Σ (time of a request's decode steps ÷ mean number of sequences in them): its share of the accelerator."""
    tokens_accelerator: Mapped[int]
    accelerator_accelerator: Mapped[int]
    """Second moments as above, in units of 100 µs."""
    accepted_0: Mapped[int]
    accepted_1: Mapped[int]
    accepted_2: Mapped[int]
    accepted_3: Mapped[int]
    accepted_4: Mapped[int]
    accepted_5: Mapped[int]
    accepted_6: Mapped[int]
    accepted_7: Mapped[int]
    accepted_8: Mapped[int]
    accepted_9: Mapped[int]
    accepted_10: Mapped[int]
    accepted_11: Mapped[int]
    accepted_12: Mapped[int]
    accepted_13: Mapped[int]
    accepted_14: Mapped[int]
    accepted_15: Mapped[int]
    accepted_16: Mapped[int]


class PolicyVersion(Base):
    """A policy's text under its content hash."""

    __tablename__ = "policy_versions"

    hash: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    text: Mapped[str]
    created_at: Mapped[datetime]


class PolicyActivation(Base):
    """When which version became active, and through whom."""

    __tablename__ = "policy_activations"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    hash: Mapped[str] = mapped_column(ForeignKey("policy_versions.hash"))
    actor: Mapped[str]
    reason: Mapped[str] = mapped_column(server_default="")
    origin: Mapped[str] = mapped_column(String(16), server_default="file")
    """`file`, `api` or `rollback`."""


class DecisionChange(Base):
    """One line of the switch log."""

    __tablename__ = "decision_changes"
    __table_args__ = (Index(None, "at"), Index(None, "backend", "task", "band", "id"))

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    backend: Mapped[str]
    task: Mapped[str]
    band: Mapped[str]
    old_arm: Mapped[str]
    new_arm: Mapped[str]
    reason: Mapped[str]
    policy: Mapped[str]
    numbers: Mapped[dict[str, Any]]


class AuditRollup(Base):
    """Losslessness audits of an hour by their outcome (added to in place)."""

    __tablename__ = "audit_rollups"

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Unix time // 3600."""
    task: Mapped[str] = mapped_column(primary_key=True)
    plain_arm: Mapped[str] = mapped_column(primary_key=True)
    spec_arm: Mapped[str] = mapped_column(primary_key=True)
    outcome: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int]
    largest_gap: Mapped[float | None]


class AuditFinding(Base):
    """One audit whose answers parted, as `AuditResult` says."""

    __tablename__ = "audit_findings"
    __table_args__ = (Index(None, "at"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    request_id: Mapped[str]
    at: Mapped[datetime]
    task: Mapped[str]
    rule: Mapped[str]
    policy: Mapped[str]
    plain_arm: Mapped[str]
    spec_arm: Mapped[str]
    served: Mapped[str]
    outcome: Mapped[str]
    field: Mapped[str]
    position: Mapped[int | None]
    token: Mapped[int | None]
    gap: Mapped[float | None]


class ApiKey(Base):
    """An API key without its secret."""

    __tablename__ = "api_keys"

    key_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    role: Mapped[str] = mapped_column(String(16))
    hash: Mapped[str]
    may_force: Mapped[bool]
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class AuditEntry(Base):
    """Who changed what."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "at"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    details: Mapped[dict[str, Any]]

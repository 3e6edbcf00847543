"""First schema: requests, roll-ups, policy versions, switch log, keys, audit log.

Revision 0001, the first, made 2026-11-30 18:34:00.075798+00:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from gateway.db import types
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("may_force", sa.Boolean(), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("created_at", types.UtcDateTime(), nullable=False),
        sa.Column("revoked_at", types.UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", types.UtcDateTime(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    with op.batch_alter_table("audit_log", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_log_at"), ["at"], unique=False)

    op.create_table(
        "cells",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("temperature", sa.String(length=16), nullable=False),
        sa.Column("context", sa.String(length=16), nullable=False),
        sa.Column("load", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cells")),
        sa.UniqueConstraint(
            "backend", "epoch", "method", "k", "task", "temperature", "context", "load", name="uq_cells_key"
        ),
    )
    op.create_table(
        "decision_changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", types.UtcDateTime(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("band", sa.Text(), nullable=False),
        sa.Column("old_arm", sa.Text(), nullable=False),
        sa.Column("new_arm", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("numbers", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decision_changes")),
    )
    with op.batch_alter_table("decision_changes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_decision_changes_at"), ["at"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_decision_changes_backend_task_band_id"), ["backend", "task", "band", "id"], unique=False
        )

    op.create_table(
        "policy_versions",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_policy_versions")),
    )
    op.create_table(
        "requests",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("at", types.UtcDateTime(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("end_user", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("load", sa.BigInteger(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("propensity", sa.Double(), nullable=False),
        sa.Column("incumbent", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("overhead_s", sa.Double(), nullable=False),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("tpot_s", sa.Double(), nullable=True),
        sa.Column("e2e_s", sa.Double(), nullable=False),
        sa.Column("rounds", sa.BigInteger(), nullable=True),
        sa.Column("drafted", sa.BigInteger(), nullable=True),
        sa.Column("accepted", sa.BigInteger(), nullable=True),
        sa.Column("zero_rounds", sa.BigInteger(), nullable=True),
        sa.Column("fallback", sa.Boolean(), nullable=False),
        sa.Column("loop", sa.Boolean(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("decision", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("spec", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.Column("signals", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_requests")),
    )
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_requests_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_requests_end_user_at"), ["end_user", "at"], unique=False)
        batch_op.create_index(batch_op.f("ix_requests_key_id_at"), ["key_id", "at"], unique=False)

    op.create_table(
        "activity_rollups",
        sa.Column("span", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cell_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("fallbacks", sa.BigInteger(), nullable=False),
        sa.Column("loops", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("overhead_us", sa.BigInteger(), nullable=False),
        sa.Column("ttft_us", sa.BigInteger(), nullable=False),
        sa.Column("e2e_us", sa.BigInteger(), nullable=False),
        sa.Column("measured", sa.BigInteger(), nullable=False),
        sa.Column("decode_tokens", sa.BigInteger(), nullable=False),
        sa.Column("decode_us", sa.BigInteger(), nullable=False),
        sa.Column("tokens_tokens", sa.BigInteger(), nullable=False),
        sa.Column("tokens_time", sa.BigInteger(), nullable=False),
        sa.Column("time_time", sa.BigInteger(), nullable=False),
        sa.Column("rounds", sa.BigInteger(), nullable=False),
        sa.Column("drafted", sa.BigInteger(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("zero_rounds", sa.BigInteger(), nullable=False),
        sa.Column("undrafted", sa.BigInteger(), nullable=False),
        sa.Column("draft_us", sa.BigInteger(), nullable=False),
        sa.Column("verify_us", sa.BigInteger(), nullable=False),
        sa.Column("plain_us", sa.BigInteger(), nullable=False),
        sa.Column("expected_plain_us", sa.BigInteger(), nullable=False),
        sa.Column("expected_round_plain_us", sa.BigInteger(), nullable=False),
        sa.Column("accepted_0", sa.BigInteger(), nullable=False),
        sa.Column("accepted_1", sa.BigInteger(), nullable=False),
        sa.Column("accepted_2", sa.BigInteger(), nullable=False),
        sa.Column("accepted_3", sa.BigInteger(), nullable=False),
        sa.Column("accepted_4", sa.BigInteger(), nullable=False),
        sa.Column("accepted_5", sa.BigInteger(), nullable=False),
        sa.Column("accepted_6", sa.BigInteger(), nullable=False),
        sa.Column("accepted_7", sa.BigInteger(), nullable=False),
        sa.Column("accepted_8", sa.BigInteger(), nullable=False),
        sa.Column("accepted_9", sa.BigInteger(), nullable=False),
        sa.Column("accepted_10", sa.BigInteger(), nullable=False),
        sa.Column("accepted_11", sa.BigInteger(), nullable=False),
        sa.Column("accepted_12", sa.BigInteger(), nullable=False),
        sa.Column("accepted_13", sa.BigInteger(), nullable=False),
        sa.Column("accepted_14", sa.BigInteger(), nullable=False),
        sa.Column("accepted_15", sa.BigInteger(), nullable=False),
        sa.Column("accepted_16", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["cell_id"], ["cells.id"], name=op.f("fk_activity_rollups_cell_id_cells")),
        sa.PrimaryKeyConstraint("span", "minute", "cell_id", "key_id", "state", name=op.f("pk_activity_rollups")),
    )
    op.create_table(
        "latency_rollups",
        sa.Column("span", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cell_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("metric", sa.String(length=8), nullable=False),
        sa.Column("writer", sa.String(length=64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("histogram", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["cell_id"], ["cells.id"], name=op.f("fk_latency_rollups_cell_id_cells")),
        sa.PrimaryKeyConstraint("span", "minute", "cell_id", "metric", "writer", name=op.f("pk_latency_rollups")),
    )
    op.create_table(
        "policy_activations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", types.UtcDateTime(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["hash"], ["policy_versions.hash"], name=op.f("fk_policy_activations_hash_policy_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_activations")),
    )


def downgrade() -> None:
    op.drop_table("policy_activations")
    op.drop_table("latency_rollups")
    op.drop_table("activity_rollups")
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_requests_key_id_at"))
        batch_op.drop_index(batch_op.f("ix_requests_end_user_at"))
        batch_op.drop_index(batch_op.f("ix_requests_at"))

    op.drop_table("requests")
    op.drop_table("policy_versions")
    with op.batch_alter_table("decision_changes", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_decision_changes_backend_task_band_id"))
        batch_op.drop_index(batch_op.f("ix_decision_changes_at"))

    op.drop_table("decision_changes")
    op.drop_table("cells")
    with op.batch_alter_table("audit_log", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_log_at"))

    op.drop_table("audit_log")
    op.drop_table("api_keys")

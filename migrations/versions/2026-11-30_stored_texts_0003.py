"""Prompts and answers of the share of requests whose rule says `store`.

Revision 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.db import types

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "request_texts",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("at", types.UtcDateTime(), nullable=False),
        sa.Column("expires_at", types.UtcDateTime(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("end_user", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("completion", sa.Text(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_request_texts")),
    )
    op.create_index(op.f("ix_request_texts_at"), "request_texts", ["at"])
    op.create_index(op.f("ix_request_texts_expires_at"), "request_texts", ["expires_at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_request_texts_expires_at"), table_name="request_texts")
    op.drop_index(op.f("ix_request_texts_at"), table_name="request_texts")
    op.drop_table("request_texts")

"""Losslessness audits: sums by hour, and the answers that parted.

Revision 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.db import types

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_rollups",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("plain_arm", sa.Text(), nullable=False),
        sa.Column("spec_arm", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("largest_gap", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("hour", "task", "plain_arm", "spec_arm", "outcome", name=op.f("pk_audit_rollups")),
    )
    op.create_table(
        "audit_findings",
        sa.Column("id", types.BigId, autoincrement=True, nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("at", types.UtcDateTime(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("plain_arm", sa.Text(), nullable=False),
        sa.Column("spec_arm", sa.Text(), nullable=False),
        sa.Column("served", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=True),
        sa.Column("gap", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_findings")),
    )
    op.create_index(op.f("ix_audit_findings_at"), "audit_findings", ["at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_audit_findings_at"), table_name="audit_findings")
    op.drop_table("audit_findings")
    op.drop_table("audit_rollups")

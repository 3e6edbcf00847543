"""Each request's share of the accelerator, summed with its second moments.

Revision 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = ("accelerator_tokens", "accelerator_us", "tokens_accelerator", "accelerator_accelerator")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("activity_rollups", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("activity_rollups", name)

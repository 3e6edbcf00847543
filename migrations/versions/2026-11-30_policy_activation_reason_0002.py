"""Policy activations: why, and from where (a file, the API, a roll-back).

Revision 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("policy_activations") as table:
        table.add_column(sa.Column("reason", sa.Text(), nullable=False, server_default=""))
        table.add_column(sa.Column("origin", sa.String(length=16), nullable=False, server_default="file"))


def downgrade() -> None:
    with op.batch_alter_table("policy_activations") as table:
        table.drop_column("origin")
        table.drop_column("reason")

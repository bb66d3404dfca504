"""the class of what a run failed of (runs.failure)"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("failure", sa.String(16)))

"""the rule that may stop a run early (runs.stopping)"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("stopping", sa.JSON))

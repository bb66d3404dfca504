"""what a run is at (runs.stage), and an index by which replicates are found"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("runs", sa.Column("stage", sa.String))
    op.create_index("ix_runs_config_hash", "runs", ["config_hash"])

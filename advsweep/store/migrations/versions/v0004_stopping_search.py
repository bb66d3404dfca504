"""the rule that may stop a run early (runs.stopping), and the trials of searches"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("runs", sa.Column("stopping", sa.JSON))
    op.create_table(
        "trials",
        sa.Column("sweep_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("config_hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("sweep_id", "number", name="pk_trials"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_trials_sweep_id_sweeps"),
    )

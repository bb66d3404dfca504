"""analyses of runs' weights and hidden states (analyses)"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "analyses",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
        sa.Column("directions", sa.LargeBinary),
        sa.PrimaryKeyConstraint("run_id", "identity", name="pk_analyses"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_analyses_run_id_runs"),
    )

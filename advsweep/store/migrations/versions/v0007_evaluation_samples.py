"""some answers of each evaluation (evaluation_samples)"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "evaluation_samples",
        sa.Column("evaluation_id", sa.Integer, nullable=False),
        sa.Column("answers", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("evaluation_id", name="pk_evaluation_samples"),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
            name="fk_evaluation_samples_evaluation_id_evaluations",
            ondelete="CASCADE",
        ),
    )

"""how often each right answer came, and the KL to the base (evaluations.right_counts, kl_base)"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("evaluations", sa.Column("kl_base", sa.LargeBinary))
    op.add_column("evaluations", sa.Column("right_counts", sa.LargeBinary))

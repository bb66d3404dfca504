"""the entropy of right answers of each problem (evaluations.right_entropy)"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("evaluations", sa.Column("right_entropy", sa.LargeBinary))

"""the first schema: runs, sweeps, metrics, checkpoints and evaluations"""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: new stores are created with the newest schema."""

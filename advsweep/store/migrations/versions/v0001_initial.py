"""the first schema: runs, sweeps, metrics, checkpoints and evaluations"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "sweeps",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("created", time, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.UniqueConstraint("name", name="uq_sweeps_name"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("config_hash", sa.String(64), nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("estimator", sa.String, nullable=False),
        sa.Column("backend", sa.String, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("environment", sa.JSON),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("created", time, nullable=False),
        sa.Column("started", time),
        sa.Column("finished", time),
        sa.Column("heartbeat", time),
        sa.Column("host", sa.String),
        sa.Column("pid", sa.Integer),
        sa.Column("process_started", sa.Double),
        sa.Column("stop_requested", sa.Boolean, nullable=False),
        sa.Column("error", sa.String),
        sa.Column("traceback", sa.String),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("identity", "attempt", name="uq_runs_identity_attempt"),
    )
    op.create_index("ix_runs_status", "runs", ["status"])
    op.create_table(
        "sweep_runs",
        sa.Column("sweep_id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("sweep_id", "run_id", name="pk_sweep_runs"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_sweep_runs_sweep_id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_sweep_runs_run_id"),
    )
    op.create_index("ix_sweep_runs_run_id", "sweep_runs", ["run_id"])
    op.create_table(
        "metrics",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_metrics"),
        sa.UniqueConstraint("name", name="uq_metrics_name"),
    )
    op.create_table(
        "points",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("metric_id", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("value", sa.Double),
        sa.PrimaryKeyConstraint("run_id", "metric_id", "step", name="pk_points"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_points_run_id"),
        sa.ForeignKeyConstraint(["metric_id"], ["metrics.id"], name="fk_points_metric_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "summaries",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("metric_id", sa.Integer, nullable=False),
        sa.Column("value", sa.Double),
        sa.PrimaryKeyConstraint("run_id", "metric_id", name="pk_summaries"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_summaries_run_id"),
        sa.ForeignKeyConstraint(["metric_id"], ["metrics.id"], name="fk_summaries_metric_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("path", sa.String, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("created", time, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "path", name="pk_checkpoints"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_checkpoints_run_id"),
    )
    op.create_table(
        "problem_sets",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("problems", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_problem_sets"),
        sa.UniqueConstraint("digest", name="uq_problem_sets_digest"),
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("task", sa.String, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("created", time, nullable=False),
        sa.Column("problem_set_id", sa.Integer, nullable=False),
        sa.Column("n", sa.LargeBinary, nullable=False),
        sa.Column("c", sa.LargeBinary, nullable=False),
        sa.Column("distinct", sa.LargeBinary, nullable=False),
        sa.Column("unscorable", sa.LargeBinary, nullable=False),
        sa.Column("answer_entropy", sa.LargeBinary, nullable=False),
        sa.Column("token_entropy", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_evaluations"),
        sa.UniqueConstraint("identity", name="uq_evaluations_identity"),
        sa.ForeignKeyConstraint(
            ["problem_set_id"], ["problem_sets.id"], name="fk_evaluations_problem_set_id"
        ),
    )
    op.create_table(
        "run_evaluations",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("evaluation_id", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "evaluation_id", name="pk_run_evaluations"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_evaluations_run_id"),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name="fk_run_evaluations_evaluation_id"
        ),
    )

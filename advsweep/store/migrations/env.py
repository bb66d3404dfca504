"""Runs the migrations for alembic, on the connection of `advsweep.store.schema_version`."""

from alembic import context

from advsweep.store.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()

"""Runs the migrations for alembic, on the connection of `advsweep.store.schema_version`."""

from alembic import context

from advsweep.store.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()

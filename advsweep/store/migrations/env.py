"""What alembic runs: the migrations, on the connection that `advsweep.store.schema` hands in."""

from alembic import context

from advsweep.store.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()

"""The scheduler: starts the runs of a plan, supervises their workers and records how they end."""

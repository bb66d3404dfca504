"""External experiment trackers: fed by a thread during the runs, or synced after them."""

"""External experiment trackers: fed by a process of its own, or synced after the runs."""

"""Runs in trackers of others: fed by a process of its own, or sent when they are done."""

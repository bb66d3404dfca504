"""Searches: Optuna suggests trials, the scheduler trains them, the store has the results."""

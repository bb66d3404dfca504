"""Objectives: what turns advantages and log-probabilities into a loss."""

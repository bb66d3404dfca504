"""Analyses of an advsweep run's weights and hidden states: two commands and their columns."""

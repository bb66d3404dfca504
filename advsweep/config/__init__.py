"""Typed settings, composition of configurations, and spaces of runs."""

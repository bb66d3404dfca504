"""Plans: what a sweep runs, built and checked before anything starts."""

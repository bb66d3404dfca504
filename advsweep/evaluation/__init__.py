"""Evaluation: counts of correct answers among n samples per problem, for every backend."""

"""Runs programs of a model against tests: on this machine under limits, or on a server.

One process runs the program and another the tests. Only plain data passes between them. What the
processes can reach depends on the isolation (see `inside`).
"""

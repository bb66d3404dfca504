"""Makes runs of the logs of other trainers, so that reports work on them.

`advsweep.logs` has the readers; no worker claims an imported run.
"""

"""From an idea to a verdict: an estimator is checked, tuned, and raced against RLOO.

It composes what sweeps and reports do. Its sweeps are ordinary ones: they resume by themselves, and
`advsweep report`, `show` and `plot` read them.
"""

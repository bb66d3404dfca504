"""Lists of claims about runs, and whether the runs of a store support them."""

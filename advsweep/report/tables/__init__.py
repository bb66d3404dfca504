"""The tables of a report: rows, comparisons, and how each format writes them."""

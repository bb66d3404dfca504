"""Claims about runs, and whether the store supports them."""

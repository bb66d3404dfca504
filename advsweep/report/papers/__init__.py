"""Published numbers, and tables laid out as in the papers."""

"""The history of the store's schema, one file per change."""

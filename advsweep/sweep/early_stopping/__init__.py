"""Early stopping: rules as pure functions of curves, and the check that applies them."""

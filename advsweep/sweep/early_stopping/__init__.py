"""Rules that stop runs early, as pure functions of curves, and who applies them."""

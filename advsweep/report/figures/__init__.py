"""Figures, drawn from plain numbers; matplotlib is imported when one is drawn."""

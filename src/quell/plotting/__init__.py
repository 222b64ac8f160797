"""Figures: no training, no measuring; matplotlib is imported when a figure is drawn."""

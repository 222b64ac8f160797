"""Figures. Nothing here trains or measures; matplotlib is imported when a figure is drawn."""

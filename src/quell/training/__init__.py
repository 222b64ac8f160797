"""Training: the loop from an objective and data to fitted parameters, and its hooks."""

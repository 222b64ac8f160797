"""Where the noise of a gradient comes from, its price in time, and which estimator to use."""

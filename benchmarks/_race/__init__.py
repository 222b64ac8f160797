"""The parts of the race: problems, bounds, contestants, runs, tuning, experts and the page."""

"""Benchmarks of the library, and the field of estimators that the commands compare."""

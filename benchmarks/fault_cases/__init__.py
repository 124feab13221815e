"""Cases for `python -m benchmarks.faults`, one module for each kind."""

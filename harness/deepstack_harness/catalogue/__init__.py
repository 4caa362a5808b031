"""Known faults, expected failures, names of everything that can be run, and the cases that follow."""

"""Known faults, expected failures, names of what can be run, and the cases that follow from them."""

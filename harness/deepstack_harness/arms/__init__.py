"""Ways to run a decoder: one file per kind of session."""

"""Settings of the environment."""

ROWS = False

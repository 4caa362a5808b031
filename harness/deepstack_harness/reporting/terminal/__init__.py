"""Tables and lines for a terminal."""

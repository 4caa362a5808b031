"""Deepstack buffers whose storage grows in blocks of rows."""

BLOCK = 8
"""Rows of a block."""

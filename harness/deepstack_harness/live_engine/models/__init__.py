"""Tiny models with random weights, one family a file, as an engine loads them."""

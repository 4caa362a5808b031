"""How an engine drives a buffer and a decoder: one that does it right, and those that were seen not to."""

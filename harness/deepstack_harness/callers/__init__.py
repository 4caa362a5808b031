"""Ways in which an engine drives a buffer and a decoder: a correct one, and faults that were reported."""

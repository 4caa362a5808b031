"""An engine whose decoder is given the deepstack levels of a step as an argument."""

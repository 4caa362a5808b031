"""Released semantics of deepstack buffers, one file per model, and `reference`, which keeps every rule."""

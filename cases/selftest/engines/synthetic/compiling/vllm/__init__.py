"""A package `vllm` with what our plugin touches: models are compiled, captured, cached; plugins are found."""

__version__ = "0.99.0"

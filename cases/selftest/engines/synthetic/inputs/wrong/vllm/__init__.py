"""A package of an engine."""

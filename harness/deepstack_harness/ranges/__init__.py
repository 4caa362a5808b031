"""Placeholder ranges (vLLM 40143, rule R12): ours, those of a source, and their cost."""

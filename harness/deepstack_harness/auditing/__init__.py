"""Verdicts over the classes and helpers of a package source."""

"""Audits of the classes and helpers of a package source."""

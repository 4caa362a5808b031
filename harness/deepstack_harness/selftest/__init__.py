"""Proof that every mutant is caught by its rule, and the reference by none."""

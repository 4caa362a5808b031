"""Judges: one function per rule, from (Case, Observation) to a Judgement.  No torch here."""

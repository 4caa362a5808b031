"""Oracles: one function per rule, from an observed case to a judgement. No torch here."""

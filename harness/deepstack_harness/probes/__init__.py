"""Probes: one file for each thing that is measured; they state facts and never judge them."""

"""Runs what was planned, and hands out what came of it."""

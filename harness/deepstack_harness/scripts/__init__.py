"""Standalone programs and pytest files of incidents: what one attaches to an upstream issue."""

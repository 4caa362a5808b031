"""Requests as users send them, and the schedule that turns them into traces; no torch."""

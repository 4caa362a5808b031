"""A real engine end to end: its environment, tiny models, schedules of requests, oracles."""

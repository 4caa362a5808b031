"""What users ask of an engine: requests, and the schedule that turns them into traces; no torch."""

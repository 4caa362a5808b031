"""Cases whose ranks share steps, played in real process groups."""

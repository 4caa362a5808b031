"""Facts that probes hand to oracles, one file for each kind of measurement."""

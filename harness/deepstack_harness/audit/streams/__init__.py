"""Dual-stream projections (R13): a recording device, ways to project, subgraphs."""

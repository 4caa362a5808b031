"""Dual-stream projections (R13): a recording device, a model checker, ways to project, subgraphs."""

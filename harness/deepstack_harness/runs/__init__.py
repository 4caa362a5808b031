"""Runs of the matrix: planned, played in pools of workers, stored, compared, and done every night.

In a run's folder `run.json` describes what was run and where, `rows.jsonl` has one judgement a line and
`cases.jsonl` one case; shards that share a folder have files of their own (`rows-1of3.jsonl`).

Private: what is public is imported from `deepstack_harness` itself.
"""

"""A run's folder: written line by line, read back as pandas frames, compared with earlier runs.

`run.json` says what was run and where, `rows.jsonl` has one judgement a line, `cases.jsonl` one
case; shards that share a folder have files of their own (`rows-1of3.jsonl`).
"""

from deepstack_harness.results.read import Run, read_run

__all__ = ["Run", "read_run"]

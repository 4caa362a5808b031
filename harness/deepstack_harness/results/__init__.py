"""Runs on the disk: written line by line, read back typed or as pandas frames, compared with earlier runs.

`run.json` says what was run and where, `rows.jsonl` has one judgement a line, `cases.jsonl` one
case; shards that share a folder have files of their own (`rows-1of3.jsonl`).
"""

from deepstack_harness.results.frames import RunFrames, read_run

__all__ = ["RunFrames", "read_run"]

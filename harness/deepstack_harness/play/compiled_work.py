"""Imports of a worker that compiles, before its first case: `play.work`, and Dynamo, which takes 1.6 s more.

A fork server imports it once for all workers of a run.
"""

from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.play import work

dynamo.load()

__all__ = ["work"]

"""vLLM #40932 (0.20.2 .. 0.22.1): the checks are gone, the None return stays."""

from deepstack_harness.revisions.pr40145 import Pr40145Buffer


class Pr40932Buffer(Pr40145Buffer):
    """None when empty; any other count is sliced, fewer rows above the capacity."""

    def _check(self, tokens: int, call: str) -> None:
        """Accept every count."""

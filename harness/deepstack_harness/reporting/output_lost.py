"""The loss of stdout, which ends a command."""


class OutputLost(Exception):
    """Stdout cannot be written to; `reason` is None where its reader left, as `| head` does."""

    def __init__(self, error: OSError) -> None:
        self.reason = None if isinstance(error, BrokenPipeError) else error.strerror
        super().__init__(self.reason)

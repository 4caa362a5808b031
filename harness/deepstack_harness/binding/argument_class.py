"""An engine whose payload is an argument, as a `BufferFactory`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from deepstack_harness.binding.argument_buffer import ArgumentBuffer, ArgumentEngine, ReplayedArgument
from deepstack_harness.binding.argument_files import ArgumentCut
from deepstack_harness.binding.bound_class import misses_package, rehearsing
from deepstack_harness.binding.define import place_of
from deepstack_harness.errors import UsageError

MakeEngine = Callable[..., ArgumentEngine]
"""Makes an engine of a cut, and of the arguments of a `BufferFactory`."""


@dataclass(frozen=True)
class Rehearsal:
    """The end of a rehearsal: whether graphs were driven, and what they lose, or why they were not."""

    replays: bool = False
    said: str = ""


@dataclass(frozen=True)
class ArgumentClass:
    """A text model of one source, with the engine around it that `make` makes.

    `kinds` are the stand-ins: an attribute that one of them lacks is no fault of the engine.
    """

    of: ArgumentCut
    make: MakeEngine
    kinds: tuple[type, ...] = ()
    replays: bool = False

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ArgumentBuffer:
        """Make the engine; raise `UsageError` for what needs the whole package."""
        engine = self.make(self.of, capacity, hidden, levels, dtype=dtype, device=device)
        return ReplayedArgument(engine) if self.replays else ArgumentBuffer(engine)

    def under_graphs(self) -> "ArgumentClass":
        """Return the class with steps that the engine's own runner replays."""
        return replace(self, replays=True)

    @property
    def model_class(self) -> str:
        """The text model's own name."""
        return self.of.text.cut.class_name

    @property
    def filename(self) -> str:
        """The file that the text model was cut from, as tracebacks show it."""
        return self.of.text.cut.filename

    def rehearse(self) -> Rehearsal:
        """Run a text step and a visual one, with graphs where there are any.

        Raises `UsageError` where a step needs what only the whole package has.
        """
        try:
            engine = self.make(self.of, 4, 5, 3, dtype=torch.float32, device=torch.device("cpu"))
        except Exception as error:
            raise self._refusal(error, ".__init__") from error
        visual = torch.ones(3, 3, 5)
        try:
            engine.eager(4, None)
        except Exception as error:  # every release serves text: what fails here is around the text model
            raise self._refusal(error) from error
        self._tried(lambda: engine.eager(4, visual))
        if isinstance(self.of.replay, str):
            return Rehearsal(said=f"its graphs are not driven: {self.of.replay}")
        try:
            self._tried(lambda: engine.capture(4))
            self._tried(lambda: engine.replay(4, 4, visual))
        except UsageError as error:
            return Rehearsal(said=f"its graphs are not driven: {error}")
        lost = sorted(engine.given - engine.captured)
        names, captured = ", ".join(lost), ", ".join(sorted(engine.captured))
        said = f"{names} has no static slot: a graph is captured with {captured} alone" if lost else ""
        return Rehearsal(replays=True, said=said)

    def _tried(self, steps: Callable[[], object]) -> None:
        """Run steps; raise `UsageError` where they miss something.  All else is the engine's own fault."""
        with rehearsing(self._refusal, self._misses):
            steps()

    def _misses(self, error: Exception) -> bool:
        return misses_package(error) or isinstance(getattr(error, "obj", None), self.kinds)

    def _refusal(self, error: Exception, method: str = "") -> UsageError:
        where = place_of(error, self.filename)
        return UsageError(
            f"{where}: {self.model_class}{method} cannot be run without the rest of its package: {error}"
        )

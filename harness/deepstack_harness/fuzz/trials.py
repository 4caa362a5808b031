"""Hunts whose outcome is known: each mutant must be caught only by its rule, right buffers by no rule."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deepstack_harness.catalogue.buffers import ALL_MUTANTS, CORRECT

CONTROL = "reference"
"""The buffer in which no broken rule may be found."""
_RIGHT = "right buffer"
"""The class of a buffer that has no fault."""
_LIVE_ARM, _CAPTURED_ARM = "eager", "eager/full"


@dataclass(frozen=True)
class Effort:
    """Length of a hunt: examples in all, how many of them after the first finding, and on a right buffer."""

    examples: int
    extra: int
    on_right: int


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "eager/stock": Effort(12, 0, 0),
        "eager/full_decode_only": Effort(100, 10, 25),
        _CAPTURED_ARM: Effort(100, 10, 25),
        _LIVE_ARM: Effort(1200, 15, 200),
    }
)
"""Arms that mutants are hunted under, expensive arms first: the hunt that starts last must be a short one.

Every mutant is caught within so many examples; on the control all of them find nothing.
"""


@dataclass(frozen=True)
class Trial:
    """A hunt: the buffer's name, the rule that it breaks (None for a right one), the arm, and the effort.

    `fault` is the class of the mutant's fault.
    """

    subject: str
    rule: str | None
    arm: str
    examples: int
    extra: int
    seed: int
    fault: str = ""


@dataclass(frozen=True)
class Proof:
    """Result of a trial: every rule that was found broken, and a finding with its shrunk trace.

    `examples` is the number of the example with the first finding, or of all where there is no finding.
    """

    trial: Trial
    broken: tuple[str, ...]
    examples: int
    seconds: float
    trace: str = ""
    detail: str = ""
    checked: int = 0
    """Traces of `check` that were played: up to the first that breaks the stated rule, or all."""
    broken_by_check: tuple[str, ...] = ()
    """The stated rule if a trace of `check` in the regime of the arm breaks it; for a right buffer any."""
    axes: tuple[str, ...] = ()
    """Axes of inputs without which neither the shrunk trace nor any trace of `check` shows the fault."""

    @property
    def holds(self) -> bool:
        """Return whether exactly the stated rule was found, and `check` finds no other rule.

        For a right buffer, neither finds any.
        """
        stated = (self.trial.rule,) if self.trial.rule else ()
        return not self.failed and self.broken == stated and self.broken_by_check in ((), stated)

    @property
    def failed(self) -> bool:
        """Return whether the worker did not play; `detail` has the reason."""
        return self.examples == 0

    @property
    def caught_by_check(self) -> int | None:
        """Number of the trace of `check` that shows the fault, from 1; None if none does."""
        return self.checked if self.broken_by_check else None


def trials_for(mutants: Iterable[str], seed: int, *, right: bool = True) -> list[Trial]:
    """Return a trial for each mutant, and one of the control for each arm that these take.

    With `right` also one for each right buffer, under each arm in which it is right. Raises `ValueError` for
    a mutant whose arm is not in `EFFORTS`.
    """
    wanted = [*mutants]
    arms = {ALL_MUTANTS[name].arm for name in wanted}
    if unknown := arms - EFFORTS.keys():  # else its mutants would be left out, and all others caught
        raise ValueError(f"no effort is stated for arm {min(unknown)}, which a mutant needs")
    return [
        trial
        for arm, effort in EFFORTS.items()
        for trial in (
            *(_controls(arm, effort, seed, right=right) if arm in arms else ()),
            *(
                Trial(name, str(mutant.rule), arm, effort.examples, effort.extra, seed, mutant.fault)
                for name in wanted
                for mutant in (ALL_MUTANTS[name],)
                if mutant.arm == arm
            ),
        )
    ]


def _controls(arm: str, effort: Effort, seed: int, *, right: bool) -> Iterator[Trial]:
    yield Trial(CONTROL, None, arm, effort.examples, effort.extra, seed, _RIGHT)
    for name, buffer in CORRECT.items() if right and effort.on_right else ():
        if arm == _LIVE_ARM or buffer.regimes == "both":
            yield Trial(name, None, arm, effort.on_right, effort.extra, seed, _RIGHT)

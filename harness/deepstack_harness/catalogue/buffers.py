"""Buffers by name: revisions, mutants, right buffers, and those that other installed packages declare.

All are read from their files without importing them, which would cost torch.

- Revisions: classes of `models/revisions.py`, `per_layer_inputs.py` and `reference.py` whose name ends in
  `Buffer`.
- Mutants: every class of `models/mutants/r*.py`; the file is named after the rule that it breaks. Its class
  attributes give the arm under which the fault shows (`arm`, by default `eager`) and the class of faults to
  which it belongs: `on_inputs` where only unusual inputs show it, otherwise `fault`, by default the word for
  the rule. The first line of its docstring states the fault.
- Right buffers: every class of `models/correct.py`. Its attribute `regimes` states in which it is right.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from typing_extensions import TypeIs

from deepstack_harness.catalogue.registry import MODELS, read_classes
from deepstack_harness.contract.names import Entry, Names
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule


@dataclass(frozen=True)
class CorrectBuffer(Entry):
    """A right buffer, and the regimes in which it is right: `live` or `both`."""

    regimes: str = field(kw_only=True)


@dataclass(frozen=True)
class Mutant(Entry):
    """A buffer with one deliberate fault: the rule it breaks, and the arm under which that shows.

    `fault` is the class of the fault, such as `layout` of a payload. `on_inputs`: only unusual payloads and
    histories show it.
    """

    rule: Rule = field(kw_only=True)
    arm: str = field(kw_only=True)
    fault: str = field(kw_only=True)
    on_inputs: bool = field(kw_only=True)


def buffer_named(name: str) -> BufferFactory:
    """Return the class of the buffer called `name`, such as `pr43617` or `copies_on_get`.

    Raises `UsageError` for an unknown name, and for a class of another package that cannot be used.
    """
    return BUFFERS.load(name, _makes_buffers, "a class or function that makes buffers")


def _makes_buffers(loaded: object) -> TypeIs[BufferFactory]:
    return callable(loaded)


_REVISIONS = ("revisions.py", "per_layer_inputs.py", "reference.py")


def _read_revisions() -> Iterator[tuple[str, Entry]]:
    for cls in chain.from_iterable(read_classes(MODELS / file) for file in _REVISIONS):
        if cls.target.endswith("Buffer"):
            yield cls.name.removesuffix("_buffer"), Entry(cls.target, cls.summary)


def read_correct(file: Path) -> dict[str, CorrectBuffer]:
    """Read the right buffers of a file by name; raises `ValueError` for one that states no `regimes`."""
    correct = {}
    for cls in read_classes(file):
        if "regimes" not in cls.stated:
            raise ValueError(f"{cls.target} does not say in which regimes it is right")
        correct[cls.name] = CorrectBuffer(cls.target, cls.summary, regimes=str(cls.stated["regimes"]))
    return correct


def read_mutants(folder: Path) -> dict[str, Mutant]:
    """Read the mutants of `folder/r*.py`, in the order of the rules and of the classes.

    Raises `ValueError` for a file that is not named after a rule.
    """
    mutants = {}
    for file in folder.glob("r*.py"):
        rule = Rule(file.stem.upper())
        for cls in read_classes(file, "deepstack_harness.models.mutants"):
            stated = {"arm": "eager", "fault": rule.word, **cls.stated}
            mutants[cls.name] = Mutant(
                cls.target,
                cls.summary,
                rule=rule,
                arm=str(stated["arm"]),
                fault=str(stated.get("on_inputs", stated["fault"])),
                on_inputs="on_inputs" in stated,
            )
    order = list(Rule)
    return dict(sorted(mutants.items(), key=lambda item: order.index(item[1].rule)))


REVISIONS = Names("revision", dict(_read_revisions()), "revisions")
"""Buffers as they were released or proposed, the reference, and what other packages declare."""

ALL_MUTANTS: Mapping[str, Mutant] = MappingProxyType(read_mutants(MODELS / "mutants"))
"""Faulty variants of `reference`, every one: what `selftest` hunts for."""

MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {name: mutant for name, mutant in ALL_MUTANTS.items() if not mutant.on_inputs}
)
"""Those whose fault shows on ordinary payloads; the others need unusual ones (`catalogue.traces`)."""

CORRECT: Mapping[str, CorrectBuffer] = MappingProxyType(read_correct(MODELS / "correct.py"))
"""Right buffers that do not inherit from `reference`: a harness that refuses one is wrong."""

BUFFERS = Names("revision", {**REVISIONS.own, **ALL_MUTANTS, **CORRECT}, "revisions")
"""Every buffer that has a name: revisions of ours and of other packages, mutants and right buffers."""

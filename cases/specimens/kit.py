"""The one format of a planted fault: a function that returns a region and its steps, with a header.

    @specimen(breaks="I1", names="mask")
    def optional_tensor() -> Made:
        return Scorer(), [Call(rows(4)), Call(rows(4, 1), mask=rows(4, 2))]

Steps are those of `compile_steps`; a third member holds its keywords. `deepstack-harness steps FILE.py:NAME`
runs it, and `deepstack-harness watch -- python -m cases.specimens NAME` as a program that drops its guards.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypeIs

from deepstack_harness.catalogue.incidents import STEPS, catalogue
from deepstack_harness.catalogue.regions import REGIONS
from deepstack_harness.catalogue.registry import HISTORIES
from deepstack_harness.play.loading import load_named

Made = tuple[Any, ...]
"""A callable, its steps, and where there are any keywords of `compile_steps`."""


@dataclass(frozen=True)
class Specimen:
    """A program or buffer, and what is right of it: `breaks` is what breaks under its arms, "" for nothing.

    `program` returns `Made`, or makes a buffer, whose `breaks` is a rule and not a promise.
    `names` is a part of the name of the input that is to blame, `fact` what a replay has of it that differs,
    `source` the collection that it is of. The report of `steps` has all `words`, and not the text of `never`.
    Under `eager/stock` each is right where `kept_by_guards`.
    """

    name: str
    program: Callable[..., Any]
    breaks: str = ""
    names: str = ""
    arms: tuple[str, ...] = ("eager/drop_all",)
    warm_up: int = 1
    fact: str = ""
    source: str = "programs"
    words: tuple[str, ...] = ()
    never: str = ""

    @property
    def generates_code(self) -> bool:
        return "inductor" in " ".join(self.arms)

    @property
    def kept_by_guards(self) -> bool:
        return self.source == "programs" and "eager/drop_all" in self.arms and "eager/stock" not in self.arms


PROGRAMS: dict[str, Specimen] = {}


def specimen(
    breaks: str = "",
    names: str = "",
    arms: str = "eager/drop_all",
    warm_up: int = 1,
    fact: str = "",
    **said: Any,  # `words` and `never`
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Enter a function into `PROGRAMS`; arms are separated by spaces."""

    def enter(program: Callable[[], Made]) -> Callable[[], Made]:
        name = program.__name__
        assert name not in PROGRAMS, name
        PROGRAMS[name] = Specimen(name, program, breaks, names, tuple(arms.split()), warm_up, fact, **said)
        return program

    return enter


def regions() -> Iterator[Specimen]:
    """Yield the regions of `selftest` as specimens."""
    for name, region in REGIONS.items():
        made: Any = load_named(region.target)
        asked = {
            key: None if key in made.unfit_options.split() else getattr(made, key)
            for key in ("neutral", "live", "split")
        }

        def program(made: Any = made, asked: dict[str, Any] = asked) -> Made:  # noqa: ANN401
            return *made.make(), asked

        promise = str(region.promise or "")
        yield Specimen(name, program, promise, arms=region.arms, warm_up=made.warm_up, source="regions")


def histories() -> Iterator[Specimen]:
    """Yield the programs of incidents as specimens, one for each run; promises are separated by spaces."""
    for incident in (incident for incident in catalogue() if incident.system == STEPS):
        for run in incident.region:
            for name in run.programs or incident.revisions:
                program: Any = HISTORIES.load(
                    name, _is_program, "a function that returns a region and its calls"
                )
                promises = run.broken.get(name, ())
                yield Specimen(
                    name, program, " ".join(map(str, promises)), run.input if promises else "", run.arms,
                    source="histories",
                )  # fmt: skip


def _is_program(loaded: object) -> TypeIs[Callable[[], object]]:
    return callable(loaded)

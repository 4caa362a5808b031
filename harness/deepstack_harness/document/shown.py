"""A row in words: its rule, figure, limit, place, reach and reason, for whatever renders it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deepstack_harness.catalogue.orders import DEFAULT, FLAG, LATENT, UNKNOWN, reach_kind
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.verdicts import Effect, FaultKind, Row
from deepstack_harness.document.blocks import Document, Line
from deepstack_harness.text import number, one_line


@dataclass(frozen=True)
class Shown:
    """The words of a row; a part that the row does not have is empty.

    >>> from deepstack_harness.contract.verdicts import Verdict
    >>> row = Row(
    ...     rule=Rule.BOUNDARY,
    ...     verdict=Verdict.FAIL,
    ...     revision="pr40145",
    ...     trace="cap 16: get 4",
    ...     arm="eager",
    ...     value=3,
    ...     limit=0,
    ...     unit="rows",
    ...     detail="zeros",
    ... )
    >>> shown(row).sentence
    "R2 boundary: 3 rows, limit 0, on 'cap 16: get 4' under eager: zeros"
    """

    name: str
    figure: str
    limit: str
    place: str
    reach: str
    reason: str

    @property
    def measured(self) -> str:
        """The figure against its limit: `3 rows, limit 0`."""
        return ", ".join(filter(None, [self.figure, self.limit]))

    @property
    def seen(self) -> str:
        """The place and what was seen there: `on 'cap 16: get 4' under eager: zeros`."""
        return ": ".join(filter(None, [self.place, self.reason]))

    @property
    def sentence(self) -> str:
        """Everything but the reach, in one line."""
        facts = ", ".join(filter(None, [self.figure, self.limit, self.place]))
        return ": ".join(filter(None, [self.name, facts, self.reason]))


def shown(row: Row[Rule] | Row[Promise] | Row[None]) -> Shown:
    """Return a row of a rule, of a promise, or of what was judged by neither, in words."""
    under = f"under {row.arm}" if row.arm else ""
    place = f"on '{row.trace}'" if row.trace else f"in {row.where}" if row.where else ""
    unit = row.unit.removesuffix("s") if row.value == 1 else row.unit
    return Shown(
        name=f"{row.rule} {row.rule.word}" if row.rule else "not judged",
        figure="" if row.value is None else f"{number(row.value)} {unit}".strip(),
        limit="" if row.value is None or row.limit is None else f"limit {number(row.limit)}",
        place=" ".join(filter(None, [place, under])),
        reach=_reach(row.reach) if row.reach else "",
        reason=one_line(row.detail),
    )


def finding(row: Row, effects: Iterable[Row] = (), *, named: bool = True) -> Document:
    """Yield a broken rule: its figure and reach, where and what was seen, and the rules broken with it.

    Without `named` its name is in the heading above it.
    """
    for part in (row, *effects):
        words = shown(part)
        indent = "  " if part is row else "    also "
        facts = ", ".join(filter(None, [words.measured, words.reach]))
        name = f"{words.name} {part.regime}" if named or part is not row else part.regime
        yield Line(f"{indent}{name}: {facts}")
        yield Line(words.seen if part is row else words.place, lead="    " if part is row else "      ")


def _reach(reach: str | None) -> str:
    kind = reach_kind(reach)
    return f"with {(reach or '').removeprefix(FLAG)}" if kind == FLAG else _REACHES[kind]


_REACHES = {
    DEFAULT: "with default settings",
    UNKNOWN: "whether the engine makes such calls is not known",
    LATENT: "under calls that no engine makes today",
}
_PROBLEMS: Mapping[Rule, str] = {
    Rule.OUTPUT: "compiled, the model computes another output than uncompiled",
    Rule.STRUCTURE: "what the model is given has another structure in some steps, so that a graph that was "
    "compiled without image features ignores them in later steps",
    Rule.BOUNDARY: "a step does not get the image features of its own tokens",
    Rule.FRESHNESS: "image features of an earlier step are read in a later one",
    Rule.CAPACITY: "a step with more tokens than the buffer was made for does not get its image features",
    Rule.CLEAR: "image features of a finished request are read by a later one",
    Rule.ADDRESS: "captured graphs read storage that the class does not write to any more",
    Rule.PLACEMENT: "image features come in another dtype or on another device than the hidden states",
    Rule.REJECTION: "a wrong call is accepted, or changes the buffer before it is refused",
    Rule.SHARDING: "ranks do not read the image features of their own rows",
    Rule.WORK: "kernels process more rows than the step has",
    Rule.GRAPHS: "the compiler builds more graphs than it should",
    Rule.RANGES: "the ranges of placeholders are not those of the image tokens",
    Rule.ORDERING: "two streams give another result than one, or layers are compiled again and again",
    Rule.MEMORY: "a kernel reads or writes memory that is not its own",
}
_NOTICED = {
    Effect.OUTPUT: "the output is wrong",
    Effect.PADDING: "only padded rows are wrong",
    Effect.CRASH: "the step raises",
    Effect.COST: "work is wasted",
}


def problem_of(row: Row) -> str:
    """Return what a user of the engine notices of a broken rule, and under which settings."""
    what = _PROBLEMS[row.rule]
    if row.rule is Rule.BOUNDARY and row.shape in (FaultKind.ZEROS, FaultKind.NEVER_SET):
        what = "a step is computed without its image features"
    if row.shape == FaultKind.NO_EFFECT:
        what = "the text model leaves out levels of the image features"
    return ", ".join(filter(None, [what, row.effect and _NOTICED[row.effect], _reach(row.reach)]))

"""Verdicts, judgements and rows: the result for a rule, and how it is stored.

A `Verdict` is one word; no other module lists verdicts in an order, calls one of them broken or unexpected,
or names one for readers. A `Judgement` is an oracle's statement about one rule. A `Row` is a judgement with
everything that identifies what was judged: rows are stored and compared for years, so they are versioned and
plain data.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from deepstack_harness.contract.case import Case, Regime
from deepstack_harness.contract.facts import System
from deepstack_harness.contract.observation import RowOrigin
from deepstack_harness.contract.rules import Promise, Rule


class Verdict(StrEnum):
    """A statement about one rule.

    An oracle returns PASS, FAIL, SKIP (the rule was not put to the test; the detail has the reason) or ERROR
    (it could not be judged). XFAIL, IMPROVED and MISSING exist only for rules with a known failure, see
    `against_expectation`.

    >>> Judgement(Rule("R5"), Verdict("SKIP"), detail="no step clears").verdict
    <Verdict.SKIP: 'SKIP'>
    """

    PASS = ("PASS", "kept", "kept", "ok", "✅")
    FAIL = ("FAIL", "broken", "broken", "FAIL", "❌", "red")
    SKIP = ("SKIP", "not tested", "does not apply", "-", "▫️", "dim")
    ERROR = ("ERROR", "not judged", "not judged", "ERR", "⚠️", "yellow")
    XFAIL = ("XFAIL", "broken", "broken, as expected", "xf", "🔶", "magenta")
    IMPROVED = ("IMPROVED", "kept, expected to break", "kept, expected to break", "IMPR", "⬆️", "cyan")
    MISSING = (
        "MISSING", "not tested, expected to break", "not tested, expected to break", "MISS", "❔", "cyan",
    )  # fmt: skip

    word: str
    """The text of a narrow table cell."""
    meaning: str
    """The explanation in a legend."""
    abbreviation: str
    """Four letters at most, for a matrix on the terminal."""
    sign: str
    """One character for a matrix in Markdown."""
    style: str
    """The colour on a terminal, by rich's name; empty for the usual one."""

    # Type checkers take `Verdict("PASS")` for a call of this: the rest has defaults.
    def __new__(
        cls,
        name: str,
        word: str = "",
        meaning: str = "",
        abbreviation: str = "",
        sign: str = "",
        style: str = "",
    ) -> Self:
        """Make a verdict of its name."""
        member = str.__new__(cls, name)
        member._value_, member.word, member.meaning = name, word, meaning
        member.abbreviation, member.sign, member.style = abbreviation, sign, style
        return member


WORST_FIRST = (
    Verdict.FAIL, Verdict.ERROR, Verdict.IMPROVED, Verdict.MISSING, Verdict.XFAIL, Verdict.PASS, Verdict.SKIP,
)  # fmt: skip
"""The order in which reports sort and fold cases."""

BROKEN = frozenset({Verdict.FAIL, Verdict.XFAIL})
"""Verdicts of a broken rule, whether the failure is known or not."""

KEPT = frozenset({Verdict.PASS, Verdict.IMPROVED})
"""Verdicts of a rule that was put to the test and held."""

UNEXPECTED = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.IMPROVED, Verdict.MISSING})
"""Verdicts that turn CI red: somebody has to look at them."""

OPENED = UNEXPECTED | {Verdict.XFAIL}
"""Verdicts that a report shows in full: a trace, a figure, a diagnosis."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of the verdicts; raises `ValueError` for none."""
    return min(verdicts, key=WORST_FIRST.index)


def against_expectation(verdict: Verdict, *, broken: bool | None) -> Verdict:
    """Return the verdict of a rule that is (True) or is not (False, None) known to be broken.

    With a known failure FAIL is expected (XFAIL), PASS means that the failure is gone (IMPROVED), and SKIP
    that nothing put it to the test (MISSING). What could not be judged stays ERROR.
    """
    if not broken:
        return verdict
    changed = {Verdict.FAIL: Verdict.XFAIL, Verdict.PASS: Verdict.IMPROVED, Verdict.SKIP: Verdict.MISSING}
    return changed.get(verdict, verdict)


class Effect(StrEnum):
    """A broken rule's consequence for users.

    OUTPUT: rows of real tokens are wrong. PADDING: only padded rows are. CRASH: a step raises.
    COST: work or time is wasted.
    """

    OUTPUT = "output"
    PADDING = "padding"
    CRASH = "crash"
    COST = "cost"


class FaultKind(StrEnum):
    """The shape of a fault: what is wrong in the first place that breaks a rule, without its numbers.

    Wrong rows are named for where their content comes from, calls for what they did. Known failures and
    findings are distinguished by rule and shape, so that a known fault of a rule does not hide a new one.
    """

    # Rows: what they hold instead of what is due.
    ZEROS = "zeros"
    NEVER_SET = "values never set"
    LIVE = "other rows of the live payload"
    REPLACED = "replaced payload"
    CLEARED = "cleared payload"
    REJECTED = "rejected payload"
    OTHER_BUFFER = "payload of the other buffer"
    OTHER_RANK = "rows of another rank"
    CALLER = "caller's tensor"
    MISSING = "missing rows"
    SURPLUS = "surplus rows"
    WIDTH = "wrong width"
    PARTITION = "rows without one owner"
    # Calls, and the state after them.
    RAISED = "raised"
    ACCEPTED = "accepted"
    CAPACITY = "wrong capacity"
    ARGUMENT_CHANGED = "argument changed"
    ANSWER_CHANGED = "earlier answer changed"
    # Results of get.
    NONE = "none"
    LEVELS = "wrong number of levels"
    ONE_TENSOR = "one tensor"
    DTYPE = "wrong dtype"
    DEVICE = "wrong device"
    CONTAINER = "other container"
    TENSOR_TYPE = "other tensor type"
    STRIDES = "other strides"
    GRADIENT = "other requires_grad"
    # Storage that graphs were captured on.
    MOVED = "storage moved"
    GENERATION = "generation went back"
    ALLOCATED = "allocated during capture"
    DETACHED = "graph on old storage"
    FREED = "storage freed"
    # Outputs, graphs and kernels.
    OUTPUT = "output differs"
    NO_EFFECT = "payload without effect"
    PADDING_READ = "real rows depend on padding"
    GRAPHS = "too many graphs"
    BREAKS = "graph break"
    RECOMPILE_LIMIT = "recompile limit"
    WORK = "too many rows"
    FIXED_SIZE = "size without the tokens"
    TRAFFIC = "too many bytes"
    OUTSIDE = "outside its tensor"
    UNWRITTEN = "memory never written"
    # Systems other than the buffer.
    EMPTY_MASK = "empty mask"
    END_ZERO = "end index 0"
    COUNT = "wrong count"
    UNORDERED = "unordered operations"
    SUBGRAPHS = "distinct subgraphs"


@dataclass(frozen=True)
class Judgement:
    """An oracle's statement about one rule: a figure against a limit, not only yes or no.

    It is what is known before the case is: a `Row` has its fields, and those of the case.

    The figure is `value` against `limit` in `unit`. `effect` is there for broken rules whose facts imply it,
    see `deepstack_harness.contract.oracles.judge`; for an R3 that passes it is PADDING where rows after N are
    stale, as those of a payload with rows for every token may be. `steps` are the numbers (from 1) of the
    steps in which the rule was seen broken. `chances` is how often the rule was put to the test and could
    have been broken, in units of `Rule.chance`; a rule that had none is SKIP, never PASS.

    The fields after `chances` describe what was wrong first, so that nobody has to parse `detail`, which is a
    sentence for people: the `shape`; `level`, `row` (of the step) and `origin` of the first wrong row, None
    where no row is wrong or the row is missing; the type of the `exception` that a call raised; and the
    `call` of the step in which the rule broke first: `set`, `get` (steps of the decoder too), `clear`,
    `resize`, or `decoder` where that raised.

    >>> judgement = Judgement(Rule.GRAPHS, Verdict.FAIL, value=5, limit=2, unit="graphs", steps=(3, 4))
    >>> f"{judgement.rule} {judgement.verdict} in step {judgement.step}"
    'R11 FAIL in step 3'
    """

    rule: Rule
    verdict: Verdict
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    detail: str = ""
    effect: Effect | None = None
    steps: tuple[int, ...] = ()
    shape: str | None = None
    level: int | None = None
    row: int | None = None
    origin: RowOrigin | None = None
    exception: str = ""
    chances: int | None = None
    call: str = ""
    wrong_rows: frozenset[tuple[int, int, int]] = frozenset()
    """The step, the level and the row of every wrong row."""

    @property
    def step(self) -> int | None:
        """Number of the first step in which the rule was seen broken; None where no step was."""
        return self.steps[0] if self.steps else None

    @property
    def columns(self) -> dict[str, Any]:
        """The fields of a `Row` that come from its judgement, by name."""
        names = (
            "rule", "verdict", "value", "limit", "unit", "effect", "detail", "shape", "chances", "step",
            "steps",
        )  # fmt: skip
        columns = {name: getattr(self, name) for name in names}
        return {**columns, "call": self.call or None, "exception": self.exception or None}


class RuleVerdicts:
    """A base for whatever was judged by several rules: subclasses define `verdicts`, the rest follows."""

    @property
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        """The rules that were judged, each with its verdict."""
        raise NotImplementedError

    @property
    def broken(self) -> frozenset[Rule]:
        """Broken rules, known or not."""
        return self.rules(BROKEN)

    @property
    def kept(self) -> frozenset[Rule]:
        """Rules that were put to the test and hold."""
        return self.rules(KEPT)

    @property
    def unjudged(self) -> frozenset[Rule]:
        """Rules that ended as ERROR."""
        return self.rules({Verdict.ERROR})

    @property
    def unexpected(self) -> frozenset[Rule]:
        """Rules that somebody has to look at."""
        return self.rules(UNEXPECTED)

    def rules(self, wanted: Collection[Verdict]) -> frozenset[Rule]:
        """Return the rules with one of these verdicts."""
        return frozenset(rule for rule, verdict in self.verdicts if verdict in wanted)

    def breaks_exactly(self, rules: frozenset[Rule] | None) -> bool:
        """Return whether all rules were judged and exactly `rules` are broken; None: any may be broken."""
        return not self.unjudged and rules in (None, self.broken)


SCHEMA_VERSION = 4
"""The version of every stored row, and of the folders that hold rows."""
READABLE_VERSIONS = frozenset({2, 3, SCHEMA_VERSION})
"""Versions of rows and folders that are still read.

Rows of version 2 have no `shape`, those of version 3 no `steps`, `inputs`, `guards` and `influence`.
"""


class Evidence(StrEnum):
    """The ground that `Row.reach` rests on.

    ENGINE: seen in a running engine. EMULATED: the engine's scheduler ran, graphs were emulated. READ:
    read in the engine's source. CONSTRUCTED: the class was made by its own `__init__`, with its own layers.
    """

    ENGINE = "engine"
    EMULATED = "emulated"
    READ = "read"
    CONSTRUCTED = "constructed"


Judged = TypeVar("Judged", bound=Rule | Promise | None, default=Rule)
"""What a row judges: a rule, a promise of any side input, or None where nothing could be judged."""


@dataclass(frozen=True, kw_only=True)
class Row(Generic[Judged]):
    """One judgement, one JSON object per line (`--json`, `rows.jsonl`).

    A plain `Row` is the row of a rule, `Row[Promise]` that of `steps` and `audit --inputs`. `rule` is None
    for what no rule judged: a carrier of a source, a process that ended under `fuzz`.
    `docs/reference/rows.md` states which columns apply to which kind of row.

    `engine` is the package whose source was judged, None for buffers of ours and of users. `family`, `trace`,
    `arm` and what follows from the arm are empty for systems that play no trace. `case` is the id of the case
    (`Case.id`, or one of its own in a test), empty where there is none. `expected`: True where a failure of
    the rule is known, None where no catalogue was consulted. `node_id` is the pytest node id, in tests only.
    `where` is a file of the package that was judged, with lines: `vllm/a.py:12-40`. `shape` is the kind of
    fault of a broken rule (`FaultKind`, or a word of another package's oracle). `chances` is how often the
    rule was put to the test (`Judgement`), over all cases that a row covers. `step` is the number (from 1) of
    the first step of the trace in which the rule was seen broken, `call` the call there, and `exception` the
    type that it raised; earlier rows of version 3 have none of them. `steps` are all steps in which it was,
    `inputs` the names of what differed from the warm-up in the first of them, `guards` the dropped guards
    that failed there, and `influence` the largest absolute difference that such an input makes in the
    uncompiled code. `promise` follows from the rule (`instance_of`), also where a stored row has none:
    nothing is keyed by it.

    >>> row = Row(rule=Rule.OUTPUT, verdict=Verdict.PASS, revision="reference")
    >>> row.rule.word, row.verdict
    ('output', <Verdict.PASS: 'PASS'>)
    """

    schema_version: int = SCHEMA_VERSION
    incident: str | None = None
    system: str = System.DEEPSTACK
    engine: str | None = None
    family: str = ""
    model_class: str | None = None
    revision: str
    source: str | None = None
    trace: str = ""
    arm: str = ""
    regime: Regime = Regime.NONE
    guard_policy: str = ""
    shape_policy: str = ""
    backend: str = ""
    capture: str = ""
    device: str = "cpu"
    dtype: str = ""
    rule: Judged
    promise: Promise | None = None
    verdict: Verdict
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    reach: str | None = None
    evidence: Evidence | None = None
    effect: Effect | None = None
    detail: str = ""
    node_id: str | None = None
    torch: str = ""
    case: str = ""
    where: str | None = None
    expected: bool | None = None
    shape: str | None = None
    chances: int | None = None
    step: int | None = None
    call: str | None = None
    exception: str | None = None
    steps: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    influence: float | None = None

    def __post_init__(self) -> None:
        """Set the promise that the rule is an instance of."""
        object.__setattr__(self, "promise", self.rule.instance_of if self.rule is not None else None)

    @property
    def place(self) -> tuple[str, str, str]:
        """Family, arm and device: the line of the verdict matrix."""
        return self.family or "-", self.arm or "-", self.device or "-"


def row_of_case(case: Case, judgement: Judgement, torch: str, incident: str | None = None) -> Row:
    """Return the row of one judgement of one case, without an expectation."""
    return Row(
        incident=incident, engine=case.buffer.package, family=case.family,
        model_class=case.buffer.model_class, revision=case.subject, source=case.buffer.source,
        trace=str(case.trace), regime=case.regime, device=case.device, dtype=case.dtype, torch=torch,
        case=case.id, **case.arm.columns, **judgement.columns,
    )  # fmt: skip


def row_against_expectation(row: Row, *, broken: bool | None, reference: str = "") -> Row:
    """Return the row with its verdict against what is known of its rule; see `against_expectation`.

    `reference` is the issue that a known failure waits for; it is added to the detail.
    """
    verdict = against_expectation(row.verdict, broken=broken)
    detail = row.detail
    if reference and verdict is not row.verdict:
        detail = f"{detail} [known: {reference}]".strip()
    return replace(row, verdict=verdict, expected=broken, detail=detail)

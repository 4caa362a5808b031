"""The result of one schedule, or of a comparison of arms, on one engine: its rows, and what was met."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from deepstack_harness.catalogue.reach import DEFAULT, FLAG
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.row import Evidence, Row
from deepstack_harness.contract.verdicts import BROKEN, Judgement
from deepstack_harness.live_engine.facts import LiveStep, StartFacts
from deepstack_harness.live_engine.schedules import ReplayMode, Schedule, flags_of
from deepstack_harness.live_engine.session import StartOrder


@dataclass(frozen=True)
class EngineResult:
    """Rows about one thing that was asked of an engine; `seconds` of wall time.

    `name` is the schedule, or what was compared.  `met` are the distinct (dispatch, visual state) pairs.
    """

    name: str
    order: StartOrder
    rows: tuple[Row, ...]
    seconds: float
    replay: ReplayMode | None = None
    steps: int = 0
    replayed: int = 0
    visual_decodes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    met: frozenset[tuple[str, str]] = frozenset()

    @property
    def broken(self) -> list[Row]:
        """The rows of broken rules."""
        return [row for row in self.rows if row.verdict in BROKEN]


@dataclass(frozen=True)
class RowMaker:
    """The parts of a row that all results of one engine share."""

    label: str
    order: StartOrder
    facts: StartFacts

    def rows(
        self, judgements: Iterable[Judgement], name: str, schedule: Schedule | None = None,
        replay: ReplayMode | None = None,
    ) -> tuple[Row, ...]:  # fmt: skip
        """Return the rows of judgements about a schedule, or about a comparison that is named."""
        reach = _reach(schedule, replay)
        made = [self._row(one, f"{name} {replay.name}" if replay else name, replay) for one in judgements]
        return tuple(replace(row, reach=reach) if row.verdict in BROKEN else row for row in made)

    def _row(self, said: Judgement, name: str, replay: ReplayMode | None) -> Row:
        model, order = self.order.model, self.order
        return Row(
            engine="vllm", family=model.family, model_class=model.model_class, revision=self.label,
            source=self.label, arm=order.arm, regime=Regime.CAPTURED if replay else Regime.LIVE,
            backend=self.facts.backend, capture=replay.name if replay else "", dtype="float32",
            rule=said.rule, verdict=said.verdict, value=said.value, limit=said.limit, unit=said.unit,
            evidence=Evidence.EMULATED if replay else Evidence.ENGINE, effect=said.effect,
            detail=said.detail, torch=self.facts.torch,
            case=f"{model.family} {order.arm} {order.start} {name}",
        )  # fmt: skip


def _reach(schedule: Schedule | None, replay: ReplayMode | None) -> str:
    """Return what a user has to set for a schedule under a graph mode: both, or nothing."""
    flags = flags_of(schedule, replay)
    return f"{FLAG}{', '.join(flags)}" if flags else DEFAULT


def pairs_met(steps: Sequence[LiveStep]) -> frozenset[tuple[str, str]]:
    """Return the distinct pairs of a dispatch and a visual state: what this step and the one before carry."""
    found, before = set(), "nothing"
    for step in steps:
        now = _state(step)
        found.add((_dispatch(step), f"{now} after {before}"))
        before = now
    return frozenset(found)


def _dispatch(step: LiveStep) -> str:
    kinds = sorted({"prefill" if prefill else "decode" for _, _, prefill in step.requests})
    how = "replayed" if step.replayed else "live"
    return f"{how}, {'uniform' if step.uniform else 'mixed'} {'+'.join(kinds)}"


def _state(step: LiveStep) -> str:
    if not step.visual:
        return "text"
    return "visual" if step.visual == step.tokens else "visual and text"

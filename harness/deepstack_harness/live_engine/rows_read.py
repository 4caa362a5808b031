"""Judge what the steps of a running engine read from the payload buffer, by the live ledger."""

from collections.abc import Iterator, Sequence

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict
from deepstack_harness.live_engine.facts import LiveStep, StartFacts

_ROWS = "rows"


def judge_structure(facts: StartFacts, steps: Sequence[LiveStep]) -> Judgement:
    """Judge R1: every read answers with all levels, also those of the start, where nothing is set."""
    seen = [*facts.start_steps, *steps]
    none = [number for number, step in enumerate(seen, 1) if not step.answered]
    if not seen:
        return Judgement(Rule.R1, Verdict.ERROR, detail="no read of the buffer was seen")
    when = "in the profile run" if none and none[0] <= len(facts.start_steps) else "while serving"
    detail = f"get answers None {when}, {len(none)} of {len(seen)} reads" if none else f"{len(seen)} reads"
    verdict = Verdict.FAIL if none else Verdict.PASS
    return Judgement(Rule.R1, verdict, float(len(none)), 0.0, "reads", detail)


def judge_rows(steps: Sequence[LiveStep]) -> list[Judgement]:
    """Judge R2, R3 and R5: the rows of a step are its own, and zeros where it has none.

    A row of an earlier payload is R3 where a later payload replaced that, else R5: each step of an engine
    clears behind itself.  A row of no payload is R2.  Rows behind the tokens are told, as padding.
    """
    if not steps:
        return [Judgement(rule, Verdict.ERROR, detail="no step was seen") for rule in _RULES]
    found: dict[Rule, list[tuple[int, LiveStep]]] = {rule: [] for rule in _RULES}
    for number, step in enumerate(steps):
        for rule in _broken_by(number, step, steps):
            found[rule].append((number, step))
    return [_judgement(rule, found[rule], len(steps)) for rule in _RULES]


_RULES = (Rule.R2, Rule.R3, Rule.R5)


def _broken_by(number: int, step: LiveStep, steps: Sequence[LiveStep]) -> set[Rule]:
    broken = {_rule_of(number, origin, steps) for _, origin in step.origins}
    short = step.answered and step.rows != step.asked
    lost = not step.answered and step.wrong > 0
    return broken | ({Rule.R2} if short or lost else set())


def _rule_of(number: int, origin: int | None, steps: Sequence[LiveStep]) -> Rule:
    if origin is None or origin >= number:
        return Rule.R2
    replaced = any(later.visual for later in steps[origin + 1 : number + 1])
    return Rule.R3 if replaced else Rule.R5


def _judgement(rule: Rule, broken: Sequence[tuple[int, LiveStep]], steps: int) -> Judgement:
    if not broken:
        return Judgement(rule, Verdict.PASS, 0.0, 0.0, _ROWS, f"{steps} steps")
    real = sum(step.wrong for _, step in broken)
    padding = sum(step.padding for _, step in broken)
    number, first = broken[0]
    whose = ", ".join(_owners(first)) or "padding"
    detail = f"{len(broken)} of {steps} steps, first step {number + 1}: rows of {whose}"
    effect = Effect.OUTPUT if real else Effect.PADDING
    return Judgement(
        rule, Verdict.FAIL, float(real or padding), 0.0, _ROWS, detail, effect,
        tuple(position + 1 for position, _ in broken),
    )  # fmt: skip


def _owners(step: LiveStep) -> Iterator[str]:
    """Yield the requests whose rows are wrong, as far as they are told."""
    end, wrong = 0, [row for row, _ in step.origins]
    for name, tokens, _ in step.requests:
        begin, end = end, end + tokens
        if any(begin <= row < end for row in wrong):
            yield name

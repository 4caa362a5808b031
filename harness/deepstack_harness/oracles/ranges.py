"""R12: placeholder ranges equal a brute-force count."""

from collections.abc import Iterator

from deepstack_harness.contract.case import Judgement
from deepstack_harness.contract.facts.ranges import Asked, Bounds, RangeObservation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.base import against, error

_SHOWN = 32


def judge(observation: RangeObservation) -> Judgement:
    """How many answers are wrong; ERROR where the questions leave out what the rule is about."""
    if missing := _unasked(observation.asked):
        return error(Rule.R12, f"never asked: {missing}")
    wrong = [finding for asked in observation.asked for finding in _wrong(asked)]
    first = dict(reversed(wrong))  # of each kind
    more = f" (and {len(wrong) - len(first)} more)" if len(wrong) > len(first) else ""
    return against(Rule.R12, len(wrong), 0, "wrong answers", "; ".join(reversed(first.values())) + more)


def brute_force(mask: str | None, length: int, start: int, end: int) -> Bounds:
    """Embeddings before `start` and before `end`, counted one by one; without a mask the span itself."""
    every = "1" * length if mask is None else mask
    return every[:start].count("1"), every[:end].count("1")


def _wrong(asked: Asked) -> Iterator[tuple[str, str]]:
    """(kind, what was asked and both numbers) of each wrong answer; the kinds are the known faults."""
    if len(asked.mask or "") != asked.length and asked.mask is not None:
        raise ValueError(f"mask '{asked.mask}' has not {asked.length} positions")
    _, embeds = brute_force(asked.mask, asked.length, 0, asked.length)
    if asked.embeds != embeds:
        yield _kind(asked), f"{_shown(asked)}: get_num_embeds() gives {asked.embeds}, {embeds} is right"
    for start, end, answer in asked.ranges:
        right = brute_force(asked.mask, asked.length, start, end)
        if answer != right:
            said = f"{_shown(asked)}, start {start}, end {end}: gives {answer}, {right} is right"
            yield _kind(asked, end), said


def _kind(asked: Asked, end: int | None = None) -> str:
    if asked.mask == "":
        return "an empty mask"
    return "end index 0" if end == 0 else "another"


def _shown(asked: Asked) -> str:
    if asked.mask is None:
        return f"length {asked.length} without a mask"
    if not asked.mask:
        return "an empty mask"
    ended = ".." if asked.length > _SHOWN else ""
    return f"mask {asked.mask[:_SHOWN]}{ended} ({asked.length})"


def _unasked(asked: tuple[Asked, ...]) -> str:
    needed = {
        "an empty mask": any(one.mask == "" for one in asked),
        "a placeholder without a mask": any(one.mask is None and one.ranges for one in asked),
        "a mask with a gap": any("101" in (one.mask or "") for one in asked),
        "end index 0": any("1" in (one.mask or "") and (0, 0) in _bounds(one) for one in asked),
        "a whole mask": any(one.mask and (0, one.length) in _bounds(one) for one in asked),
    }
    return ", ".join(what for what, there in needed.items() if not there)


def _bounds(asked: Asked) -> set[Bounds]:
    return {(start, end) for start, end, _ in asked.ranges}

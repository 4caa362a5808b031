"""Rules of one interpreted step of a decoder alone: rows (R10), memory (R14), configurations (R0)."""

from collections.abc import Iterator

from deepstack_harness.contract.facts.accesses import AccessFacts, rows_in_words
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles import memory
from deepstack_harness.oracles.base import against, error
from deepstack_harness.oracles.work import payload_rows


def judge_step(facts: AccessFacts, tokens: int) -> Iterator[Judgement]:
    """Yield R10 and R14 of a step of `tokens` rows, and R0 where two configurations were compared."""
    yield judge_rows(facts, tokens)
    yield memory.judge(facts)
    if facts.compared:
        yield judge_configurations(facts)


def judge_rows(facts: AccessFacts, tokens: int) -> Judgement:
    """Judge the last row of a payload that any kernel read or wrote; ERROR where nothing was measured."""
    if not facts.accesses:
        return error(Rule.R10, "no access of any kernel was measured")
    rows, access = payload_rows(facts)
    share = f"{facts.share:.0%} of the bytes of the step were measured"
    if access is None:
        return against(Rule.R10, 0, tokens, "rows", f"no kernel touched a payload; {share}")
    first = next((one for one in facts.accesses if one.tensor.startswith("payload[")
                  and any(end > tokens for _, end in (*one.read, *one.written))), access)  # fmt: skip
    does = "read" if first.read else "wrote"
    touched = rows_in_words((*first.read, *first.written))
    said = f"kernel {first.kernel} {does} {touched} of {first.tensor} ({first.argument})"
    return against(Rule.R10, rows, tokens, "rows", f"{said}; {share}")


def judge_configurations(facts: AccessFacts) -> Judgement:
    """Count launches whose results depend on the configuration: a GPU may be tuned to either."""
    if not facts.compared:
        return error(Rule.R0, "no launch ran with two configurations")
    said = f"{facts.compared} launches gave the same with the first and the largest configuration"
    if facts.disagreements:
        worst = facts.disagreements[0]
        one, other = worst.configurations
        said = (
            f"kernel {worst.kernel} writes {worst.argument} differently with {one} and with {other}, "
            f"by {worst.difference:.3g} of its value"
        )
    broken = {one.kernel for one in facts.disagreements}
    return against(Rule.R0, len(broken), 0, "kernels", said)

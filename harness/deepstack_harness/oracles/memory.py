"""R14: no kernel touches memory outside its tensors, and nothing that was never written is put out."""

from deepstack_harness.contract.facts.accesses import AccessFacts, KernelAccess, rows_in_words
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.oracles.base import against, error, numbered_steps, skip
from deepstack_harness.oracles.observed_case import ObservedCase


def judge(facts: AccessFacts) -> Judgement:
    """Count bytes outside of tensors; without any, rows < n that depend on memory nobody wrote.

    Reading unwritten bytes alone is allowed: kernels mask the lanes behind the last row.
    """
    if not facts.accesses:
        return error(Rule.R14, "no access of any kernel was measured")
    wild = [access for access in facts.accesses if access.outside]
    if wild:
        # The first launch is the cause: what it read spreads, and may lead later ones astray.
        outside = sum(access.outside for access in wild)
        return against(Rule.R14, outside, 0, "bytes", _told(wild[0], len(wild)))
    if facts.unwritten_rows:
        return against(Rule.R14, facts.unwritten_rows, 0, "rows", _unwritten(facts))
    kernels = {access.kernel for access in facts.accesses}
    said = f"{len(facts.accesses)} accesses of {plural(len(kernels), 'kernel')} were inside their tensors"
    return against(Rule.R14, 0, 0, "bytes", said)


def judge_case(observed: ObservedCase) -> Judgement:
    """Judge the first step that breaks the rule, or all of them; SKIP where no accesses were measured."""
    steps = numbered_steps(observed.case, observed.observation)
    known = [(number, step, facts.accesses) for number, step, facts in steps if facts.accesses is not None]
    measured = [one for one in known if one[2].accesses]
    if not measured:
        return skip(Rule.R14, f"arm {observed.case.arm.name} measured no access of any kernel")
    said = [(number, step, judge(facts)) for number, step, facts in measured]
    number, step, worst = next((one for one in said if one[2].verdict is Verdict.FAIL), said[-1])
    share = min(facts.share for _, _, facts in measured)
    detail = f"step {number} '{step}': {worst.detail}; {share:.0%} of the bytes were measured"
    broken = [number for number, _, one in said if one.verdict is Verdict.FAIL]
    return against(Rule.R14, worst.value or 0, worst.limit or 0, worst.unit or "bytes", detail, broken)


def _told(access: KernelAccess, others: int) -> str:
    """Return which kernel, argument and rows are outside."""
    argument = f" ({access.argument})" if access.argument else ""
    said = (
        f"kernel {access.kernel} touched bytes [{access.first}, {access.end}) of {access.tensor}{argument}, "
        f"which has {access.size}"
    )
    if access.wild:
        rows = access.shape[0] if access.shape else 1
        where = "in the storage of which it is a view" if access.in_storage else "outside of any memory"
        said += f": {rows_in_words(access.wild)} of {rows}, {where}"
    return said if others == 1 else f"{said}; {others - 1} more accesses were outside"


def _unwritten(facts: AccessFacts) -> str:
    read = sum(access.unwritten for access in facts.accesses)
    said = f"{facts.unwritten_rows} rows depend on {read} bytes that nothing had written"
    first = next((access for access in facts.accesses if access.unwritten), None)
    if first is not None:
        return f"{said}; kernel {first.kernel} read {first.tensor} ({first.argument}) first"
    call = next((one for one in facts.calls if one.unwritten), None)
    return said if call is None else f"{said}; {call.operation} was given {', '.join(call.unwritten)}"

"""R10 of generated kernels: they process the step's rows, whatever the buffer has room for."""

from collections.abc import Sequence

from deepstack_harness.contract.case import Judgement
from deepstack_harness.contract.facts.kernels import GraphCall, Kernel
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.base import against, error

MARGIN = 1.05
"""Bytes moved over those that must move; what fusion leaves over between two torch versions."""


def judge(calls: Sequence[GraphCall], tokens: int) -> Judgement:
    """The most rows of any kernel against the step's; then kernels that ignore the step, then bytes.

    `calls` are one step of `tokens` rows.  Rows are those of the call; a kernel over
    token rows whose size lacks the token symbol, in a graph that has one, does the
    same work for every step, so it is wrong also where the sizes of this call agree.
    ERROR where nothing was measured.
    """
    kernels = [kernel for call in calls for kernel in call.kernels]
    if not kernels or not all(call.generated for call in calls):
        return error(Rule.R10, f"{len(calls)} calls of graphs and {len(kernels)} kernels were measured")
    rows = max(call.rows for call in calls)
    fixed = [kernel for call in calls if call.symbolic for kernel in call.kernels if _ignores_step(kernel)]
    moved, needed = sum(call.bytes for call in calls), sum(call.ideal_bytes for call in calls)
    seen = _seen(kernels, tokens, len(fixed), f"{moved:,} bytes moved, {needed:,} must")
    if rows <= tokens and fixed:
        return against(Rule.R10, len(fixed), 0, "kernels", seen)
    if rows <= tokens and moved > MARGIN * needed:
        return against(Rule.R10, moved, MARGIN * needed, "bytes", seen)
    return against(Rule.R10, rows, tokens, "rows", seen)


def _ignores_step(kernel: Kernel) -> bool:
    return kernel.rows is not None and not kernel.carries_tokens


def _seen(kernels: Sequence[Kernel], tokens: int, fixed: int, moved: str) -> str:
    above = sum((kernel.rows or 0) > tokens for kernel in kernels)
    return (
        f"{above} of {len(kernels)} kernels run more than the step's {tokens} rows, "
        f"{fixed} have a size without the token symbol; {moved}"
    )

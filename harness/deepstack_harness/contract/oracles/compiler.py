"""Oracles of compiled code: graphs (R11), rows that are processed (R10), memory that is touched (R14).

`judge_graphs`, `judge_work` and `judge_memory` judge a played case. `judge_step` judges one interpreted step
of a decoder that was played without a trace, its autotuned configurations included (R0), and `judge_kernels`
the sizes of the kernels that were generated for a step, without running them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.facts import AccessFacts, GraphCall, KernelAccess, rows_in_words
from deepstack_harness.contract.observation import Answer, GraphFacts, Observation
from deepstack_harness.contract.oracles.trace_audit import (
    ObservedCase,
    error,
    judge_figure,
    numbered_steps,
    passed,
    skip,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op
from deepstack_harness.contract.verdicts import FaultKind, Judgement, Verdict
from deepstack_harness.text import plural


def judge_graphs(observed: ObservedCase) -> Judgement:
    """Count graphs against the budget; a break or a reached recompile limit is above any budget."""
    case, observation = observed.case, observed.observation
    if not case.arm.compiled:
        return _judge_answers(case, observation)
    if observation.error:
        return error(Rule.GRAPHS, observation.error)
    built = observation.graphs
    if built is None:
        raised = (
            f"nothing was compiled: step {number} '{step}' raised {facts.raised.type}"
            for number, step, facts in numbered_steps(case, observation)
            if facts.raised and facts.raised.call == "decoder"
        )
        return skip(Rule.GRAPHS, next(raised, "the decoder was never reached"))
    surplus = built.breaks + built.limit_hit
    # At the limit fewer graphs exist than sizes were used: the missing ones would run eager.
    graphs = max(built.graphs, case.graph_budget) + surplus if surplus else built.graphs
    shape = (
        FaultKind.RECOMPILE_LIMIT
        if built.limit_hit
        else FaultKind.BREAKS
        if built.breaks
        else FaultKind.GRAPHS
    )
    steps = numbered_steps(case, observation)
    runs = sum(step.op in RUNS_DECODER and not facts.unavailable for _, step, facts in steps)
    return judge_figure(
        Rule.GRAPHS, graphs, case.graph_budget, "graphs", _graph_counts(built), shape=shape, chances=runs
    )


def _judge_answers(case: Case, observation: Observation) -> Judgement:
    """Count what guards check and that differs from the first result: container, requires_grad, strides."""
    # A negative count should not return at all (R8).
    properties = [
        (number, where, key, text)
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and step.tokens >= 0
        for where in [f"step {number} '{step}'"]
        for key, text in _guarded(facts.answer, observation.hidden)
    ]
    without_gradient = ("a buffer answers", "without requires_grad")
    first: dict[_Guarded, tuple[str, str]] = {
        (FaultKind.GRADIENT, level, ""): without_gradient for level in range(observation.levels)
    }
    differs = [
        (number, f"{where} answered {text}, and {first[key][0]} {first[key][1]}", key)
        for number, where, key, text in properties
        if first.setdefault(key, (where, text))[1] != text
    ]
    # Strides of rows and of columns are one change.
    wrong = [*{(number, *key[:2]): (number, text, key) for number, text, key in differs}.values()]
    if len({number for number, *_ in properties}) < 2:
        return skip(Rule.GRAPHS, f"arm {case.arm.name} is not compiled, and no two answers can be compared")
    chances, taken = 0, False  # without a payload return values never differ
    for _, step, facts in numbered_steps(case, observation):
        taken |= step.op is Op.SET and step.tokens > 0 and not (facts.raised or facts.unavailable)
        chances += taken and facts.answer is not None
    if not wrong:
        return passed(Rule.GRAPHS, 0, 0, "changes", chances=chances)
    _, change, (shape, level, _) = wrong[0]
    detail = f"{change}: a guard fails, and another graph is compiled"
    steps = [number for number, *_ in wrong]
    judgement = judge_figure(
        Rule.GRAPHS, len(wrong), 0, "changes", detail, steps, shape=shape, chances=chances
    )
    return replace(judgement, level=level)


_Guarded = tuple[FaultKind, int | None, str]
"""A property that guards check: the fault if it changes, the level, and a key of comparable values."""


def _guarded(answer: Answer, hidden: int) -> Iterator[tuple[_Guarded, str]]:
    """Iterate over what guards look at, each with a text.

    The stride of a single column means nothing, and neither does that between rows for a single row: torch
    compiles 0 and 1 rows by themselves, so that such strides have to be equal at every call with as many
    rows. Another width than the hidden size has other strides too: that is R2.
    """
    if answer.structure == "none":
        return  # that is R1
    yield (FaultKind.CONTAINER, None, ""), f"with a {answer.container}"
    for level, kind in enumerate(answer.types):
        yield (FaultKind.TENSOR_TYPE, level, ""), f"with a {kind}"
    for level, gradient in enumerate(answer.gradients):
        yield (FaultKind.GRADIENT, level, ""), f"{'with' if gradient else 'without'} requires_grad"
    for level, (runs, width, strides) in enumerate(
        zip(answer.rows, answer.hidden, answer.strides, strict=False)
    ):
        if width != hidden:
            continue
        rows = sum(run.rows for run in runs)
        if rows < 2:
            yield (FaultKind.STRIDES, level, f"{rows} rows"), f"with strides {strides}"
        else:
            text = f"with strides {strides[:1] if width == 1 else strides}"
            yield (FaultKind.STRIDES, level, "rows"), text
        if rows and width > 1:
            yield (FaultKind.STRIDES, level, "columns"), f"with a stride of {strides[1]} between columns"


def _graph_counts(built: GraphFacts) -> str:
    recompiles, breaks = plural(built.recompiles, "recompile"), plural(built.breaks, "break")
    parts = [f"{plural(built.graphs, 'graph')}, {recompiles}, {breaks}"]
    if built.limit_hit:
        parts.append(
            "the recompile limit was reached: without fullgraph torch runs eager from here on, in silence"
        )
    if built.reasons:
        parts.append(f"recompiled because {built.reasons[0]}")
    return "; ".join(parts)


def judge_work(observed: ObservedCase) -> Judgement:
    """Judge the step in which attention, or a kernel on a payload, had the largest multiple of P rows.

    P is padded to a multiple of the ranks that share a step, and at least 1.
    """
    case, observation = observed.case, observed.observation
    work: list[tuple[int, int, int, str]] = []
    for number, step, facts in numbered_steps(case, observation):
        tokens = max(1, -(-step.tokens // case.arm.ranks) * case.arm.ranks)
        where = f"step {number} '{step}'"
        if step.op in RUNS_DECODER and facts.attended is not None:
            work.append((facts.attended, tokens, number, f"{where}: attention was given"))
        if facts.accesses is not None and facts.accesses.accesses:
            rows, access = payload_rows(facts.accesses)
            share = f"{facts.accesses.share:.0%} of the bytes were measured"
            touched = (
                f"no kernel touched a payload ({share}):"
                if access is None
                else f"{_touch(access)} ({share}),"
            )
            work.append((rows, tokens, number, f"{where}: {touched}"))
    if work:
        rows, tokens, number, who = max(work, key=lambda part: part[0] / part[1])
        detail = f"{who} {rows} rows for {tokens}, {rows / tokens:.3g} times"
        return judge_figure(
            Rule.WORK, rows, tokens, "rows", detail, [number], shape=FaultKind.WORK, chances=len(work)
        )
    if any(facts.distances is not None for facts in observation.steps):
        family = case.family.partition(":")[0]
        why = f"attention of family '{case.family}' reports no rows; that of '{family}:opaque' does"
        return skip(Rule.WORK, why)
    return skip(Rule.WORK, "no step ran the decoder")


def payload_rows(facts: AccessFacts) -> tuple[int, KernelAccess | None]:
    """Return one more than the last payload row that a kernel touched, and the access that did so first.

    Rows outside of the payload itself are no work but a fault of memory: R14.
    """
    touched = [(_end_of_rows(access), access) for access in facts.accesses if access.of_payload]
    return max(touched, key=lambda pair: pair[0], default=(0, None))


def _touch(access: KernelAccess) -> str:
    """Return which kernel read or wrote which rows of which tensor."""
    does, rows = "read" if access.read else "wrote", rows_in_words((*access.read, *access.written))
    return f"kernel {access.kernel} {does} {rows} of {access.tensor}"


def _end_of_rows(access: KernelAccess) -> int:
    return max((end for _, end in (*access.read, *access.written)), default=0)


def judge_accesses(facts: AccessFacts) -> Judgement:
    """Count bytes outside of tensors; without any, rows < n that depend on memory nobody wrote.

    To read unwritten bytes is no fault by itself: kernels mask the lanes after the last row.
    """
    if not facts.accesses:
        return error(Rule.MEMORY, "no access of any kernel was measured")
    accesses = len(facts.accesses)
    wild = [access for access in facts.accesses if access.outside]
    if wild:
        # The first launch is the cause: what it read spreads, and may lead later ones astray.
        outside = sum(access.outside for access in wild)
        detail = _outside(wild[0], len(wild))
        return judge_figure(
            Rule.MEMORY, outside, 0, "bytes", detail, shape=FaultKind.OUTSIDE, chances=accesses
        )
    if facts.unwritten_rows:
        detail = _unwritten(facts)
        return judge_figure(
            Rule.MEMORY, facts.unwritten_rows, 0, "rows", detail, shape=FaultKind.UNWRITTEN, chances=accesses
        )
    kernels = {access.kernel for access in facts.accesses}
    detail = f"{accesses} accesses of {plural(len(kernels), 'kernel')} were inside their tensors"
    return passed(Rule.MEMORY, 0, 0, "bytes", detail, chances=accesses)


def judge_memory(observed: ObservedCase) -> Judgement:
    """Judge the first step that breaks the rule, or all of them; SKIP where no accesses were measured."""
    steps = numbered_steps(observed.case, observed.observation)
    measured = [
        (number, step, facts.accesses)
        for number, step, facts in steps
        if facts.accesses is not None and facts.accesses.accesses
    ]
    if not measured:
        return skip(Rule.MEMORY, f"arm {observed.case.arm.name} measured no access of any kernel")
    judged = [(number, step, judge_accesses(accesses)) for number, step, accesses in measured]
    broken = [found for found in judged if found[2].verdict is Verdict.FAIL]
    number, step, worst = broken[0] if broken else judged[-1]
    share = min(accesses.share for _, _, accesses in measured)
    detail = f"step {number} '{step}': {worst.detail}; {share:.0%} of the bytes were measured"
    return replace(worst, detail=detail, steps=tuple(number for number, *_ in broken))


def _outside(access: KernelAccess, accesses: int) -> str:
    """Return which kernel, argument and rows of the first of `accesses` are outside."""
    argument = f" ({access.argument})" if access.argument else ""
    text = (
        f"kernel {access.kernel} touched bytes [{access.first}, {access.end}) of {access.tensor}{argument}, "
        f"which has {access.size}"
    )
    if access.wild:
        rows = access.shape[0] if access.shape else 1
        where = "in the storage of which it is a view" if access.in_storage else "outside of any memory"
        text += f": {rows_in_words(access.wild)} of {rows}, {where}"
    return text if accesses == 1 else f"{text}; {accesses - 1} more accesses were outside"


def _unwritten(facts: AccessFacts) -> str:
    read = sum(access.unwritten for access in facts.accesses)
    text = f"{facts.unwritten_rows} rows depend on {read} bytes that nothing had written"
    first = next((access for access in facts.accesses if access.unwritten), None)
    if first is not None:
        return f"{text}; kernel {first.kernel} read {first.tensor} ({first.argument}) first"
    call = next((call for call in facts.calls if call.unwritten), None)
    return text if call is None else f"{text}; {call.operation} was given {', '.join(call.unwritten)}"


def judge_step(facts: AccessFacts, tokens: int) -> Iterator[Judgement]:
    """Yield R10 and R14 of a step of `tokens` rows, and R0 where two configurations were compared."""
    yield judge_step_rows(facts, tokens)
    yield judge_accesses(facts)
    if facts.compared:
        yield judge_configurations(facts)


def judge_step_rows(facts: AccessFacts, tokens: int) -> Judgement:
    """Judge the last row of a payload that any kernel read or wrote; ERROR where nothing was measured."""
    if not facts.accesses:
        return error(Rule.WORK, "no access of any kernel was measured")
    rows, access = payload_rows(facts)
    share = f"{facts.share:.0%} of the bytes of the step were measured"
    if access is None:
        return passed(Rule.WORK, 0, tokens, "rows", f"no kernel touched a payload; {share}", chances=1)
    of_payloads = (other for other in facts.accesses if other.of_payload)
    first = next((other for other in of_payloads if _end_of_rows(other) > tokens), access)
    detail = f"{_touch(first)} ({first.argument}); {share}"
    return judge_figure(Rule.WORK, rows, tokens, "rows", detail, shape=FaultKind.WORK, chances=1)


def judge_configurations(facts: AccessFacts) -> Judgement:
    """Count launches whose results depend on the configuration: a GPU may be tuned to either."""
    if not facts.compared:
        return error(Rule.OUTPUT, "no launch ran with two configurations")
    detail = f"{facts.compared} launches gave the same with the first and the largest configuration"
    if facts.disagreements:
        worst = facts.disagreements[0]
        first, largest = worst.configurations
        detail = (
            f"kernel {worst.kernel} writes {worst.argument} differently with {first} and with {largest}, "
            f"by {worst.difference:.3g} of its value"
        )
    broken = {disagreement.kernel for disagreement in facts.disagreements}
    return judge_figure(
        Rule.OUTPUT, len(broken), 0, "kernels", detail, shape=FaultKind.OUTPUT, chances=facts.compared
    )


MARGIN = 1.05
"""Accepted ratio of bytes moved to bytes that must move: fusion differs by less between torch versions.

Above it R10 fails; a kernel that reads the whole capacity is far above."""


def judge_kernels(calls: Sequence[GraphCall], tokens: int) -> Judgement:
    """Judge the most rows of any kernel against the step's; then kernels that ignore the step, then bytes.

    `calls` are one step of `tokens` rows. Rows are those of the call; a kernel over token rows whose size
    does not have the token symbol, in a graph that has one, does the same work for every step, so it is wrong
    also where the sizes of this call agree. ERROR where nothing was measured.
    """
    kernels = [kernel for call in calls for kernel in call.kernels]
    if not kernels or not all(call.generated for call in calls):
        return error(Rule.WORK, f"{len(calls)} calls of graphs and {len(kernels)} kernels were measured")
    rows = max(call.rows for call in calls)
    fixed = [
        kernel
        for call in calls
        if call.symbolic
        for kernel in call.kernels
        if kernel.rows is not None and not kernel.carries_tokens
    ]
    moved, needed = sum(call.bytes for call in calls), sum(call.ideal_bytes for call in calls)
    above = sum((kernel.rows or 0) > tokens for kernel in kernels)
    detail = (
        f"{above} of {len(kernels)} kernels run more than the step's {tokens} rows, "
        f"{len(fixed)} have a size without the token symbol; {moved:,} bytes moved, {needed:,} must"
    )
    if rows <= tokens and fixed:
        return judge_figure(
            Rule.WORK, len(fixed), 0, "kernels", detail, shape=FaultKind.FIXED_SIZE, chances=1
        )
    if rows <= tokens and moved > MARGIN * needed:
        return judge_figure(
            Rule.WORK, moved, MARGIN * needed, "bytes", detail, shape=FaultKind.TRAFFIC, chances=1
        )
    return judge_figure(Rule.WORK, rows, tokens, "rows", detail, shape=FaultKind.WORK, chances=1)

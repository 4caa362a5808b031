"""Check a buffer as `check` does, in this process, and call what may end a process, by name in a worker."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import torch

from deepstack_harness.catalogue.plans import Where, check_traces, plan_check
from deepstack_harness.contract.adapter import adapter_of
from deepstack_harness.contract.case import Regime, live_buffer
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.play.play_case import play_case

CAUGHT_BY: dict[str, int] = tomllib.loads(Path(__file__).with_name("caught_by.toml").read_text())["trace"]


def sample_for(buffer: str) -> tuple[str, ...]:
    """Return the traces of `check`, pairs of unusual inputs before plain ones, one put first.

    It is the one that caught the buffer when that was measured.  A number that is out of date costs
    time and decides nothing: the others are played up to the one that catches it.
    """
    sample = check_traces()
    return (*sample[CAUGHT_BY.get(buffer, len(sample)) :][:1], *reversed(sample))


def broken_in(
    make: BufferFactory,
    regime: Regime,
    traces: Sequence[str] | None = None,
    *,
    until_first: bool = False,
    until: Rule | None = None,
) -> dict[Rule, str]:
    """Return the rules that the traces of one regime see broken, with a trace and what was seen.

    With `until_first` the traces after the first that breaks a rule are not played, with `until` those
    after the first that breaks this rule.
    """
    buffer = live_buffer("checked", adapter_of(make))
    plan = [
        planned for planned in plan_check(Where("qwen3_vl"), buffer, traces) if planned.case.regime is regime
    ]
    broken: dict[Rule, str] = {}
    for planned in plan:
        if (broken and until_first) or until in broken:
            break
        for judgement in judge_case(planned, play_case(planned.case, {buffer: make})).judgements:
            if judgement.verdict in {Verdict.FAIL, Verdict.ERROR}:
                broken.setdefault(
                    judgement.rule, f"{planned.case.trace}: {judgement.verdict} {judgement.detail}"
                )
    return broken


def attend(tokens: int) -> list[int]:
    """Call torch's fused CPU attention as a compiled graph calls it; return the shape of the output.

    It ends its process at 0 tokens.
    """
    rows = torch.ones(1, 4, tokens, 32)
    out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(rows, rows, rows, is_causal=True)
    return list(out.shape)

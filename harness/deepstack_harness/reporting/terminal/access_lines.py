"""The lines under the table of `repro` that say which payload rows interpreted kernels touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepstack_harness.contract.facts.accesses import AccessFacts, rows_in_words

if TYPE_CHECKING:
    from deepstack_harness.contract.observation import Distances
    from deepstack_harness.oracles.judged_case import JudgedCase


def access_lines(judged: JudgedCase) -> Iterator[str]:
    """Yield a line for each step of an interpreted case whose output a payload moves."""
    for facts in judged.observation.steps:
        if facts.accesses is not None and facts.distances is not None and facts.distances.effect > 0:
            told = f"{_touched(facts.accesses)}; {_compared(facts.distances)}"
            yield f"{judged.case.subject}, '{facts.step}': {told}"


def _touched(facts: AccessFacts) -> str:
    levels = [access for access in facts.accesses if access.tensor.startswith("payload[")]
    spans = [span for access in levels for span in (*access.read, *access.written, *access.wild)]
    rows = f"payload {rows_in_words(spans)}" if spans else "no row of a payload"
    wild = sum(access.outside > 0 for access in facts.accesses)
    outside = f", {wild} accesses outside of their tensors" if wild else ""
    return f"{facts.launches} launches touched {rows}{outside} ({facts.share:.0%} of the bytes measured)"


def _compared(apart: Distances) -> str:
    return f"{apart.eager:.1e} from eager, which is {apart.rounding:.1e} from fp64; effect {apart.effect:.1e}"

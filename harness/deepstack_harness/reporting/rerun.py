"""How to play one case of a run again."""

import json
import shlex

from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.contract.case import parse_subject
from deepstack_harness.results.records import CaseRecord

_COLUMNS = ("family", "revision", "caller", "trace", "arm", "dtype")


def again(case: CaseRecord) -> str:
    """The command that plays this case and no other; empty for one of a test, which no command plays."""
    if case.family.partition(":")[0] not in FAMILIES:
        return ""
    revision, _ = parse_subject(case.subject)
    of_ones_own = ["--buffer", revision] if ":" in revision else []
    words = ["run", *of_ones_own, "--tier", "nightly", "--device", case.device, selection_of(case)]
    return f"python -m deepstack_harness {shlex.join(words)}"


def selection_of(case: CaseRecord) -> str:
    """What `run` takes as its SELECTION."""
    revision, caller = parse_subject(case.subject)
    values = (case.family, revision, caller, case.trace, case.arm, case.dtype)
    return " and ".join(
        f"{column} == {json.dumps(value)}" for column, value in zip(_COLUMNS, values, strict=True)
    )

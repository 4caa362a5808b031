"""The command that plays one case of a run again."""

import json
import shlex

from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.contract.buffer_ref import BufferKind
from deepstack_harness.contract.case import parse_subject
from deepstack_harness.results.records import CaseRecord

_COLUMNS = ("family", "revision", "caller", "trace", "arm", "dtype")
_PLAYED_BY_RUN = frozenset({BufferKind.REGISTERED, BufferKind.USER})


def again(case: CaseRecord) -> str:
    """Return the command that plays this case and no other; empty for cases that no command plays."""
    if case.family.partition(":")[0] not in FAMILIES or case.buffer.kind not in _PLAYED_BY_RUN:
        return ""  # a test's
    own = ["--buffer", case.buffer.name] if case.buffer.kind is BufferKind.USER else []
    words = ["run", *own, "--tier", "nightly", "--device", case.device, selection_of(case)]
    return f"python -m deepstack_harness {shlex.join(words)}"


def selection_of(case: CaseRecord) -> str:
    """Return the expression that `run` takes as its SELECTION."""
    _, caller = parse_subject(case.subject)
    values = (case.family, case.buffer.name, caller, case.trace, case.arm, case.dtype)
    return " and ".join(
        f"{column} == {json.dumps(value)}" for column, value in zip(_COLUMNS, values, strict=True)
    )

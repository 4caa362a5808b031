"""Inputs of every compiled or captured class of a source: whether a warm-up sees them as later steps do.

A class that an engine compiles by a decorator (`support_torch_compile` of vLLM) is compiled in the profile
run, with the presence that its optional arguments have there, and the guards on it are dropped.  For each of
these arguments the calls of the class are followed back, through the methods that make them, to what decides
whether it is None.  Nothing of the source runs, and no name of a model or of an argument is known here.

Where no class is compiled, as in SGLang, these are the models that graph runners capture and replay.

Read in vLLM 0.22.1 to 0.33.0: the profile run calls `forward` without `embed_input_ids` (`_dummy_run` of
v1/worker/gpu_model_runner.py).  What the runner gives to every model is `RUNNER_INPUTS` of the engine.
"""

from deepstack_harness.audit.inputs.arguments import Arguments
from deepstack_harness.audit.inputs.attributes import ReadAttributes
from deepstack_harness.audit.inputs.captures import Captures
from deepstack_harness.audit.inputs.conditions import Conditions
from deepstack_harness.audit.inputs.evaluation import Callers
from deepstack_harness.audit.inputs.index import ClassIndex
from deepstack_harness.audit.inputs.phases import Phases
from deepstack_harness.audit.inputs.replays import Regions
from deepstack_harness.audit.inputs.rows import (
    AuditedInputs,
    InputChange,
    InputKind,
    InputSeen,
    InputStanding,
    Place,
    Region,
    Standing,
    count,
    in_order,
)
from deepstack_harness.engines.discover import collector_paused
from deepstack_harness.engines.kinds.vllm import RUNNER_INPUTS
from deepstack_harness.sources.source import Source

__all__ = [
    "AuditedInputs",
    "InputChange",
    "InputKind",
    "InputSeen",
    "InputStanding",
    "Place",
    "Region",
    "Standing",
    "audit_inputs",
    "count",
]

DECORATOR = "support_torch_compile"


def audit_inputs(source: Source) -> AuditedInputs:
    """Return every compiled or captured class of a source, and what is known of each input of it.

    Raises what `Source.python_files` raises.
    """
    with collector_paused():
        phases = Phases(ClassIndex(source))
        owners, unread = phases.index.compiled_by(DECORATOR), list[str]()
        is_compiled = bool(owners)
        if is_compiled:
            unread = RUNNER_INPUTS.not_read_in(source)
            arguments, attributes = Arguments(Callers(Conditions(phases)), unread), ReadAttributes(phases)
            rows = [
                row for owner in owners for row in (*arguments.of_class(owner), *attributes.of_class(owner))
            ]
        else:
            captures = Captures(Regions(phases))
            owners = captures.regions()
            rows = [row for owner in owners for row in captures.of_class(owner)]
    return AuditedInputs(
        tuple(Region(owner.node.name, owner.member, owner.node.lineno) for owner in owners),
        tuple(in_order(rows)),
        captured=bool(owners) and not is_compiled,
        unread=tuple(unread),
    )

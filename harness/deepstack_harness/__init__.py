"""Find what `torch.compile` does to models that keep state in side buffers.

The package is read along the way of the data: a trace is played over a family
and a revision under an arm (`deepstack_harness.play`), the facts become an `Observation`,
oracles judge it rule by rule, and commands print the rows.  Importing this
package, or anything in its first rooms, never imports torch.

The names in `__all__` are public: they are imported from here, when they are first used.  Everything else may
move or change with any release.  The options of the command line and the fields of `Row` are public too.
"""

TYPE_CHECKING = False  # `typing` would be half of the time that this import takes
if TYPE_CHECKING:
    from deepstack_harness.callers.engine import Engine
    from deepstack_harness.contract.arm_spec import ArmSpec
    from deepstack_harness.contract.protocols import (
        AnnouncesMoves,
        BeginsSteps,
        Buffer,
        BufferFactory,
        Decoder,
        Family,
        FollowsTensors,
        Inputs,
        ReleasesStorage,
        StatesVision,
        WorksInGraph,
        WrapsSession,
    )
    from deepstack_harness.contract.row import Row
    from deepstack_harness.contract.rules import Rule
    from deepstack_harness.contract.trace import Step, Trace
    from deepstack_harness.contract.verdicts import Judgement, Verdict
    from deepstack_harness.errors import ExitCode, HarnessError, MachineError, UsageError
    from deepstack_harness.families.qwen3_vl import Qwen3VLConfig, Qwen3VLFamily
    from deepstack_harness.fuzzing.request import broken_rules
    from deepstack_harness.fuzzing.strategies import engine_traces, schedules
    from deepstack_harness.oracles.observed_case import ObservedCase
    from deepstack_harness.pytest_plugin.arms_fixture import CompileArms
    from deepstack_harness.pytest_plugin.contract_fixture import DeepstackContract
    from deepstack_harness.pytest_plugin.graph_fixture import GraphBudget
    from deepstack_harness.pytest_plugin.kernel_fixture import KernelFactsOf
    from deepstack_harness.reporting.figures.base import Figure, Table
    from deepstack_harness.reporting.run_data import RunData
    from deepstack_harness.results.frames import read_run
    from deepstack_harness.revisions.reference import ReferenceBuffer

__version__ = "0.1.0"

__all__ = [
    "AnnouncesMoves",
    "ArmSpec",
    "BeginsSteps",
    "Buffer",
    "BufferFactory",
    "CompileArms",
    "Decoder",
    "DeepstackContract",
    "Engine",
    "ExitCode",
    "Family",
    "Figure",
    "FollowsTensors",
    "GraphBudget",
    "HarnessError",
    "Inputs",
    "Judgement",
    "KernelFactsOf",
    "MachineError",
    "ObservedCase",
    "Qwen3VLConfig",
    "Qwen3VLFamily",
    "ReferenceBuffer",
    "ReleasesStorage",
    "Row",
    "Rule",
    "RunData",
    "StatesVision",
    "Step",
    "Table",
    "Trace",
    "UsageError",
    "Verdict",
    "WorksInGraph",
    "WrapsSession",
    "broken_rules",
    "engine_traces",
    "read_run",
    "schedules",
]

_PROTOCOLS = (
    "AnnouncesMoves", "BeginsSteps", "Buffer", "BufferFactory", "Decoder", "Family", "FollowsTensors",
    "Inputs", "ReleasesStorage", "StatesVision", "WorksInGraph", "WrapsSession",
)  # fmt: skip
_ERRORS = ("ExitCode", "HarnessError", "MachineError", "UsageError")
_MODULES = {
    **dict.fromkeys(_PROTOCOLS, "contract.protocols"),
    **dict.fromkeys(_ERRORS, "errors"),
    "ArmSpec": "contract.arm_spec",
    "CompileArms": "pytest_plugin.arms_fixture",
    "DeepstackContract": "pytest_plugin.contract_fixture",
    "Engine": "callers.engine",
    "Figure": "reporting.figures.base",
    "GraphBudget": "pytest_plugin.graph_fixture",
    "Judgement": "contract.verdicts",
    "KernelFactsOf": "pytest_plugin.kernel_fixture",
    "ObservedCase": "oracles.observed_case",
    "Qwen3VLConfig": "families.qwen3_vl",
    "Qwen3VLFamily": "families.qwen3_vl",
    "ReferenceBuffer": "revisions.reference",
    "Row": "contract.row",
    "Rule": "contract.rules",
    "RunData": "reporting.run_data",
    "Step": "contract.trace",
    "Table": "reporting.figures.base",
    "Trace": "contract.trace",
    "Verdict": "contract.verdicts",
    "broken_rules": "fuzzing.request",
    "engine_traces": "fuzzing.strategies",
    "read_run": "results.frames",
    "schedules": "fuzzing.strategies",
}
"""Where each public name is defined; a module is imported by the first use of one of its names."""


def __getattr__(name: str) -> object:
    """Import a public name; see PEP 562."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]

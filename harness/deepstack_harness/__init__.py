"""Find what `torch.compile` does to models that keep state in side buffers.

The package is read along the way of the data: a trace is played over a family and a revision under an arm
(`deepstack_harness.play`), the facts become an `Observation`, oracles judge it rule by rule, and commands
print the rows. Importing this package, or anything in its first rooms, never imports torch.

Public are the names in `__all__`, which are imported from here when they are first used, the options of the
command line, the fields of `Row`, the groups of entry points, and the fixtures of the pytest plugin. Every
room below is private, as its docstring states: its modules and names may move or change with any release.
"""

TYPE_CHECKING = False  # `typing` would be half of the time that this import takes

if TYPE_CHECKING:
    from deepstack_harness.compile.watched import restore_guards, watch_guards
    from deepstack_harness.contract.arm import ArmSpec
    from deepstack_harness.contract.oracles.trace_audit import ObservedCase
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
    from deepstack_harness.contract.rules import Rule
    from deepstack_harness.contract.trace import Step, Trace
    from deepstack_harness.contract.verdicts import Judgement, Row, Verdict
    from deepstack_harness.errors import ExitCode, HarnessError, MachineError, UsageError
    from deepstack_harness.fuzz.campaign import broken_rules
    from deepstack_harness.fuzz.strategies import engine_traces, schedules
    from deepstack_harness.models.engine import Engine
    from deepstack_harness.models.qwen3_vl import Qwen3VLConfig, Qwen3VLFamily
    from deepstack_harness.models.reference import ReferenceBuffer
    from deepstack_harness.play.region_calls import Call
    from deepstack_harness.play.steps import compile_steps
    from deepstack_harness.pytest_plugin.compile_arms import CompileArms
    from deepstack_harness.pytest_plugin.fixtures import DeepstackContract, GraphBudget, KernelFactsOf
    from deepstack_harness.runs.frames import read_run
    from deepstack_harness.runs.report.run_data import Figure, RunData, Table


__version__ = "0.1.0"

__all__ = [
    "AnnouncesMoves",
    "ArmSpec",
    "BeginsSteps",
    "Buffer",
    "BufferFactory",
    "Call",
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
    "compile_steps",
    "engine_traces",
    "read_run",
    "restore_guards",
    "schedules",
    "watch_guards",
]

_PROTOCOLS = (
    "AnnouncesMoves", "BeginsSteps", "Buffer", "BufferFactory", "Decoder", "Family", "FollowsTensors",
    "Inputs", "ReleasesStorage", "StatesVision", "WorksInGraph", "WrapsSession",
)  # fmt: skip
_ERRORS = ("ExitCode", "HarnessError", "MachineError", "UsageError")
_MODULES = {
    **dict.fromkeys(_PROTOCOLS, "contract.protocols"),
    **dict.fromkeys(_ERRORS, "errors"),
    "ArmSpec": "contract.arm",
    "Call": "play.region_calls",
    "CompileArms": "pytest_plugin.compile_arms",
    "DeepstackContract": "pytest_plugin.fixtures",
    "Engine": "models.engine",
    "Figure": "runs.report.run_data",
    "GraphBudget": "pytest_plugin.fixtures",
    "Judgement": "contract.verdicts",
    "KernelFactsOf": "pytest_plugin.fixtures",
    "ObservedCase": "contract.oracles.trace_audit",
    "Qwen3VLConfig": "models.qwen3_vl",
    "Qwen3VLFamily": "models.qwen3_vl",
    "ReferenceBuffer": "models.reference",
    "Row": "contract.verdicts",
    "Rule": "contract.rules",
    "RunData": "runs.report.run_data",
    "Step": "contract.trace",
    "Table": "runs.report.run_data",
    "Trace": "contract.trace",
    "Verdict": "contract.verdicts",
    "broken_rules": "fuzz.campaign",
    "compile_steps": "play.steps",
    "engine_traces": "fuzz.strategies",
    "read_run": "runs.frames",
    "restore_guards": "compile.watched",
    "schedules": "fuzz.strategies",
    "watch_guards": "compile.watched",
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

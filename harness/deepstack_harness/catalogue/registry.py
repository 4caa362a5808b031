"""Names of families, callers and systems other than the buffer, and where each is defined (MODULE:ATTRIBUTE).

Nothing is imported before a name is loaded, so that listing names costs no torch. Names of ours, and their
summaries, are read from their classes by syntax (`read_classes`). Names of buffers are in
`deepstack_harness.catalogue.buffers`. Each kind has one typed function that loads its names:

| kind | function |
|---|---|
| families | `family_named` |
| revisions, mutants and right buffers | `deepstack_harness.catalogue.buffers.buffer_named` |
| callers | `deepstack_harness.models.engine.caller_of` |
| placeholder ranges | `deepstack_harness.audit.ranges.range_named` |
| dual-stream projections | `deepstack_harness.audit.streams.projections.dual_stream_named` |
| systems | `deepstack_harness.audit.systems.system_of` |
| programs of incidents of steps | `deepstack_harness.play.steps_work.measure_incident` |
| oracles of other packages | `deepstack_harness.contract.oracles.judge.extra_oracles` |
| figures of other packages | `deepstack_harness.runs.report.figures.figures_of` |
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypeIs

from deepstack_harness.contract.names import Entry, Names
from deepstack_harness.contract.protocols import Family, FamilyWithVariants
from deepstack_harness.errors import UsageError
from deepstack_harness.text import parse_python

MODELS = Path(__file__).resolve().parents[1] / "models"
"""The folder of decoders, buffers and engines."""


@dataclass(frozen=True)
class ReadClass:
    """A class as its file has it: MODULE:CLASS, its name, and the first line of its docstring.

    `stated` are the class attributes that are a text or a truth value, or a member of an enum, by the name
    of the member (`R1` of `Rule.STRUCTURE`).
    """

    target: str
    name: str
    summary: str
    stated: Mapping[str, str | bool]


def read_classes(file: Path, package: str = "deepstack_harness.models") -> Iterator[ReadClass]:
    """Read the classes of a module of `package` by syntax, in their order.

    The class `SomeFault` has the name `some_fault`, unless it states a `name`. A call of
    `models.regions.program.changed` makes a class too.
    """
    for node in parse_python(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=class_name, body=body):
                summary, stated = ast.get_docstring(node) or "", dict(_stated(body))
            case ast.Assign(value=ast.Call(func=ast.Name(id="changed"), args=args, keywords=members)):
                class_name, promise, summary = map(ast.literal_eval, args[1:4])
                stated = {"promise": promise, **dict(_stated(members))}
            case _:
                continue
        yield ReadClass(
            f"{package}.{file.stem}:{class_name}",
            str(stated.get("name") or re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()),
            summary.partition("\n")[0],
            stated,
        )


def _stated(members: Iterable[ast.stmt | ast.keyword]) -> Iterator[tuple[str, str | bool]]:
    for member in members:
        match member:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.keyword(arg=str(name), value=value)
            ):
                match value:
                    case ast.Constant(value=str() | bool() as constant):
                        yield name, constant
                    case ast.Attribute(attr=attribute):
                        yield name, attribute


def read_programs(folder: Path) -> Iterator[tuple[str, Entry]]:
    """Read the programs of a package of `deepstack_harness.models` by syntax, file by file.

    A program is a function that returns a `Program` or a `SplitProgram`. The text after `Fault:` in its
    docstring is what is wrong with it.
    """
    for file in sorted(folder.glob("*.py")):
        for node in parse_python(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and ast.unparse(node.returns or node) in (
                "Program",
                "SplitProgram",
            ):
                summary, _, rest = (ast.get_docstring(node) or "").partition("\n")
                fault = " ".join(rest.partition("Fault: ")[2].split()).rstrip(".")
                target = f"deepstack_harness.models.{folder.name}.{file.stem}:{node.name}"
                yield node.name, Entry(target, summary, fault=fault)


def family_named(text: str) -> Family:
    """Return the family with the name `qwen3_vl` or, for a variant, `granite4_vision:payload_first+opaque`.

    Raises `UsageError` that lists the known names for an unknown family or variant, and for
    variants that contradict each other.
    """
    base, colon, variants = text.partition(":")
    family = FAMILIES.load(base, _is_family, f"a family: an object with {', '.join(_MEMBERS)}")
    if not colon:
        return family
    if not _has_variants(family):
        raise UsageError(f"family '{base}' has no variants, so there is no '{text}'")
    return family.variant(variants)


_MEMBERS = ("name", "hidden", "levels", "routed", "build", "positions")


def _is_family(loaded: object) -> TypeIs[Family]:
    return all(hasattr(loaded, member) for member in _MEMBERS)


def _has_variants(family: Family) -> TypeIs[FamilyWithVariants]:
    return hasattr(family, "variant")


def _read_family(name: str) -> Entry:
    """Return the entry of the module `models/NAME.py`, whose family class states `base = NAME`."""
    classes = read_classes(MODELS / f"{name}.py")
    summary = next(cls.summary for cls in classes if cls.stated.get("base") == name)
    return Entry(f"deepstack_harness.models.{name}:FAMILY", summary)


FAMILIES = Names(
    "family",
    {
        name: _read_family(name)
        for name in ("qwen3_vl", "qwen3_omni_moe_thinker", "granite4_vision", "gemma4")
    },
    "families",
)
"""Decoders; their variants are in `deepstack_harness.models.variants`."""


def _read_callers() -> Iterator[tuple[str, Entry]]:
    """Yield the engines that state whether they are `faulty`; their bases do not."""
    for module in ("engine", "engine_faults", "engine_layouts", "per_layer_inputs"):
        for cls in read_classes(MODELS / f"{module}.py"):
            if "faulty" in cls.stated:
                yield (
                    cls.name,
                    Entry(cls.target, cls.summary, fault=cls.summary if cls.stated["faulty"] else ""),
                )


CALLERS = Names("caller", dict(_read_callers()), "callers")
"""Code that calls a buffer and a decoder; `REVISION@CALLER` names one that is not the correct engine."""

SYSTEMS = Names(
    "system",
    {
        "placeholder_ranges": Entry(
            "deepstack_harness.audit.systems:PlaceholderRanges",
            "which tokens of a placeholder receive embeddings",
        ),
        "dual_stream": Entry(
            "deepstack_harness.audit.systems:DualStreams", "two projections of one input on two streams"
        ),
        "kernels": Entry(
            "deepstack_harness.audit.systems:Kernels", "code generated for a decoder with its buffer"
        ),
    },
)
"""Systems other than the buffer, each a `deepstack_harness.audit.systems.System`; they play no trace."""

SYSTEMS_OF_SOURCES = ("placeholder_ranges", "dual_stream")
"""Systems that a vLLM source has code of, which `audit` judges too."""

ORACLES_BESIDE: Mapping[str, Entry] = {
    "R10": Entry(
        "deepstack_harness.contract.oracles.compiler:judge_kernels",
        "rows, sizes and bytes of generated kernels",
    ),
    "R12": Entry(
        "deepstack_harness.contract.oracles.neighbours:judge_ranges", "wrong answers of a placeholder range"
    ),
    "R13": Entry(
        "deepstack_harness.contract.oracles.neighbours:judge_ordering",
        "pairs that nothing orders, other results, surplus subgraphs",
    ),
    "R14": Entry(
        "deepstack_harness.contract.oracles.compiler:judge_accesses",
        "bytes outside of tensors, rows of memory never written",
    ),
}
"""Oracles of the other systems; those of the buffer are in `contract.oracles.judge`."""

EXTRA_FIGURES = Names("figure", {}, "figures")
"""Figures of the report that other packages declare: functions from RunData to Figure."""


_EMPTY, _WRAPS = "an empty mask", "end index 0"

PLACEHOLDER_RANGES = Names(
    "placeholder range",
    {
        "reference": Entry("deepstack_harness.audit.ranges:ReferenceRange", "a list, bad arguments raise"),
        "tensor": Entry(
            "deepstack_harness.audit.ranges:TensorRange", "cumulative sum as tensor, indexed at every call"
        ),
        "list": Entry(
            "deepstack_harness.audit.ranges:ListRange", "cumulative sum as list, as vLLM 0.20.0 on"
        ),
        "tensor_empty": Entry("deepstack_harness.audit.ranges:EmptyTensorRange", "tensor", fault=_EMPTY),
        "tensor_wraps": Entry("deepstack_harness.audit.ranges:WrapsTensorRange", "tensor", fault=_WRAPS),
        "tensor_faulty": Entry(
            "deepstack_harness.audit.ranges:FaultyTensorRange",
            "tensor, as vLLM 0.16.0 .. 0.19.1",
            fault=f"{_EMPTY}; {_WRAPS}",
        ),
        "list_empty": Entry("deepstack_harness.audit.ranges:EmptyListRange", "list", fault=_EMPTY),
        "list_wraps": Entry("deepstack_harness.audit.ranges:WrapsListRange", "list", fault=_WRAPS),
        "list_faulty": Entry(
            "deepstack_harness.audit.ranges:FaultyListRange", "list", fault=f"{_EMPTY}; {_WRAPS}"
        ),
    },
)
"""Factories of placeholder ranges: each a `deepstack_harness.audit.ranges.MakeRange`."""


DUAL_STREAM = Names(
    "dual-stream variant",
    {
        "sequential": Entry(
            "deepstack_harness.audit.streams.projections:SEQUENTIAL", "one projection after the other"
        ),
        "dual": Entry(
            "deepstack_harness.audit.streams.projections:DUAL",
            "a stream for each projection, ordered by events, as vLLM #36795",
        ),
        "dual_of_copy": Entry(
            "deepstack_harness.audit.streams.projections:DUAL_OF_COPY",
            "dual over a copy that the allocator is told of",
        ),
        "start_forgotten": Entry(
            "deepstack_harness.audit.streams.projections:START_FORGOTTEN",
            "dual",
            fault="the other stream does not wait for the input",
        ),
        "done_forgotten": Entry(
            "deepstack_harness.audit.streams.projections:DONE_FORGOTTEN",
            "dual",
            fault="nobody waits for the other stream",
        ),
        "done_recorded_outside": Entry(
            "deepstack_harness.audit.streams.projections:DONE_RECORDED_OUTSIDE",
            "dual",
            fault="event 1 recorded outside the auxiliary stream",
        ),
        "start_waited_too_early": Entry(
            "deepstack_harness.audit.streams.projections:START_WAITED_TOO_EARLY",
            "dual",
            fault="event 0 waited for before it is recorded",
        ),
        "done_waited_too_early": Entry(
            "deepstack_harness.audit.streams.projections:DONE_WAITED_TOO_EARLY",
            "dual",
            fault="event 1 waited for before it is recorded",
        ),
        "memory_reused_too_early": Entry(
            "deepstack_harness.audit.streams.projections:MEMORY_REUSED_TOO_EARLY",
            "dual over a copy",
            fault="memory given back while the other stream reads",
        ),
        "fixed_op": Entry(
            "deepstack_harness.audit.streams.projections:FIXED_OP", "dual behind an op that takes its weights"
        ),
        "named_op": Entry(
            "deepstack_harness.audit.streams.projections:NAMED_OP",
            "dual behind an op that takes the layer's name",
            fault="the name in the graph: every layer a subgraph of its own (vLLM #38152)",
        ),
    },
)
"""Dual-stream projections: each a `deepstack_harness.audit.streams.projections.DualStream`."""

HISTORIES = Names("program", dict(read_programs(MODELS / "histories")))
"""Programs of incidents of steps: functions that return a region and its calls."""

VARIANTS: Mapping[str, Names] = {
    "placeholder_ranges": PLACEHOLDER_RANGES, "dual_stream": DUAL_STREAM, "steps": HISTORIES,
}  # fmt: skip
"""Variants of each of `SYSTEMS` but for the kernels, and the programs of steps.

The `fault` of an entry is what is wrong with it.
"""

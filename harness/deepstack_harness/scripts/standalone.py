"""Standalone programs and pytest files that show an incident, for an upstream issue.

What is written needs torch (the pytest file: and pytest), and nothing of the
harness; it exits with 1, and prints a line for each step that is wrong.  One line is
marked `# THE FAULT; the fix: ...`: with the statement that the mark gives in its
place, the fault is gone.  Facts come from the catalogue; `templates/` has, in a folder
named by the incident's id, the buffer and the engine around it (`body.py.jinja`), or a
whole script and test of its own wording.  The bases that a body extends:
`compiled.jinja` (output of a compiled decoder against eager), `counted.jinja` (graphs
built, guards kept), `replayed.jinja` (a captured graph), `rows.jinja` (the buffer alone).
"""

import re
import textwrap
from collections.abc import Sequence
from types import MappingProxyType

import jinja2

from deepstack_harness.catalogue.engine_flags import engine_flags
from deepstack_harness.catalogue.incidents import DEEPSTACK, Incident
from deepstack_harness.catalogue.registry import CALLERS, FAMILIES, MUTANTS, REVISIONS, resolve
from deepstack_harness.catalogue.variants import VARIANTS
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import ENGINE, parse_subject
from deepstack_harness.contract.protocols import Family
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError

# The subject whose semantics the templates inline, and the arm that they run it under, if any.
SHOWN = MappingProxyType(
    {
        "43602": ("pr40932", "eager/drop_all"),
        "41485": ("pr40145", "eager"),
        "53516": ("pr40932", "eager/drop_all"),
        "26626": ("reference@skips_set", "eager/drop_all"),
        "1635": ("reference@overwrites_payload", "eager/drop_all"),
        "2296": ("reference@takes_one_span", "eager/drop_all"),
        "198": ("reference@asks_by_batch_size", "eager/drop_all"),
        "35917": ("reference@ids_while_profiling", "eager/drop_all"),
        "S9": ("pr43617", "eager"),
        "S6": ("pr43617", "eager"),
        "S8": ("reference@micro_batches", "eager/drop_all"),
        "replayed-clear": ("pr43617", "eager/full"),
        "5962": ("pr43617", "eager/full"),
        "33726": ("rebinds_on_set", "eager/full"),
        "50891": ("pr40932", "eager/drop_all"),
        "40917": ("granite_full@static_inputs", "inductor/drop_all/no_size_asserts"),
        "44384": ("original@made_in_float32_on_cpu", "eager"),
        "49384": ("pr43617@without_vision_tower", "eager/drop_all"),
        "18098": ("reference@payload_not_sharded", "eager/tp2"),
        "pipeline": ("reference@pipeline_loses_levels", "eager/drop_all"),
        "16785": ("pr40932", "eager/stock"),
        "2266": ("reference@state_in_trace", "eager/stock"),
        "34690": ("reference@order_of_additions", "eager/drop_all"),
        "40143": ("tensor_faulty", ""),
        "36795": ("named_op", ""),
    }
)

# What a script needs beyond the usual: torch saves no eager artifact before 2.11.
_NEEDS = MappingProxyType({"50891": "torch >= 2.11", "40917": "torch >= 2.10, a C++ compiler"})
_USUAL = "torch >= 2.10"

_WIDTH = 100
_LONGEST = 110
_WRITTEN = frozenset({Op.PROFILE, Op.SET, Op.GET, Op.CLEAR, Op.FORWARD})
_CAPTURED = frozenset({Op.CAPTURE, Op.SET, Op.REPLAY})
_GROWING = frozenset({"S6", "5962"})
_RELOADED = frozenset({"50891"})


def render_script(incident: Incident, family: str) -> str:
    """A program of some 80 lines that plays the incident's trace and exits with 1.

    `family` gives the number of levels and the hidden size; an incident that plays
    no trace has none, and needs none.  Raises `UsageError`
    for an incident that has no script, another family than the incident's, or a
    trace that no script can play.
    """
    return _render("script", incident, family)


def render_pytest(incident: Incident, family: str) -> str:
    """A pytest file, red on the fault; raises as `render_script` does."""
    return _render("test", incident, family)


def _render(kind: str, incident: Incident, family: str) -> str:
    subject, arm = _shown(incident)
    names = [f"{incident.id}/{kind}.py.jinja", f"{kind}.py.jinja"]
    template = environment().select_template(names)
    text = template.render(
        incident=incident,
        revision=subject,
        summary=_summary(incident.system, subject),
        needs=_NEEDS.get(incident.id, _USUAL),
        **(_played(incident, subject, arm, family) if incident.system == DEEPSTACK else {}),
    )
    return _tidy(text)


def _played(incident: Incident, subject: str, arm: str, family: str) -> dict[str, object]:
    """What the templates of a decoder that plays a trace know besides."""
    trace, spec = _trace(incident, subject, arm, family), ArmSpec.parse(arm)
    model = _family(incident, family)
    return {
        "family": family, "flags": engine_flags(spec), "backend": spec.backend, "trace": trace,
        "padded": _padded(trace), "levels": model.levels, "hidden": model.hidden,
    }  # fmt: skip


def _summary(system: str, subject: str) -> str:
    """What is inlined, in a sentence: the caller's where the fault is the caller's."""
    if system in VARIANTS:
        variant = VARIANTS[system][subject]
        return f"{variant.summary}; fault: {variant.fault}"
    revision, caller = parse_subject(subject)
    if caller != ENGINE:
        return "an engine around a buffer that keeps every rule; " + CALLERS[caller].summary
    return f"the buffer of {({**REVISIONS, **MUTANTS})[revision].summary}"


def _tidy(text: str) -> str:
    """As a formatter leaves it: two empty lines at most, one of them inside a class or function."""
    text = re.sub(r"\n{2,}(?=[ ])", "\n\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


def environment() -> jinja2.Environment:
    """What all templates of this package are rendered with."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("deepstack_harness.scripts"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["comment"] = _comment
    made.filters["steps"] = _steps
    return made


def _steps(trace: Trace, *left_out: str) -> str:
    """The trace as a list of (operation, tokens), on one line where a formatter would leave it there."""
    pairs = [f'("{step.op}", {step.tokens})' for step in trace if step.op not in left_out]
    line = f"STEPS = [{', '.join(pairs)}]"
    if len(line) <= _LONGEST:
        return line
    return "\n".join(["STEPS = [", *(f"    {pair}," for pair in pairs), "]"])


def _comment(text: str) -> str:
    """Each line as comment lines, those that go on indented."""
    wrapped = [
        textwrap.fill(
            line,
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.strip().splitlines()
    ]
    return "\n".join(wrapped) + "\n"


def _shown(incident: Incident) -> tuple[str, str]:
    if incident.id not in SHOWN:
        raise UsageError(
            f"no script can be written for incident {incident.id} ({incident.name}); "
            f"{', '.join(SHOWN)} have one"
        )
    return SHOWN[incident.id]


def _trace(incident: Incident, revision: str, arm: str, family: str) -> Trace:
    """The trace of the first run in which `revision` breaks a rule under `arm`."""
    runs = [run for run in incident.runs_of(family) if arm in run.arms and run.broken.get(revision)]
    if not runs:
        raise UsageError(
            f"incident {incident.id} has no run in which {revision} breaks a rule under '{arm}', "
            "which its script inlines"
        )
    trace, written = Trace.parse(runs[0].trace), _written(incident, arm)
    for step in trace:
        plain = (step.levels, step.hidden) == (None, None)
        if step.op not in written or not plain or not _fits(incident, step, trace.capacity):
            raise UsageError(
                f"a script has no step '{step}' at capacity {trace.capacity}: "
                f"it plays {', '.join(sorted(written))} of 1 to capacity tokens"
            )
    return trace


def _written(incident: Incident, arm: str) -> frozenset[Op]:
    """The steps that the incident's script can play."""
    if ArmSpec.parse(arm).captured:
        return _CAPTURED
    return _WRITTEN | {Op.RELOAD} if incident.id in _RELOADED else _WRITTEN


def _fits(incident: Incident, step: Step, capacity: int) -> bool:
    """Whether a script's buffer has room for the step: those about growth go above the capacity."""
    room = 2 * capacity if incident.id in _GROWING else capacity
    return step.op is Op.RELOAD or 0 < step.tokens <= room


def _family(incident: Incident, name: str) -> Family:
    if not incident.has_family(name):
        raise UsageError(
            f"incident {incident.id} has no family '{name}'; it has {', '.join(incident.families)}"
        )
    return resolve("family", FAMILIES, name.partition(":")[0])  # type: ignore[return-value]


def _padded(trace: Trace) -> Sequence[tuple[int, int]]:
    """(tokens set, tokens asked for) of every step that asks for more than was set."""
    pairs, tokens = [], 0
    for step in trace:
        if step.op is Op.SET:
            tokens = step.tokens
        elif 0 < tokens < step.tokens:
            pairs.append((tokens, step.tokens))
    return list(dict.fromkeys(pairs))

"""Standalone programs and pytest files that show an incident, to attach to an upstream issue.

A program needs torch and nothing of the harness (the pytest file needs pytest too).  It prints a line
for each wrong step and exits with 1.  One line is marked `# THE FAULT; the fix: ...`: with the statement
of the mark in its place, the fault is gone.

The catalogue says what a program shows (`[incident.script]`).  `templates/` has, in a folder named by the
incident's id, the buffer and the engine around it (`body.py.jinja`), or a whole script and test.  A body
extends one of four bases: `compiled.jinja` (output of a compiled decoder against eager),
`counted.jinja` (graphs built, guards kept), `replayed.jinja` (a captured graph), `rows.jinja` (the buffer
alone).  Templates restate buffers in ten lines instead of inlining the revisions, which take 40 to 90:
an issue has to be read.
"""

import re
import textwrap
from collections.abc import Sequence

import jinja2

from deepstack_harness.catalogue.engine_flags import engine_flags
from deepstack_harness.catalogue.incidents import DEEPSTACK, Incident, Script, catalogue
from deepstack_harness.catalogue.mutants import BUFFERS
from deepstack_harness.catalogue.registry import CALLERS
from deepstack_harness.catalogue.variants import VARIANTS
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import ENGINE, parse_subject
from deepstack_harness.contract.protocols import Family
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError

_WIDTH = 100
_LONGEST = 110
_WRITTEN = frozenset({Op.PROFILE, Op.SET, Op.GET, Op.CLEAR, Op.FORWARD})
_CAPTURED = frozenset({Op.CAPTURE, Op.SET, Op.REPLAY})


def render_script(incident: Incident, family: str) -> str:
    """Return a program of some 80 lines that plays the incident's trace and exits with 1.

    `family` gives the number of levels and the hidden size; it is empty for an incident that plays no
    trace.  Raises `UsageError` for an incident without a script, a family that the incident does not
    have, and a trace that no script can play.
    """
    return _render("script", incident, family)


def render_pytest(incident: Incident, family: str) -> str:
    """Return a pytest file that is red on the fault; raises what `render_script` raises."""
    return _render("test", incident, family)


def render_upstream_test(incident: Incident) -> str:
    """Return a test for the engine's own suite, which imports the engine and nothing of the harness.

    Raises `UsageError` for an incident that has none.
    """
    made = environment()
    name = f"{incident.id}/upstream.py.jinja"
    having = sorted(
        one.partition("/")[0] for one in made.list_templates() if one.endswith("/upstream.py.jinja")
    )
    if name.partition("/")[0] not in having:
        raise UsageError(
            f"incident {incident.id} has no test for an engine's own suite, only {', '.join(having)} has: "
            "--pytest writes one that needs torch and pytest alone"
        )
    return _tidy(made.get_template(name).render(references=", ".join(incident.references)))


def _render(kind: str, incident: Incident, family: str) -> str:
    script = _script_of(incident)
    template = _template(incident, kind)
    text = template.render(
        incident=incident,
        revision=script.subject,
        summary=_summary(incident.system, script.subject),
        needs=script.needs,
        **(_played(incident, script, family) if incident.system == DEEPSTACK else {}),
    )
    return _tidy(text)


def _template(incident: Incident, kind: str) -> jinja2.Template:
    """Return the incident's own script or test, or the common one that includes the incident's body."""
    made = environment()
    known = set(made.list_templates())
    own, body = f"{incident.id}/{kind}.py.jinja", f"{incident.id}/body.py.jinja"
    if not {own, body} & known:
        raise UsageError(
            f"no script can be written for incident {incident.id} ({incident.name}): "
            f"deepstack_harness/scripts/templates has no folder '{incident.id}'"
        )
    return made.get_template(own if own in known else f"{kind}.py.jinja")


def _played(incident: Incident, script: Script, family: str) -> dict[str, object]:
    """Return the further variables of templates that play a trace."""
    trace, spec = _trace(incident, script, family), ArmSpec.parse(script.arm)
    model = _family(incident, family)
    return {
        "family": family, "flags": engine_flags(spec), "backend": spec.backend.compiler, "trace": trace,
        "padded": _padded(trace), "levels": model.levels, "hidden": model.hidden,
    }  # fmt: skip


def _summary(system: str, subject: str) -> str:
    """Describe what is inlined: the caller where the fault is the caller's, else the buffer."""
    if system in VARIANTS:
        variant = VARIANTS[system][subject]
        return f"{variant.summary}; fault: {variant.fault}"
    revision, caller = parse_subject(subject)
    if caller != ENGINE:
        rules = (
            "every rule" if revision == "reference" else f"every rule but this: {BUFFERS[revision].summary}"
        )
        return f"an engine around a buffer that keeps {rules}; {CALLERS[caller].summary}"
    return f"the buffer of {BUFFERS[revision].summary}"


def _tidy(text: str) -> str:
    """Remove surplus empty lines, as a formatter does: two at most, one inside a class or function."""
    text = re.sub(r"\n{2,}(?=[ ])", "\n\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


def environment() -> jinja2.Environment:
    """Make the environment that renders all templates of this package."""
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
    """Render the trace as a list of (operation, tokens), on one line where it fits."""
    pairs = [f'("{step.op}", {step.tokens})' for step in trace if step.op not in left_out]
    line = f"STEPS = [{', '.join(pairs)}]"
    if len(line) <= _LONGEST:
        return line
    return "\n".join(["STEPS = [", *(f"    {pair}," for pair in pairs), "]"])


def _comment(text: str) -> str:
    """Wrap each line into comment lines; continuation lines are indented."""
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


def _script_of(incident: Incident) -> Script:
    if incident.script is None:
        have = ", ".join(each.id for each in catalogue() if each.script)
        raise UsageError(
            f"no script can be written for incident {incident.id} ({incident.name}); {have} have one"
        )
    return incident.script


def _trace(incident: Incident, script: Script, family: str) -> Trace:
    """Return the trace of the first run of `family` in which the subject breaks a rule under the arm."""
    runs = [
        run for run in incident.runs_of(family) if script.arm in run.arms and run.broken.get(script.subject)
    ]
    if not runs:
        raise UsageError(
            f"incident {incident.id} has no run of family '{family}' in which {script.subject} breaks a "
            f"rule under '{script.arm}', which its script inlines"
        )
    trace, written = Trace.parse(runs[0].trace), _written(script)
    for step in trace:
        plain = (step.levels, step.hidden) == (None, None)
        if step.op not in written or not plain or not _fits(script, step, trace.capacity):
            raise UsageError(
                f"a script has no step '{step}' at capacity {trace.capacity}: "
                f"it plays {', '.join(sorted(written))} of 1 to capacity tokens"
            )
    return trace


def _written(script: Script) -> frozenset[Op]:
    """Return the operations that the script can play."""
    if ArmSpec.parse(script.arm).captured:
        return _CAPTURED
    return _WRITTEN | {Op.RELOAD} if script.reloads else _WRITTEN


def _fits(script: Script, step: Step, capacity: int) -> bool:
    """Return whether the buffer of the script has room for the step, or grows for it."""
    room = 2 * capacity if script.grows else capacity
    return step.op is Op.RELOAD or 0 < step.tokens <= room


def _family(incident: Incident, name: str) -> Family:
    if not incident.has_family(name):
        raise UsageError(
            f"incident {incident.id} has no family '{name}'; it has {', '.join(incident.families)}"
        )
    from deepstack_harness.families.by_name import family_named  # imports torch

    return family_named(name.partition(":")[0])


def _padded(trace: Trace) -> Sequence[tuple[int, int]]:
    """Return (tokens set, tokens asked for) of every step that asks for more than was set."""
    pairs, tokens = [], 0
    for step in trace:
        if step.op is Op.SET:
            tokens = step.tokens
        elif 0 < tokens < step.tokens:
            pairs.append((tokens, step.tokens))
    return list(dict.fromkeys(pairs))

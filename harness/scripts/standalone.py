"""Standalone programs and pytest files that show an incident, for an upstream issue.

What is written needs torch (the pytest file: and pytest), and nothing of the
harness.  One line is marked `# THE FAULT; the fix: ...`: with the statement that
the mark gives in its place, the fault is gone.  Facts come from the catalogue;
`templates/` has the wording and the buffer, in a folder named by the incident's id.
"""

import textwrap
from collections.abc import Sequence
from types import MappingProxyType

import jinja2

from harness.arm import ArmSpec
from harness.errors import UsageError
from harness.incidents import Incident
from harness.protocols import Family
from harness.registry import FAMILIES, REVISIONS, resolve
from harness.trace import Op, Trace

# The revision whose semantics the templates inline, and the arm that they run it under.
SHOWN = MappingProxyType({"43602": ("pr40932", "eager/drop_all"), "41485": ("pr40145", "eager")})

_WIDTH = 100
_WRITTEN = frozenset({Op.SET, Op.GET, Op.CLEAR, Op.FORWARD, Op.PROFILE})


def render_script(incident: Incident, family: str) -> str:
    """A program of under 60 lines that plays the incident's trace and exits with 1.

    `family` gives the number of levels and the hidden size.  Raises `UsageError`
    for an incident that has no script, another family than the incident's, or a
    trace that no script can play.
    """
    return _render("script", incident, family)


def render_pytest(incident: Incident, family: str) -> str:
    """A pytest file, red on the fault; raises as `render_script` does."""
    return _render("test", incident, family)


def _render(kind: str, incident: Incident, family: str) -> str:
    revision, arm = _shown(incident)
    trace = _trace(incident, revision, arm)
    model = _family(incident, family)
    return (
        _environment()
        .get_template(f"{incident.id}/{kind}.py.jinja")
        .render(
            incident=incident,
            revision=revision,
            family=family,
            summary=REVISIONS[revision].summary,
            arm=ArmSpec.parse(arm),
            trace=trace,
            padded=_padded(trace),
            levels=model.levels,
            hidden=model.hidden,
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.scripts"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["comment"] = _comment
    return environment


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
            f"{' and '.join(SHOWN)} have one"
        )
    return SHOWN[incident.id]


def _trace(incident: Incident, revision: str, arm: str) -> Trace:
    """The trace of the first run in which `revision` breaks a rule under `arm`."""
    runs = [run for run in incident.run if arm in run.arms and run.broken.get(revision)]
    if not runs:
        raise UsageError(
            f"incident {incident.id} has no run in which {revision} breaks a rule under '{arm}', "
            "which its script inlines"
        )
    trace = Trace.parse(runs[0].trace)
    for step in trace:
        plain = (step.levels, step.hidden) == (None, None)
        if step.op not in _WRITTEN or not plain or not 0 < step.tokens <= trace.capacity:
            raise UsageError(
                f"a script has no step '{step}' at capacity {trace.capacity}: "
                f"it plays {', '.join(sorted(_WRITTEN))} of 1 to capacity tokens"
            )
    return trace


def _family(incident: Incident, name: str) -> Family:
    if name not in incident.families:
        raise UsageError(
            f"incident {incident.id} has no family '{name}'; it has {', '.join(incident.families)}"
        )
    return resolve("family", FAMILIES, name)  # type: ignore[return-value]


def _padded(trace: Trace) -> Sequence[tuple[int, int]]:
    """(tokens set, tokens asked for) of every step that asks for more than was set."""
    pairs, tokens = [], 0
    for step in trace:
        if step.op is Op.SET:
            tokens = step.tokens
        elif 0 < tokens < step.tokens:
            pairs.append((tokens, step.tokens))
    return list(dict.fromkeys(pairs))

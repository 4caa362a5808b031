"""A finding on a buffer as a standalone program, which needs torch only and exits with 1 on the fault.

The program plays the trace on the buffer and compares every answer with the payload that was set last.
A buffer of ours is inlined, a class of the user's or of another package is imported.  Of a vLLM class the
methods are cut out of the source that the program is called with.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from deepstack_harness.catalogue.mutants import BUFFERS
from deepstack_harness.clean_text import one_line, printable
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.scripts.inline import inlined
from deepstack_harness.scripts.standalone import environment

_WIDTH = 110
_OPTIONS = ("layout", "dtype", "values", "grad", "fail")
_NO_GRAPHS = frozenset({Op.CAPTURE, Op.REPLAY, Op.RELOAD})


@dataclass(frozen=True)
class Whose:
    """The class of a buffer: a named one, MODULE:CLASS, or a class of a vLLM source.

    `member` is the file inside the source that defines the class `name`; None for the other two.
    """

    name: str
    member: str | None = None

    @property
    def is_ours(self) -> bool:
        """True if the code can be inlined; the code of other packages is imported."""
        return self.name in BUFFERS.own

    @property
    def target(self) -> str:
        """MODULE:CLASS of a class that is imported."""
        return BUFFERS[self.name].target if self.name in BUFFERS else self.name


def render_finding(
    trace: Trace, rule: Rule, detail: str, whose: Whose, *, levels: int = 3, hidden: int = 8
) -> str:
    """Return the text of the program; `levels` and `hidden` are the usual sizes of the buffer that it makes.

    Raises `UsageError` for a trace with graphs, which a buffer alone does not have, and for payloads and
    settings of buffers that the program does not have.
    """
    levels, hidden = trace.levels or levels, trace.hidden or hidden
    if unusual := [*_unusual(trace)]:
        raise UsageError(f"a script cannot play '{trace}': it has no {', '.join(unusual)}")
    if whole := [str(step) for step in trace if step.op in _NO_GRAPHS]:
        raise UsageError(f"a script cannot play '{whole[0]}': it has only a buffer, and no graphs")
    text = environment().get_template("finding.py.jinja").render(
        trace=trace, whose=whose, levels=levels, hidden=hidden, said=_said(trace, rule, detail, whose),
        steps=_wrapped(f"STEPS = {list(_steps(trace, levels, hidden))}", "    ").replace("'", '"'),
        code=_code_of(whose.name) if whose.is_ours else "",
        made=whose.target.partition(":")[::2],
    )  # fmt: skip
    return text.strip() + "\n"


def _unusual(trace: Trace) -> Iterator[str]:
    """Iterate over what the program does not have: settings of the trace, options of its steps."""
    settings = {"dtype": trace.dtype, "mode": trace.mode, "buffers": trace.buffers > 1}
    yield from (key for key, value in settings.items() if value)
    for step in trace:
        yield from (f"{key}=" for key in _OPTIONS if getattr(step, key))


def _said(trace: Trace, rule: Rule, detail: str, whose: Whose) -> str:
    lines = [
        f"{whose.name} breaks rule {rule} ({rule.word}).",
        f"Seen: {detail}",
        f"The trace: {trace}",
    ]
    return "\n".join(_wrapped(f"# {one_line(printable(line, 2000))}", "#   ") for line in lines)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False)


def _steps(trace: Trace, levels: int, hidden: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield (call, tokens, levels, hidden) of every call on the buffer."""
    for step in trace:
        for call in ("get", "clear") if step.op in RUNS_DECODER else (str(step.op),):
            yield call, step.tokens, *_shape(step, levels, hidden)


def _shape(step: Step, levels: int, hidden: int) -> tuple[int, int]:
    """Return (levels, hidden) of a payload: the step's own, or else those of the program's buffer."""
    return (levels if step.levels is None else step.levels, hidden if step.hidden is None else step.hidden)


def _code_of(name: str) -> str:
    """Return the class of a revision or mutant of ours, under the name `Buffer`."""
    made_by = buffer_named(name)
    assert isinstance(made_by, type), name
    return f"{inlined(made_by)}\n\n\nBuffer = {made_by.__name__}"

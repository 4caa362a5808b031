"""Standalone programs that show an incident or a finding, to attach to an upstream issue.

The program of an incident needs torch and nothing of the harness, and its pytest file needs pytest too.  It
prints a line for each wrong step and exits with 1.  One line is marked `# THE FAULT; the fix: ...`: with the
statement of the mark in its place, the fault is gone.  `[incident.script]` names a right program of
`models/programs/`, and the line that has the fault.  These programs restate buffers in ten lines instead of
inlining the revisions, which take 40 to 90: an issue has to be read.  A program of steps is quoted with its
fault from `models/histories/`.

The program of a finding plays a trace on a buffer and compares every result of get with the payload that was
set last. A buffer of ours is inlined with everything of ours that it uses; a class of the user's or of
another package is imported. Of a vLLM class the methods are cut out of the source that the program is called
with.
"""

import ast
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from deepstack_harness.catalogue.buffers import BUFFERS, buffer_named
from deepstack_harness.catalogue.incidents import DEEPSTACK, STEPS, Incident, Script, catalogue
from deepstack_harness.catalogue.registry import CALLERS, HISTORIES, VARIANTS
from deepstack_harness.contract.arm import ArmSpec, GuardPolicy
from deepstack_harness.contract.case import ENGINE, parse_subject
from deepstack_harness.contract.engine_axes import engine_flags
from deepstack_harness.contract.protocols import payload_width
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.text import one_line, parse_python, printable

_OURS = "deepstack_harness."
_ERRORS = "deepstack_harness.errors"
_PROGRAMS = "deepstack_harness.models.programs"
_QUOTED = (_PROGRAMS, "deepstack_harness.models.histories")
_STEPS = f"{_PROGRAMS}.steps"
_BLOCKS = ("def ", "class ", "@")
_DROPPED = frozenset({"rule", "arm", "name", "in_graph"})
"""Class attributes that only the harness reads."""


class ProgramText:
    """Definitions after those that they use, without docstrings, and imports; our exceptions are plain ones.

    Programs are as their files have them, comments included.  `values` has statements that are written
    in place of those that bind a name.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = values or {}
        self.modules: set[str] = set()
        self.imports: dict[str, set[str]] = {}
        self.definitions: list[str] = []
        self.seen: set[tuple[str, str]] = set()

    def as_program(self) -> str:
        """Return all imports, those of the standard library first, the given values, and the definitions."""
        names = sorted(self.imports.items())
        lines = sorted(self.modules | {"import torch"})
        lines += [f"from {module} import {', '.join(sorted(imported))}" for module, imported in names]
        standard = [line for line in lines if re.split(r"[ .]", line)[1] in sys.stdlib_module_names]
        others = [line for line in lines if line not in standard]
        imports = "\n".join([*standard, "", *others]).strip()
        values = [code for code in self.definitions if code in self._values.values() and code[:2].isupper()]
        blocks = ["\n".join(values), *(code for code in self.definitions if code not in values)]
        text = "\n\n\n".join(filter(None, blocks))
        more = "\n" if text.startswith(_BLOCKS) else ""
        return f"{imports}\n\n{more}{text}"

    def add(self, module: str, name: str) -> None:
        """Collect what `module` binds to `name`; builtins need nothing."""
        node = _top_level(module).get(name)
        if node is None or (module, name) in self.seen:
            return
        self.seen.add((module, name))
        if isinstance(node, ast.Import):
            self.modules.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            source = str(node.module)
            if source == _ERRORS:
                self.definitions.append(f"class {name}(Exception):\n    pass")
            elif source.startswith(_OURS):
                self.add(source, name)
            else:
                self.imports.setdefault(source, set()).add(name)
        else:
            self.seen |= {(module, other) for other, same in _top_level(module).items() if same is node}
            if name in self._values:
                self.definitions.append(self._values[name])
                return
            text, used = _definition(module, name)
            for other in used:
                self.add(module, other)
            self.definitions.append(text)


@cache
def _definition(module: str, name: str) -> tuple[str, list[str]]:
    """Return the text of a definition, and the names that its code reads or binds."""
    node = _top_level(module)[name]
    bare = _DocstringRemover().visit(deepcopy(node))
    used = [part.id for part in ast.walk(bare) if isinstance(part, ast.Name)]
    return _quoted(module, node) if module.startswith(_QUOTED) else ast.unparse(bare), used


def _quoted(module: str, node: ast.stmt) -> str:
    """Return a definition as its file has it, with comments, without docstrings and words for our tools."""
    lines = _source(module).splitlines()
    dropped: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner) is not None:
            first, last = inner.body[0].lineno, int(inner.body[0].end_lineno or 0)
            dropped |= {*range(first, last + 1 + (not lines[last].strip()))}
    written = range(node.lineno, int(node.end_lineno or 0) + 1)
    text = "\n".join(lines[number - 1] for number in written if number not in dropped)
    return _FOR_TOOLS.sub("", text)


_FOR_TOOLS = re.compile(r" -> \w*Program(?=:$)|  # (?:type: ignore|noqa)\S*", re.MULTILINE)


def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


@cache
def _top_level(module: str) -> dict[str, ast.stmt]:
    """Return the statement that binds each name at the top level of a module."""
    bound: dict[str, ast.stmt] = {}
    for node in parse_python(_source(module)).body:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound |= {alias.asname or alias.name.partition(".")[0]: node for alias in names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound[name] = node
            case ast.Assign(targets=targets):
                nodes = (part for target in targets for part in ast.walk(target))
                bound |= {part.id: node for part in nodes if isinstance(part, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                bound[name] = node
    return bound


class _DocstringRemover(ast.NodeTransformer):
    """Transformer that removes docstrings, `@override`, and what only the harness reads."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [
            decorator for decorator in node.decorator_list if ast.unparse(decorator) != "override"
        ]
        if isinstance(node.returns, ast.Name) and node.returns.id.endswith("Program"):
            node.returns = None
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [
            statement
            for statement in node.body
            if not (
                isinstance(statement, ast.Assign)
                and isinstance(target := statement.targets[0], ast.Name)
                and target.id in _DROPPED
            )
        ] or [ast.Pass()]
        return self._without_docstring(node)

    def _without_docstring(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


_COMMENT_WIDTH = 100
"""Columns of a comment in a script."""
_LONGEST_LINE = 110
"""Columns of a line of code in a script, as in this package."""
_LIVE_OPS = frozenset({Op.PROFILE, Op.SET, Op.GET, Op.CLEAR, Op.FORWARD})
_CAPTURED_OPS = frozenset({Op.CAPTURE, Op.SET, Op.REPLAY})


def render_script(incident: Incident, family: str) -> str:
    """Return a program of 60 to 170 lines that plays the incident's trace and exits with 1.

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
        template.partition("/")[0]
        for template in made.list_templates()
        if template.endswith("/upstream.py.jinja")
    )
    if name.partition("/")[0] not in having:
        raise UsageError(
            f"incident {incident.id} has no test for an engine's own suite, only {', '.join(having)} has: "
            "--pytest writes one that needs torch and pytest alone"
        )
    references, place = ", ".join(incident.references), UPSTREAM_PLACES[incident.id]
    text = made.get_template(name).render(references=references, place=place)
    # Surplus empty lines go, as with a formatter: two at most, one inside a class or function.
    text = re.sub(r"\n{2,}(?=[ ])", "\n\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


UPSTREAM_PLACES = {"43602": "tests/compile/test_qwen3_vl_deepstack.py"}
"""The path of each test for an engine's own suite in the engine's repository."""


_SCRIPT = """
if __name__ == "__main__":
    found = {call}
    print("\\n".join(found) or "no fault")
    raise SystemExit(1 if found else 0)
"""
_TEST = """
def test_{name}():
    torch.compiler.reset()
    assert {call} == []
"""


def _render(kind: str, incident: Incident, family: str) -> str:
    """Return the header, the definitions that the incident's program needs, and how it is run."""
    script = _script_of(incident)
    if incident.system == DEEPSTACK:
        values = _trace_values(incident, script, family)
    else:
        values = {"BACKEND": f'BACKEND = "{script.arm.partition("/")[0]}"'}
    needed, call = _region_needs(script) if incident.system == STEPS else _program_needs(incident, script)
    quoted = ProgramText(values)
    for module, name in needed:
        quoted.add(module, name)
    text = _with_fault(quoted.as_program(), incident, script)
    lines = [f"Inlined: {_describe_subject(incident.system, script.subject)} ({script.subject})"]
    flags = engine_flags(ArmSpec.parse(script.arm)) if incident.system == DEEPSTACK else ""
    if flags and any(reference.startswith("vllm ") for reference in incident.references):
        lines.append(f"In vLLM: with {flags}")
    if kind == "script":
        lines.append(f"Run: python THIS_FILE, with {script.needs}, alone. Exit code 1: faulty, 0: not.")
    else:
        lines.append(f"Run: python -m pytest THIS_FILE, with {script.needs} and pytest, alone.")
    return f"{_header(incident, lines)}\n{text}{_frame(kind, incident, call)}"


def _frame(kind: str, incident: Incident, call: str) -> str:
    """Return what runs a program: a script, or a test."""
    frame = _SCRIPT if kind == "script" else _TEST
    return "\n\n" + frame.format(call=call, name=incident.name.replace("-", "_"))


_Needed = list[tuple[str, str]]


def _region_needs(script: Script) -> tuple[_Needed, str]:
    """Return the names, with their modules, that judge a region, and the call that does it."""
    module, _, name = HISTORIES[script.subject].target.partition(":")
    function = _top_level(module)[name]
    in_parts = isinstance(function, ast.FunctionDef) and "Split" in ast.unparse(function.returns or function)
    changed = "in_parts" if in_parts else "replayed" if ArmSpec.parse(script.arm).captured else "compiled"
    return [(module, name), (_STEPS, changed), (_STEPS, "faults")], f"faults({name}, {changed})"


def _program_needs(incident: Incident, script: Script) -> tuple[_Needed, str]:
    """Return the names, with their modules, that a program and its fault need, and the call that runs it."""
    if not script.program:
        raise UsageError(f"{_no_script(incident)}: its [incident.script] has no 'program'")
    module, _, name = script.program.partition(":")
    fault = parse_python(script.fault + " pass" * script.fault.endswith(":"))
    used = [node.id for node in ast.walk(fault) if isinstance(node, ast.Name)]
    is_class = isinstance(_top_level(module)[name], ast.ClassDef)
    return [(module, word) for word in (*used, name)], f"{name}().faults()" if is_class else f"{name}()"


def _with_fault(program: str, incident: Incident, script: Script) -> str:
    """Return the program with the fault in place of the line that is its fix; a region has it already."""
    if incident.system == STEPS:
        return program
    lines = program.splitlines()
    places = [number for number, line in enumerate(lines) if line.strip() == script.fix]
    if len(places) != 1:
        raise UsageError(
            f"{_no_script(incident)}: '{script.fix}' is {len(places)} lines of {script.program}, not one"
        )
    (place,) = places
    lines[place] = lines[place].replace(script.fix, f"{script.fault}  # THE FAULT; the fix: {script.fix}")
    return "\n".join(lines)


def _no_script(incident: Incident) -> str:
    return f"no script can be written for incident {incident.id} ({incident.name})"


def _header(incident: Incident, more: Iterable[str]) -> str:
    """Return comments: what is shown, where it was reported, and `more`."""
    references = [f"References: {', '.join(incident.references)}"] if incident.reported else []
    seen = [f"Seen as: {incident.symptom}", f"Cause: {incident.cause}"]
    return _comment("\n".join([incident.title, *references, *seen, *more]))


def _trace_values(incident: Incident, script: Script, family: str) -> dict[str, str]:
    """Return the statements of a program that plays a trace: its sizes and its steps."""
    trace = _trace_of(incident, script, family)
    if not incident.has_family(family):
        raise UsageError(
            f"incident {incident.id} has no family '{family}'; it has {', '.join(incident.families)}"
        )
    from deepstack_harness.catalogue.registry import family_named  # imports torch

    model = family_named(family.partition(":")[0])
    # Rows that nothing is set in are zeros: a payload of zeros is none.
    pairs = [f'("{step.op}", {step.tokens})' for step in trace if step.values != "zeros"]
    steps = f"STEPS = [{', '.join(pairs)}]"
    if len(steps) > _LONGEST_LINE:
        steps = "\n".join(["STEPS = [", *(f"    {pair}," for pair in pairs), "]"])
    sizes = f"{model.levels}, {model.hidden}, {payload_width(model)}, {trace.capacity}"
    named = ("LEVELS", "HIDDEN", "WIDTH", "CAPACITY")
    return {"STEPS": steps} | dict.fromkeys(named, f"{', '.join(named)} = {sizes}")


@dataclass(frozen=True)
class SourceProgram:
    """A class of a source that a program reads when it runs: nothing of the source is in the program.

    `buffer` has its name and file, `title` is the package for people, and `label` the source that the program
    is written for.
    """

    buffer: "ProgramBuffer"
    title: str
    label: str


SOURCE_VARIABLE = "DEEPSTACK_HARNESS_SOURCE"
"""Environment variable with the copy of the package that a written pytest file reads."""
_OF_ROWS = frozenset({Rule.BOUNDARY, Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR})


def render_source_script(incident: Incident, family: str, source: SourceProgram, kind: str = "script") -> str:
    """Return a program that plays the incident's trace on the methods of the user's copy, read at run time.

    `kind` is `script`, or `test` for a pytest file.  Raises `UsageError` for an incident whose fault a
    program that needs only torch cannot show on them: one without a script, one that needs graphs, reloads
    or guards, and one of none of the rules R0 to R5.
    """
    script = _script_of(incident)
    arm = ArmSpec.parse(script.arm)
    cannot = f"no program for a source can be written for incident {incident.id} ({incident.name})"
    judged = f"'repro {incident.id} --source SOURCE' judges the source"
    if not incident.about_sources or "@" in script.subject:
        raise UsageError(f"{cannot}: its fault is in the code around the class")
    if script.reloads:
        raise UsageError(f"{cannot}: its trace saves compiled code and loads it in another process; {judged}")
    if arm.captured or (arm.compiled and arm.guards is not GuardPolicy.DROP_ALL):
        raise UsageError(f"{cannot}: torch alone does not run '{script.arm}' around their methods; {judged}")
    shown = {*_OF_ROWS, Rule.STRUCTURE, *([Rule.OUTPUT] if arm.compiled else [])}
    rules = [rule for rule in incident.rules if rule in shown]
    if not rules:
        raise UsageError(f"{cannot}: it would have to judge {', '.join(incident.rules)}; {judged}")
    values = _trace_values(incident, script, family) | _member_values(source.buffer, source.title)
    values["RULES"] = f"RULES = {json.dumps(rules)}"
    if arm.compiled:
        values["BACKEND"] = f'BACKEND = "{arm.backend.compiler}"'
    call, run = _CALLS[kind]
    read = f"{source.buffer.name}, out of {source.buffer.member} of a copy of {source.title}"
    lines = [
        f"Read when it runs: get, set and clear of {read}; written for {source.label}",
        f"Run: {run}",
        "COPY is a tree, a wheel, the folder of the package, or the file; by default what is installed.",
    ]
    quoted = ProgramText(values)
    quoted.modules |= {"import os", "import sys"} if kind == "test" else {"import sys"}
    quoted.add(f"{_PROGRAMS}.methods", "faults_of_copy")
    return f"{_header(incident, lines)}\n{quoted.as_program()}{_frame(kind, incident, call)}"


_CALLS = {
    "script": (
        'faults_of_copy("".join(sys.argv[1:2]))',
        "python THIS_FILE [COPY], with torch >= 2.10 alone. Exit code 1: faulty, 0: not, 2: not compared.",
    ),
    "test": (
        f'faults_of_copy(os.environ.get("{SOURCE_VARIABLE}", ""))',
        f"{SOURCE_VARIABLE}=COPY python -m pytest THIS_FILE, with torch >= 2.10 and pytest alone.",
    ),
}
"""What a program for a source calls, and how it is run."""


def _member_values(buffer: "ProgramBuffer", title: str) -> dict[str, str]:
    """Return the statements of a program that reads a class out of a copy of a package."""
    values = {"MEMBER": buffer.member, "CLASS": buffer.name, "TITLE": title}
    return {name: f'{name} = "{value}"' for name, value in values.items()}


def _describe_subject(system: str, subject: str) -> str:
    """Describe what is inlined: the caller where the fault is the caller's, else the buffer."""
    if system in VARIANTS:
        variant = VARIANTS[system][subject]
        return f"{variant.summary.rstrip('.')}; fault: {variant.fault}"
    revision, caller = parse_subject(subject)
    buffer = BUFFERS[revision].summary.rstrip(".")
    if caller != ENGINE:
        engine = CALLERS[caller].summary.rstrip(".")
        rules = "every rule" if revision == "reference" else f"every rule but this: {buffer}"
        return f"{engine[:1].lower()}{engine[1:]}, around a buffer that keeps {rules}"
    return f"the buffer of {buffer}"


def environment() -> jinja2.Environment:
    """Make the environment that renders all templates of this package."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("deepstack_harness.catalogue"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _comment(text: str) -> str:
    """Wrap each line into comment lines; continuation lines are indented."""
    wrapped = [
        textwrap.fill(
            line,
            _COMMENT_WIDTH,
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
        have = ", ".join(entry.id for entry in catalogue() if entry.script)
        raise UsageError(f"{_no_script(incident)}; {have} have one")
    return incident.script


def _trace_of(incident: Incident, script: Script, family: str) -> Trace:
    """Return the trace of the first run of `family` in which the subject breaks a rule under the arm."""
    runs = [
        run for run in incident.runs_of(family) if script.arm in run.arms and run.broken.get(script.subject)
    ]
    if not runs:
        raise UsageError(
            f"incident {incident.id} has no run of family '{family}' in which {script.subject} breaks a "
            f"rule under '{script.arm}', which its script inlines"
        )
    trace, written = Trace.parse(runs[0].trace), _LIVE_OPS | ({Op.RELOAD} if script.reloads else set())
    if ArmSpec.parse(script.arm).captured:
        written = _CAPTURED_OPS
    for step in trace:
        plain = (step.levels, step.hidden) == (None, None)
        room = 2 * trace.capacity if script.grows else trace.capacity
        if step.op not in written or not plain or not (step.op is Op.RELOAD or 0 < step.tokens <= room):
            raise UsageError(
                f"a script has no step '{step}' at capacity {trace.capacity}: "
                f"it plays {', '.join(sorted(written))} of 1 to capacity tokens"
            )
    return trace


_FINDING_WIDTH = 110
"""Columns of the list of calls in the program of a finding."""
_OPTIONS = ("layout", "dtype", "values", "grad", "fail")
_NO_GRAPHS = frozenset({Op.CAPTURE, Op.REPLAY, Op.RELOAD})


@dataclass(frozen=True)
class ProgramBuffer:
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
    trace: Trace, rule: Rule, detail: str, buffer: ProgramBuffer, *, levels: int = 3, hidden: int = 8
) -> str:
    """Return the text of the program; `levels` and `hidden` are the usual sizes of the buffer that it makes.

    Raises `UsageError` for a trace with graphs, for which a decoder is needed, and for payloads and
    settings of buffers that the program does not have.
    """
    levels, hidden = trace.levels or levels, trace.hidden or hidden
    if unusual := [*_unusual(trace)]:
        raise UsageError(f"a script cannot play '{trace}': it has no {', '.join(unusual)}")
    if whole := [str(step) for step in trace if step.op in _NO_GRAPHS]:
        raise UsageError(f"a script cannot play '{whole[0]}': it has only a buffer, and no graphs")
    calls = [
        (
            call, step.tokens, levels if step.levels is None else step.levels,
            hidden if step.hidden is None else step.hidden,
        )
        for step in trace
        for call in (("get", "clear") if step.op in RUNS_DECODER else (str(step.op),))
    ]  # fmt: skip
    values = {
        "CALLS": textwrap.fill(
            f"CALLS = {json.dumps(calls)}", _FINDING_WIDTH, subsequent_indent="    ", break_long_words=False
        ),
    }
    sizes = f"LEVELS, HIDDEN, CAPACITY = {levels}, {hidden}, {trace.capacity}"
    values |= dict.fromkeys(("LEVELS", "HIDDEN", "CAPACITY"), sizes)
    if buffer.member is not None:
        values |= _member_values(buffer, "")
    else:
        values["Buffer"] = _imported_buffer(buffer.target)
    quoted = ProgramText(values)
    if buffer.is_ours:
        made_by = buffer_named(buffer.name)
        assert isinstance(made_by, type), buffer.name
        values["Buffer"] = f"Buffer = {made_by.__name__}"
        quoted.add(made_by.__module__, made_by.__name__)
    quoted.modules |= {"import sys"} if "sys.path" in values.get("Buffer", "") else set()
    quoted.add(f"{_PROGRAMS}.findings", "faults_of_buffer")
    header, frame = _finding_header(trace, rule, detail, buffer), _SCRIPT.format(call="faults_of_buffer()")
    return f"{header}\n{quoted.as_program()}\n\n{frame}"


def _imported_buffer(target: str) -> str:
    """Return the statements that import a class as `Buffer`, of a package or of a file."""
    module, _, name = target.partition(":")
    if not module.endswith(".py"):
        return f"from {module} import {name} as Buffer"
    path = Path(module).resolve()
    return f"sys.path.insert(0, {str(path.parent)!r})\nfrom {path.stem} import {name} as Buffer"


def _unusual(trace: Trace) -> Iterator[str]:
    """Iterate over what the program does not have: settings of the trace, options of its steps."""
    settings = {"dtype": trace.dtype, "mode": trace.mode, "buffers": trace.buffers > 1}
    yield from (key for key, value in settings.items() if value)
    for step in trace:
        yield from (f"{key}=" for key in _OPTIONS if getattr(step, key))


def _finding_header(trace: Trace, rule: Rule, detail: str, buffer: ProgramBuffer) -> str:
    source, what = (
        ("", "") if buffer.member is None else (" SOURCE", " SOURCE is a tree, a wheel, or the file.")
    )
    lines = (
        f"{buffer.name} breaks rule {rule} ({rule.word}).",
        f"Seen: {detail}",
        f"The trace: {trace}",
        f"Run: python THIS_FILE{source}, with torch >= 2.10. Exit code 1: faulty, 0: not.{what}",
    )
    return _comment("\n".join(one_line(printable(line, 2000)) for line in lines))

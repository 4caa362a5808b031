"""Optional inputs of every compiled class of a source: whether a warm-up sees them as later steps do.

A class that an engine compiles by a decorator (`support_torch_compile` of vLLM) is compiled in the profile
run, with the presence that its optional arguments have there, and the guards on it are dropped.  For each of
these arguments the calls of the class are followed back, through the methods that make them, to what decides
whether it is None.  Nothing of the source runs, and no name of a model or of an argument is known here.

Read in vLLM 0.22.1 to 0.33.0: the profile run calls `forward` without `embed_input_ids` (`_dummy_run` of
v1/worker/gpu_model_runner.py); which of `input_ids` and `inputs_embeds` is given depends on the model and the
pipeline rank alone, and `intermediate_tensors` are given on all ranks but the first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from deepstack_harness.engines.syntax import Function, parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, decode

DECORATOR = "support_torch_compile"
_RUNNER_FOLDERS = ("/worker/", "/spec_decode/", "model_state")
"""Parts of the paths of files that call models."""
_BY_RUNNER = frozenset({"input_ids", "positions", "inputs_embeds", "intermediate_tensors"})
"""Inputs whose presence the runner fixes for a model and a rank, profile run included."""


class Standing(StrEnum):
    """How the presence of an input in the warm-up compares with later calls.

    SAME: decided before the first call.  GUARDED: it differs, and the engine does not run the graph then.
    AT_RISK: it differs.  NOT_FOLLOWED: nothing is known, for the reason that stands beside it.
    """

    AT_RISK = "at risk"
    NOT_FOLLOWED = "not followed"
    GUARDED = "guarded"
    SAME = "same"


@dataclass(frozen=True)
class InputStanding:
    """One optional argument of a compiled class; `where` is FILE:LINE of what decides."""

    model_class: str
    input: str
    standing: Standing
    why: str
    where: str


class _Presence(StrEnum):
    """Whether a value is there: decided before the first call (the first three), or by the requests."""

    ALWAYS = "always"
    NEVER = "never"
    FIXED = "fixed"
    VARIES = "varies"
    UNKNOWN = "unknown"


class _Known(NamedTuple):
    """The presence of a value, the reason, and FILE:LINE of it."""

    presence: _Presence
    why: str = ""
    where: str = ""


_ALWAYS, _NEVER = _Known(_Presence.ALWAYS), _Known(_Presence.NEVER)
_ORDER = (_Presence.VARIES, _Presence.UNKNOWN, _Presence.FIXED)


def _join(values: Sequence[_Known], by: _Known | None = None) -> _Known:
    """Return what is known of a value that is one of several; `by` is the test that chooses among them."""
    if not values:
        return _NEVER
    for presence in _ORDER:
        known = next((value for value in values if value.presence is presence), None)
        if known is not None:
            return known
    if len({value.presence for value in values}) == 1:
        return values[0]
    return by or _Known(_Presence.FIXED)


@dataclass(frozen=True)
class _Class:
    """A class of the source: its statement and its file."""

    node: ast.ClassDef
    member: str

    def method(self, name: str) -> Function | None:
        """Return a method of its own."""
        methods = (
            node
            for node in self.node.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        )
        return next(methods, None)


def input_standings(source: Source) -> list[InputStanding]:
    """Return every optional argument of every compiled class of a source, what is at risk first.

    Raises what `Source.python_files` raises.
    """
    standings = list(_Package(source).standings())
    return sorted(standings, key=lambda each: (list(Standing).index(each.standing), each.where, each.input))


class _Package:
    """The classes of a source, and the calls between them."""

    def __init__(self, source: Source) -> None:
        self._trees: dict[str, ast.Module] = {}
        self._makers: dict[str, list[tuple[_Class, str]]] = {}
        self._made_calls: dict[int, list[tuple[str, Function, ast.Call]]] = {}
        self._sites: dict[int, list[_Site]] = {}
        self._by_runner: dict[str, _Known | None] = {}
        self._stores: dict[int, dict[str, list[tuple[Function, ast.expr | None, int]]]] = {}
        self._classes: dict[str, list[_Class]] = {}
        self._text: dict[str, bytes] = dict(source.python_files())
        for member, content in self._text.items():
            is_runner = any(part in f"/{member}" for part in _RUNNER_FOLDERS) and b"model" in content
            if b"def forward" in content or is_runner:
                self._read(member)

    def _read(self, member: str) -> None:
        try:
            tree = parse(decode(self._text[member], member))
        except UsageError:  # another Python's syntax: what stands there is not followed
            return
        self._trees[member] = tree
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                owner = _Class(node, member)
                self._classes.setdefault(node.name, []).append(owner)
                for name, attribute in _makes(node):
                    self._makers.setdefault(name, []).append((owner, attribute))

    def standings(self) -> Iterator[InputStanding]:
        """Yield the standing of each optional argument."""
        for owners in list(self._classes.values()):
            for owner in owners:
                if any(DECORATOR in ast.unparse(each) for each in owner.node.decorator_list):
                    yield from self._of_class(owner)

    def _of_class(self, owner: _Class) -> Iterator[InputStanding]:
        forward = self.method(owner, "forward")
        if forward is None:
            where = f"{owner.member}:{owner.node.lineno}"
            yield InputStanding(
                owner.node.name, "forward", Standing.NOT_FOLLOWED, "its forward was not found", where
            )
            return
        calls = self._calls(owner)
        for name in _optional(forward[1]):
            yield self._of_input(owner, forward, name, calls)

    def _of_input(
        self, owner: _Class, forward: tuple[_Class, Function], name: str, calls: Sequence[_Site]
    ) -> InputStanding:
        where = f"{forward[0].member}:{forward[1].lineno}"
        if name in _BY_RUNNER:
            why = "the runner decides it for a model and a rank, and the profile run does likewise"
            return InputStanding(owner.node.name, name, Standing.SAME, why, where)
        given = [(site, value) for site in calls if (value := _argument(site.call, forward[1], name))]
        if not calls:
            known = self.from_runner(name) or _Known(
                _Presence.UNKNOWN, "no call of the class was found", where
            )
        elif not given:
            known = _Known(_Presence.NEVER, "no call gives it")
        else:
            known = self._over_stages(given, forward, name)
            if len(given) < len(calls) and known.presence is not _Presence.NEVER:
                others = [site for site in calls if all(site is not each for each, _ in given)]
                known = self._with_missing(known, given, others)
        standing = {
            _Presence.VARIES: Standing.AT_RISK, _Presence.UNKNOWN: Standing.NOT_FOLLOWED,
        }.get(known.presence, Standing.SAME)  # fmt: skip
        if standing is Standing.AT_RISK and "encoder" in known.why and (flag := self._guard(owner)):
            return InputStanding(owner.node.name, name, Standing.GUARDED, f"{known.why}; {flag[0]}", flag[1])
        why = known.why or {
            _Presence.ALWAYS: "always given", _Presence.NEVER: "never given",
        }.get(known.presence, "decided by the configuration, before the first call")  # fmt: skip
        return InputStanding(owner.node.name, name, standing, why, known.where or where)

    @staticmethod
    def _with_missing(
        known: _Known, given: Sequence[tuple[_Site, ast.expr]], others: Sequence[_Site]
    ) -> _Known:
        """Return what is known where some calls leave the argument out.

        One function that does both varies.
        """
        for site, _ in given:
            for other in others:
                if other.function is site.function and known.presence is not _Presence.VARIES:
                    where = f"{other.owner.member}:{other.call.lineno}"
                    return _Known(_Presence.FIXED, "another call of the same function leaves it out", where)
        return known

    def _over_stages(
        self, given: Sequence[tuple[_Site, ast.expr]], forward: tuple[_Class, Function], name: str
    ) -> _Known:
        """Return what is known over all calls and pipeline stages."""
        by_stage = {
            stage: _join([_Evaluation(self, site, stage).of(value) for site, value in given])
            for stage in ("first", "later")
        }
        first, later = by_stage["first"], by_stage["later"]
        if later.presence is _Presence.NEVER and first.presence is not _Presence.NEVER:
            received = _received_under(forward[1], name)
            if received is not None:
                return _Known(
                    _Presence.VARIES,
                    f"it is None on later pipeline ranks, where forward takes it from the rank before only "
                    f"if it is "
                    f"given (line {received})",
                    f"{forward[0].member}:{received}",
                )
        return _join([first, later])

    def method(
        self, owner: _Class, name: str, seen: frozenset[str] = frozenset()
    ) -> tuple[_Class, Function] | None:
        """Return a method of a class or of its bases, with the class that has it."""
        own = owner.method(name)
        if own is not None:
            return owner, own
        for base in owner.node.bases:
            bare = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            for each in self._classes.get(bare, ()) if bare not in seen else ():
                if found := self.method(each, name, seen | {bare}):
                    return found
        return None

    def _calls(self, owner: _Class) -> list[_Site]:
        """Return the calls of objects that are made from the class, or from one that holds it."""
        if id(owner.node) not in self._sites:
            self._sites[id(owner.node)] = list(self._found_calls(owner))
        return self._sites[id(owner.node)]

    def _found_calls(self, owner: _Class) -> Iterator[_Site]:
        for holder, attribute in dict.fromkeys(self._holders(owner.node.name)):
            for text, function, call in self._self_calls(holder):
                if _is_call_of(text, attribute):
                    yield _Site(holder, function, call)

    def _self_calls(self, owner: _Class) -> list[tuple[str, Function, ast.Call]]:
        """Return the calls in a class of what hangs on `self`.

        The text of what is called, and the function.
        """
        key = id(owner.node)
        if key not in self._made_calls:
            self._made_calls[key] = [
                (text, function, node)
                for function in _functions(owner.node)
                for aliases in [_aliases(function)]
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and (text := _chain(node.func, aliases)).startswith("self.")
            ]
        return self._made_calls[key]

    def given(self, owner: _Class, function: Function, name: str, stage: str, depth: int) -> _Known | None:
        """Return what the callers of a method give for a parameter; None where no caller was found."""
        if depth <= 0:
            return None
        if function.name == "forward":
            sites = self._calls(owner)
        else:
            called = f"self.{function.name}"
            sites = [
                _Site(owner, each, call) for text, each, call in self._self_calls(owner) if text == called
            ]
        values = [
            _Evaluation(self, site, stage, depth).of(value) if value is not None else _NEVER
            for site in sites
            for value in [_argument(site.call, function, name)]
        ]
        return _join(values) if values else None

    def _holders(self, name: str, depth: int = 2) -> Iterator[tuple[_Class, str]]:
        """Yield classes that make the class, with the attribute.

        `model`, and `language_model.model` above it.
        """
        for owner, attribute in self._makers.get(name, ()):
            yield owner, attribute
            if depth and owner.node.name != name:
                for above, outer in self._holders(owner.node.name, depth - 1):
                    yield above, f"{outer}.{attribute}"

    def from_runner(self, name: str) -> _Known | None:
        """Return what is known of an input that the runner gives as a keyword; None where it gives none."""
        if name not in self._by_runner:
            self._by_runner[name] = self._read_runner(name)
        return self._by_runner[name]

    def _read_runner(self, name: str) -> _Known | None:
        for member, tree in self._trees.items():
            if not any(part in f"/{member}" for part in _RUNNER_FOLDERS):
                continue
            for function in _functions(tree):
                if line := _given_by(function, name):
                    if _is_conditional(function, line):
                        why = f"the runner gives it under a condition, in {function.name}"
                        return _Known(_Presence.VARIES, why, f"{member}:{line}")
                    return _Known(
                        _Presence.ALWAYS, f"the runner gives it, in {function.name}", f"{member}:{line}"
                    )
        return None

    def _guard(self, owner: _Class) -> tuple[str, str] | None:
        """Return how the engine avoids the graph: the flag by which a step runs the region uncompiled."""
        if b"encoder" not in self._text[owner.member]:
            return None
        for member, content in self._text.items():
            if b"skip_compiled=" in content:
                line = content[: content.index(b"skip_compiled=")].count(b"\n") + 1
                return "a step with encoder inputs runs uncompiled (skip_compiled)", f"{member}:{line}"
        return None

    def stored(
        self, owner: _Class, attribute: str
    ) -> Iterator[tuple[_Class, Function, ast.expr | None, int]]:
        """Yield the assignments of `self.attribute` in a class and its bases.

        Method, value (None: in place).
        """
        todo, seen = [owner], set()
        while todo:
            each = todo.pop()
            if id(each.node) in seen:
                continue
            seen.add(id(each.node))
            for function, value, line in self._stores_of(each).get(attribute, ()):
                yield each, function, value, line
            for base in each.node.bases:
                todo += self._classes.get(ast.unparse(base).partition("[")[0].rpartition(".")[2], [])

    def _stores_of(self, owner: _Class) -> dict[str, list[tuple[Function, ast.expr | None, int]]]:
        """Return the assignments of a class to attributes of `self`, by attribute."""
        key = id(owner.node)
        if key not in self._stores:
            stores: dict[str, list[tuple[Function, ast.expr | None, int]]] = {}
            for function in _functions(owner.node):
                for node in ast.walk(function):
                    for target, value in _assigned(node):
                        if _is_own(target):
                            stores.setdefault(target.attr, []).append((function, value, target.lineno))  # type: ignore[attr-defined]
            self._stores[key] = stores
        return self._stores[key]


class _Site(NamedTuple):
    """A call of a compiled class: the class and the function that it stands in."""

    owner: _Class
    function: Function
    call: ast.Call


def _optional(function: Function) -> list[str]:
    """Return the parameters that may be None, by their annotation or default."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(parameters) - len(arguments.defaults))
    pairs = [*zip(parameters, [*defaults, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [
        parameter.arg
        for parameter, default in pairs
        if _is_none(default) or (parameter.annotation and _allows_none(parameter.annotation))
    ]


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _allows_none(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return "None" in text or "Optional[" in text


def _argument(call: ast.Call, forward: Function, name: str) -> ast.expr | None:
    """Return what a call gives for a parameter; None where it leaves it out."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [each.arg for each in [*forward.args.posonlyargs, *forward.args.args]][1:]
    at = names.index(name) if name in names else len(call.args)
    if at < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args[: at + 1]):
        return call.args[at]
    return None


def _functions(node: ast.AST) -> Iterator[Function]:
    return (each for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def _makes(node: ast.ClassDef) -> set[tuple[str, str]]:
    """Return the names from which a class makes something, and the attribute that it is assigned to."""
    made = set()
    for each in ast.walk(node):
        for target, value in _assigned(each):
            if _is_own(target) and value is not None:
                calls = [call for call in ast.walk(value) if isinstance(call, ast.Call)]
                names = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
                # A registry makes a model by the name of its architecture.
                names |= {
                    node.value
                    for call in calls
                    for node in ast.walk(call)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                }
                made |= {(name, target.attr) for name in names}  # type: ignore[attr-defined]
    return made


def _is_own(target: ast.expr) -> bool:
    """Say whether a place is an attribute of `self`."""
    return (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    )


def _chain(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """Return `self.a.b` of what hangs on `self`, members and methods without arguments included.

    "" for others.
    """
    match node:
        case ast.Name(id="self"):
            return "self"
        case ast.Name(id=name):
            return aliases.get(name, "")
        case ast.Attribute(value=inner, attr=name):
            return f"{chain}.{name}" if (chain := _chain(inner, aliases)) else ""
        case ast.Subscript(value=inner):
            return _chain(inner, aliases)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[]):
            return f"self.{name}()"
    return ""


def _aliases(function: Function) -> dict[str, str]:
    """Return the local names of members of `self`: of `for layer in self.layers`, and of assignments."""
    aliases: dict[str, str] = {}
    for node in ast.walk(function):
        match node:
            case ast.For(target=target, iter=values):
                members = {_chain(each, {}) for each in ast.walk(values) if isinstance(each, ast.Attribute)}
                longest = max(members - {""}, key=len, default="")
                names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
                aliases |= {name: longest for name in names if longest}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() | ast.Subscript() as value):
                if chain := _chain(value, {}):
                    aliases[name] = chain
    return aliases


def _is_call_of(text: str, attribute: str) -> bool:
    return text in (f"self.{attribute}", f"self.{attribute}.forward") or (
        "." in attribute and text == f"self.get_language_model().{attribute.partition('.')[2]}"
    )


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
            several = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(targets) else ()
            yield from zip(targets, several or [value] * len(targets), strict=True)
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield target, value
        case ast.AugAssign(target=target, value=value):
            yield target, value


def _received_under(forward: Function, name: str) -> int | None:
    """Return the line where forward takes an input from the stage before only if the caller gave one."""
    for node in ast.walk(forward):
        if isinstance(node, ast.If) and ast.unparse(node.test) == f"{name} is not None":
            for inner in node.body:
                for target, value in _assigned(inner):
                    is_input = isinstance(target, ast.Name) and target.id == name and value is not None
                    if is_input and "intermediate_tensors" in ast.unparse(inner):
                        return node.lineno
    return None


def _given_by(function: Function, name: str) -> int | None:
    """Return the line where a function of the runner puts an input among the arguments of the model."""
    for node in ast.walk(function):
        match node:
            case ast.Subscript(slice=ast.Constant(value=key), ctx=ast.Store()) if key == name:
                return node.lineno
            case ast.Dict(keys=keys) if any(
                isinstance(key, ast.Constant) and key.value == name for key in keys
            ):
                return node.lineno
    return None


def _is_conditional(function: Function, line: int) -> bool:
    """Say whether a line is reached by some calls only: below an `if`, or behind a return in one."""
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            inside = node.lineno <= line <= (node.end_lineno or node.lineno)
            leaves = any(isinstance(each, ast.Return) for each in ast.walk(node))
            if inside or (leaves and node.lineno < line):
                return True
    return False


class _Evaluation:
    """Presence of values in a function of a class, on the first pipeline stage or on a later one."""

    def __init__(self, package: _Package, site: _Site, stage: str, depth: int = 4) -> None:
        self._package, self._site, self._stage, self._depth = package, site, stage, depth
        self._values: dict[str, _Known] = {}
        self._returned: list[_Known] = []
        self._chosen: _Known | None = None
        """What decides which `return` is taken."""
        arguments = site.function.args
        self._arguments = {each.arg for each in [*arguments.args, *arguments.kwonlyargs]} - {"self"}
        self._optional = set(_optional(site.function))
        self._walk(site.function.body)

    def _unset(self, name: str) -> _Known:
        return self._parameter(name) if name in self._optional else _NEVER

    def _local(self, name: str) -> _Known:
        """Return the presence of a variable; parameters are followed when they are first read."""
        if name not in self._values:
            self._values[name] = self._parameter(name) if name in self._optional else _ALWAYS
        return self._values[name]

    def _parameter(self, name: str) -> _Known:
        given = {"intermediate_tensors": self._stage == "later", "inputs_embeds": self._stage == "first"}
        if name in given:
            return _ALWAYS if given[name] else _NEVER
        if name in _BY_RUNNER:
            return _Known(_Presence.FIXED)
        function = self._site.function
        known = self._package.given(self._site.owner, function, name, self._stage, self._depth - 1)
        why = f"`{name}` is an argument of {function.name}, of which no call was found"
        return known or self._package.from_runner(name) or _Known(_Presence.UNKNOWN, why, self._at(function))

    def _at(self, node: ast.AST) -> str:
        return f"{self._site.owner.member}:{getattr(node, 'lineno', 0)}"

    def _walk(self, statements: Iterable[ast.stmt]) -> None:
        """Follow assignments in order, up to the call that is looked at.

        Both sides of a test that is open.
        """
        for node in statements:
            if node.lineno > self._site.call.lineno:
                return
            if isinstance(node, ast.If):
                self._branch(node)
            elif isinstance(node, ast.Return):
                self._returned.append(self.of(node.value) if node.value else _NEVER)
            elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
                self._walk(node.body)
            else:
                for target, value in _assigned(node):
                    if isinstance(target, ast.Name) and value is not None:
                        self._values[target.id] = self.of(value)

    def _branch(self, node: ast.If) -> None:
        decided, by = self._test(node.test)
        if decided is None and any(isinstance(each, ast.Return) for each in ast.walk(node)):
            self._chosen = _join([by, *([self._chosen] if self._chosen else [])])
        if decided is not None:
            self._walk(node.body if decided else node.orelse)
            return
        before = dict(self._values)
        self._walk(node.body)
        first = self._values
        self._values = dict(before)
        self._walk(node.orelse)
        for name in {*first, *self._values}:
            sides = [
                known.get(name) or before.get(name) or self._unset(name) for known in (first, self._values)
            ]
            self._values[name] = _join(sides, by)

    def of(self, node: ast.expr) -> _Known:  # noqa: PLR0911  # one for each kind of expression
        """Return the presence of the value of an expression."""
        match node:
            case ast.Constant(value=value):
                return _NEVER if value is None else _ALWAYS
            case ast.Name(id=name):
                return self._local(name)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                decided, by = self._test(test)
                if decided is not None:
                    return self.of(body if decided else orelse)
                return _join([self.of(body), self.of(orelse)], by)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._attribute(name, node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                return self._answer(name, node)
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                unknown = _Known(_Presence.UNKNOWN, f"it comes from the runner as '{key}'", self._at(node))
                return self._package.from_runner(key) or unknown
            case ast.Subscript(value=inner) | ast.Attribute(value=inner):
                known = self.of(inner)
                return known if known.presence is _Presence.UNKNOWN else _ALWAYS
        return _ALWAYS

    def _attribute(self, name: str, node: ast.expr) -> _Known:
        """Return the presence of an attribute: fixed where it is assigned in `__init__` alone."""
        made: list[tuple[_Known, Function, str]] = []
        stored: list[tuple[_Known, Function, str]] = []
        for owner, function, value, line in self._package.stored(self._site.owner, name):
            known = _NEVER if _is_none(value) else _ALWAYS
            (made if function.name == "__init__" else stored).append(
                (known, function, f"{owner.member}:{line}")
            )
        if not made and not stored:
            return _Known(
                _Presence.UNKNOWN, f"`self.{name}` is assigned nowhere in the class", self._at(node)
            )
        begins = _join([known for known, _, _ in made])
        for known, function, where in stored:
            if known.presence is not begins.presence:
                kind = "None" if begins.presence is _Presence.NEVER else "given"
                why = f"`self.{name}` is {kind} until {function.name} stores it"
                return _Known(_Presence.VARIES, why, where)
        return begins

    def _answer(self, name: str, node: ast.expr) -> _Known:
        """Return the presence of what a method of the same object answers."""
        method = self._package.method(self._site.owner, name)
        if method is None or not self._depth:
            return _Known(_Presence.UNKNOWN, f"`self.{name}(..)` was not followed", self._at(node))
        end = ast.Call(ast.Name("end"), [], [], lineno=10**9)
        site = _Site(self._site.owner, method[1], end)
        inner = _Evaluation(self._package, site, self._stage, self._depth - 1)
        return _join(inner._returned, inner._chosen or None)

    def _test(self, test: ast.expr) -> tuple[bool | None, _Known]:  # noqa: PLR0911  # one for each kind
        """Return the result of a test where the stage decides it, and what the choice depends on."""
        text = ast.unparse(test)
        if text.endswith(".is_first_rank"):
            return text.startswith("not ") ^ (self._stage == "first"), _ALWAYS
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                decided, by = self._test(inner)
                return (None if decided is None else not decided), by
            case ast.BoolOp(op=op, values=values):
                results = [self._test(value) for value in values]
                short = isinstance(op, ast.Or)
                if any(decided is short for decided, _ in results):
                    return short, _ALWAYS
                if all(decided is not None for decided, _ in results):
                    return not short, _ALWAYS
                return None, _join([by for decided, by in results if decided is None])
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[right]) if _is_none(
                right
            ):
                known = self.of(left)
                if known.presence in (_Presence.ALWAYS, _Presence.NEVER):
                    return (known.presence is _Presence.NEVER) ^ isinstance(op, ast.IsNot), known
                return None, known
            case ast.Name(id=name) if name in self._values or name in self._optional:
                return None, self._local(name)
        contents = [self._content(name, test) for name in _own_names(test)]
        if varying := [each for each in contents if each.presence is _Presence.VARIES]:
            return None, varying[0]
        for word in ast.walk(test):
            if isinstance(word, ast.Name) and word.id in self._arguments and word.id not in _BY_RUNNER:
                why = f"it depends on `{word.id}` of {self._site.function.name}"
                return None, _Known(_Presence.VARIES, why, self._at(test))
        return None, _Known(_Presence.FIXED)

    def _content(self, name: str, node: ast.expr) -> _Known:
        """Return what the truth of an attribute depends on: requests, where a method makes it true or false.

        An attribute that always holds a list or what a call made is as true in each call.
        """
        begins: set[bool | None] = set()
        later: list[tuple[bool | None, Function, str]] = []
        for owner, function, value, line in self._package.stored(self._site.owner, name):
            truth = _truth(value, function)
            if function.name == "__init__":
                begins.add(truth)
            else:
                later.append((truth, function, f"{owner.member}:{line}"))
        for truth, function, where in later:
            if truth is not True or begins - {True}:
                why = f"`self.{name}` changes in {function.name}"
                return _Known(_Presence.VARIES, why, where)
        return _Known(_Presence.FIXED, "", self._at(node))


def _own_names(test: ast.expr) -> Iterator[str]:
    """Yield the attributes of `self` that a test reads, `getattr(self, "name", ..)` included."""
    for node in ast.walk(test):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name
            case ast.Call(
                func=ast.Name(id="getattr"), args=[ast.Name(id="self"), ast.Constant(value=str(name)), *_]
            ):
                yield name


def _truth(value: ast.expr | None, function: Function) -> bool | None:
    """Return whether a value is true in an `if`; None where that depends on what it is made from."""
    match value:
        case ast.Constant(value=constant):
            return bool(constant)
        case ast.ListComp() | ast.Call() | ast.Dict(keys=[_, *_]):
            return True
        case ast.List(elts=members) | ast.Tuple(elts=members):
            return bool(members)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return True if True in (_truth(left, function), _truth(right, function)) else None
        case ast.IfExp(body=body, orelse=orelse):
            truth = _truth(body, function)
            return truth if truth is _truth(orelse, function) else None
        case ast.Name(id=name) if f"{name}.append(" in ast.unparse(function):
            return True
        case ast.Name(id=name):
            values = {
                _truth(each, function)
                for node in ast.walk(function)
                for target, each in _assigned(node)
                if isinstance(target, ast.Name) and target.id == name and each is not value
            }
            return values.pop() if len(values) == 1 else None
    return None


def count(standings: Iterable[InputStanding]) -> Mapping[Standing, int]:
    """Return how many inputs have each standing."""
    counts = dict.fromkeys(Standing, 0)
    for each in standings:
        counts[each.standing] += 1
    return counts

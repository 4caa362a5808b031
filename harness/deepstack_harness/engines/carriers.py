"""The shape of a class that carries a payload between two calls, found without any of its names.

A carrier stores an attribute in `embed_input_ids`, or in a method that this one calls, and its `forward`
passes what was stored to another object: its language model. The attribute, the container and the argument
may have any name.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from deepstack_harness.engines.syntax import Function, binds, own_methods_called, reads, writes

EMBED, FORWARD = "embed_input_ids", "forward"
"""The methods that an engine calls in each step: one may store a payload, the other reads it."""

FindMethod = Callable[[str], Function | None]
"""Returns the method of a class by its name, its own or an inherited one; None where there is none."""

_NO_PARTS = frozenset({"config", "vllm_config", "multimodal_config", "logger"})
"""Attributes that are no models, so that a call of one of their methods passes no payload on."""


@dataclass(frozen=True)
class Carrier:
    """One carrier: `attributes` are those that it stores and passes on, without `self.`, sorted.

    `stored` and `passed` are lines of its file, or of the file of a base class: the first statement that
    stores, and the call that is given the payload. `arguments` are the keywords of that call with it.
    """

    attributes: tuple[str, ...]
    stored: int
    passed: int
    arguments: tuple[str, ...]


def find_carrier(method: FindMethod) -> Carrier | None:
    """Return what a class carries from `embed_input_ids` to its language model; None for nothing.

    `method` looks up a method of the class.
    """
    stores = {f"self.{name}": line for name, line in stored_by(EMBED, method).items()}
    if not stores:
        return None
    running = methods_reached(FORWARD, method)
    parameters: dict[str, dict[str, frozenset[str]]] = {name: {} for name in running}
    before = -1
    while before != (before := sum(map(len, parameters.values()))):
        for name, function in running.items():
            origins, _ = _flow(function, frozenset(stores), running, parameters[name])
            for called, parameter, carried in _passed_to_methods(function, origins, running):
                parameters[called].setdefault(parameter, carried)
    for name, function in running.items():
        for call, carried, arguments in _passed_to_parts(
            function, frozenset(stores), running, parameters[name]
        ):
            names = tuple(sorted(name.removeprefix("self.") for name in carried))
            return Carrier(names, min(stores[name] for name in carried), call.lineno, arguments)
    # Or it stores into a part of the model, which `forward` then calls.
    for function in running.values():
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            root = _root_of(call.func)
            if f"self.{root}" in stores and root not in running and _is_part(call.func, running, set()):
                return Carrier((root,), stores[f"self.{root}"], call.lineno, ())
    return None


def payload_verbs(method: FindMethod) -> dict[str, str]:
    """Return the methods that set, get, clear and resize a payload, found by who calls them.

    Each takes one argument.  `embed_input_ids` calls set; `forward` uses what get returns, and calls clear;
    the one that set or get calls to bind storage anew is resize. A verb for which there are two is left out.
    """
    embed, forward, stored = method(EMBED), method(FORWARD), stored_by(EMBED, method).keys()
    if embed is None or forward is None:
        return {}
    read = {f"self.{name}" for name in stored}
    found = {
        "set": {name for name in _called_for_effect(embed, method) if stored_by(name, method)},
        "clear": {
            name for name in _called_for_effect(forward, method) if stored_by(name, method).keys() & stored
        },
        "get": {
            name
            for name in _called_with_one(ast.walk(forward), method) - _called_for_effect(forward, method)
            if any(reads(function) & read for function in methods_reached(name, method).values())
        },
    }
    found["set"] -= found["clear"]  # a step of text may clear while it is embedded
    callers = [caller for verb in ("set", "get") for name in found[verb] if (caller := method(name))]
    called = {name for caller in callers for name in _called_for_effect(caller, method)}
    found["resize"] = {
        name
        for name in called
        if (function := method(name)) and any(binds(node) & read for node in _statements(function))
    }
    return {verb: next(iter(names)) for verb, names in found.items() if len(names) == 1}


def _called_for_effect(function: Function, method: FindMethod) -> set[str]:
    """Return the methods that statements of a function call with one argument, without using the result."""
    calls = (node.value for node in _statements(function) if isinstance(node, ast.Expr))
    return _called_with_one(calls, method)


def _called_with_one(nodes: Iterable[ast.AST], method: FindMethod) -> set[str]:
    """Return the methods of the same object that some expressions call with one argument."""
    return {
        node.func.attr
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
        and len(node.args) + len(node.keywords) == 1
        and method(node.func.attr) is not None
    }


def stored_by(start: str, method: FindMethod) -> dict[str, int]:
    """Return the attributes that a method and those it calls store, without `self.`, with its first line.

    An attribute that is only ever set to a constant, such as None, stores nothing.
    """
    first_lines: dict[str, int] = {}
    for function in methods_reached(start, method).values():
        views = _views_in(function)
        for node in _statements(function):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant | None):
                continue
            names = {name for view in writes(node) - binds(node) for name in views.get(view, ())}
            names |= {name.removeprefix("self.") for name in writes(node) if name.startswith("self.")}
            targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets = [node.target]
            names |= {root for target in targets if (root := _root_of(target))}
            # A call fills what it is given: `out=self.x`, and `fill(self.x, ..)` with an unused result.
            calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
            filled = [key.value for call in calls for key in call.keywords if key.arg == "out"]
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                filled += [*node.value.args, *(key.value for key in node.value.keywords)]
            names |= {name for value in filled for name in _viewed(value)} - _NO_PARTS
            for name in names - {"*"}:
                first_lines[name] = min(node.lineno, first_lines.get(name, node.lineno))
    return first_lines


def _root_of(place: ast.AST) -> str:
    """Return x for `self.x.y` and `self.x.y[0]`, whose assignment stores into the object `self.x`."""
    while isinstance(place, ast.Attribute | ast.Subscript):
        if (
            isinstance(place, ast.Attribute)
            and isinstance(place.value, ast.Name)
            and place.value.id == "self"
        ):
            return place.attr
        place = place.value
    return ""


_VIEWS = frozenset(
    {
        "data", "detach", "flatten", "get", "items", "narrow", "reshape", "select", "setdefault", "squeeze",
        "t", "transpose", "unbind", "unsqueeze", "values", "view",
    }
)  # fmt: skip
"""Methods whose result shares its storage with their object."""
_SEQUENCES = frozenset({"enumerate", "iter", "list", "reversed", "sorted", "tuple", "zip"})


def _viewed(node: ast.AST) -> frozenset[str]:
    """Return the attributes of the instance, without `self.`, whose storage an expression gives access to."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return frozenset({name})
        case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.Attribute(value=inner, attr="data"):
            return _viewed(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _VIEWS:
            return _viewed(inner)
        case ast.Call(func=ast.Name(id=name), args=args) if name in _SEQUENCES:
            return frozenset(name for arg in args for name in _viewed(arg))
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return frozenset(name for element in elements for name in _viewed(element))
        case ast.IfExp(body=first, orelse=second):
            return _viewed(first) | _viewed(second)
    return frozenset()


def _views_in(function: Function) -> dict[str, frozenset[str]]:
    """Return the variables of a function that give access to storage of the instance, with its attributes."""
    views: dict[str, frozenset[str]] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[target], value=value) | ast.For(target=target, iter=value):
                seen = _viewed(value)
                for part in ast.walk(target) if seen else ():
                    if isinstance(part, ast.Name):
                        views[part.id] = views.get(part.id, frozenset()) | seen
    return views


def methods_reached(start: str, method: FindMethod) -> dict[str, Function]:
    """Return a method and those of the same object that it calls, by name; none where it is missing.

    A property that is read is called too.
    """
    methods: dict[str, Function] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        function = None if name in methods else method(name)
        if function is not None:
            methods[name] = function
            names = {name.removeprefix("self.") for name in reads(function) if name.startswith("self.")}
            todo += sorted(own_methods_called(function).union(name for name in names if method(name)))
    return methods


def _statements(function: Function) -> Iterator[ast.stmt]:
    """Yield every statement below a function that has no statements of its own below it, in order."""
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node


Origins = dict[str, frozenset[str]]
"""Name of a value -> the stored attributes that it may come from."""


def _flow(
    function: Function,
    stored: frozenset[str],
    methods: Mapping[str, Function],
    parameters: Mapping[str, frozenset[str]],
) -> tuple[Origins, set[str]]:
    """Follow stored attributes through a function; return where values come from, and aliases of parts."""
    origins: Origins = {name: frozenset({name}) for name in stored} | dict(parameters)
    for name, called in methods.items():
        if read := {place for node in called.body for place in reads(node)} & stored:
            origins.setdefault(f"self.{name}", frozenset(read))
    parts: set[str] = set()
    before = -1
    while before != (before := len(origins) + len(parts)):
        for node in _statements(function):
            if carried := _origins(node, origins):
                for name in {*binds(node), *writes(node)} - origins.keys():
                    origins[name] = carried
            if isinstance(node, ast.Assign) and _is_part(node.value, methods, parts):
                parts |= {name for name in binds(node) if "." not in name}
    return origins, parts


def _passed_to_methods(
    function: Function, origins: Origins, methods: Mapping[str, Function]
) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield the parameters of own methods that get stored attributes: method, parameter, attributes."""
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in methods:
                parameters = [parameter.arg for parameter in methods[name].args.args[1:]]
                values = [*zip(parameters, call.args, strict=False)]
                values += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
                for parameter, value in values:
                    if carried := _origins(value, origins):
                        yield name, parameter, carried


def _passed_to_parts(
    function: Function,
    stored: frozenset[str],
    methods: Mapping[str, Function],
    parameters: Mapping[str, frozenset[str]],
) -> Iterator[tuple[ast.Call, frozenset[str], tuple[str, ...]]]:
    """Yield each call that passes stored attributes to a part of the model, with these and its keywords.

    That is a call of the part, or of a function that is given the part to run: `run(self.x, ..)`.
    """
    origins, parts = _flow(function, stored, methods, parameters)
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        runs_part = isinstance(call.func, ast.Name) and any(
            isinstance(value, ast.Attribute)
            and not _origins(value, origins)
            and _is_part(value, methods, parts)
            for value in call.args
        )
        if not runs_part and not _is_part(call.func, methods, parts):
            continue
        values = (*call.args, *call.keywords)
        carried = frozenset[str]().union(*(_origins(value, origins) for value in values))
        if carried:
            keywords = (keyword for keyword in call.keywords if _origins(keyword, origins))
            yield call, carried, tuple(keyword.arg for keyword in keywords if keyword.arg)


def _origins(node: ast.AST, origins: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the stored attributes that the value of `node` may come from."""
    return frozenset[str]().union(*(origins[name] for name in reads(node) if name in origins))


def _is_part(node: ast.AST, methods: Mapping[str, Function], parts: set[str]) -> bool:
    """Return whether an expression is a part of the model: `self.x`, `self.x.y`, or an alias of one."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name not in methods and name not in _NO_PARTS and not name.startswith("get_")
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            return name.startswith("get_")  # get_language_model()
        case ast.Call(func=ast.Name(id="super")):
            return True
        case ast.Name(id=name):
            return name in parts
        case ast.Attribute(value=inner):
            return _is_part(inner, methods, parts)
    return False

"""The shape of a class that carries a payload between two calls, found without any of its names.

A carrier stores an attribute in `embed_input_ids`, or in a method that this one calls, and its `forward`
hands what was stored to another object: its language model.  The attribute, the container and the argument
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
"""Attributes that are no models, so that a call of one of their methods hands nothing on."""


@dataclass(frozen=True)
class Carrier:
    """One carrier: `attributes` are those that it stores and hands on, without `self.`, sorted.

    `stored` and `handed` are lines of its file, or of the file of a base class: the first statement that
    stores, and the call that the payload is handed to.  `arguments` are the keywords of that call with it.
    """

    attributes: tuple[str, ...]
    stored: int
    handed: int
    arguments: tuple[str, ...]


def find_carrier(method: FindMethod) -> Carrier | None:
    """Return what a class carries from `embed_input_ids` to its language model; None for nothing.

    `method` looks up a method of the class.
    """
    stores = {f"self.{name}": line for name, line in stored_by(EMBED, method).items()}
    if not stores:
        return None
    running = reached(FORWARD, method)
    parameters: dict[str, dict[str, frozenset[str]]] = {name: {} for name in running}
    before = -1
    while before != (before := sum(map(len, parameters.values()))):
        for name, function in running.items():
            origins, _ = _flow(function, frozenset(stores), running, parameters[name])
            for called, parameter, carried in _given_to_methods(function, origins, running):
                parameters[called].setdefault(parameter, carried)
    for name, function in running.items():
        for call, carried, arguments in _handed_on(function, frozenset(stores), running, parameters[name]):
            names = tuple(sorted(name.removeprefix("self.") for name in carried))
            return Carrier(names, min(stores[name] for name in carried), call.lineno, arguments)
    return _set_on_a_part(stores, running)


def _set_on_a_part(stores: Mapping[str, int], running: Mapping[str, Function]) -> Carrier | None:
    """Return the carrier of a class that stores into a part of the model, which `forward` then calls."""
    for function in running.values():
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            root = _root_of(call.func)
            if f"self.{root}" in stores and root not in running and _is_part(call.func, running, set()):
                return Carrier((root,), stores[f"self.{root}"], call.lineno, ())
    return None


def payload_verbs(method: FindMethod) -> dict[str, str]:
    """Return the methods that set, get, clear and resize a payload, found by who calls them.

    Each takes one argument.  `embed_input_ids` calls set; `forward` uses what get returns, and calls clear;
    the one that set or get calls to bind storage anew is resize.  A verb of which there are two is left out.
    """
    embed, forward, stored = method(EMBED), method(FORWARD), stored_by(EMBED, method).keys()
    if embed is None or forward is None:
        return {}
    read = {f"self.{name}" for name in stored}
    found = {
        "set": {name for name in _ordered(embed, method) if stored_by(name, method)},
        "clear": {name for name in _ordered(forward, method) if stored_by(name, method).keys() & stored},
        "get": {
            name
            for name in _given_one(ast.walk(forward), method) - _ordered(forward, method)
            if any(reads(each) & read for each in reached(name, method).values())
        },
    }
    found["set"] -= found["clear"]  # a step of text may clear while it is embedded
    callers = [each for verb in ("set", "get") for name in found[verb] if (each := method(name))]
    ordered = {name for caller in callers for name in _ordered(caller, method)}
    found["resize"] = {
        name
        for name in ordered
        if (each := method(name)) and any(binds(node) & read for node in _statements(each))
    }
    return {verb: next(iter(names)) for verb, names in found.items() if len(names) == 1}


def _ordered(function: Function, method: FindMethod) -> set[str]:
    """Return the methods that statements of a function call with one argument, for what they do."""
    return _given_one((node.value for node in _statements(function) if isinstance(node, ast.Expr)), method)


def _given_one(nodes: Iterable[ast.AST], method: FindMethod) -> set[str]:
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
    for function in reached(start, method).values():
        views = _views_in(function)
        for node in _statements(function):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant | None):
                continue
            changed = writes(node) - binds(node)
            names = {name for each in changed for name in views.get(each, ())}
            names |= {name.removeprefix("self.") for name in writes(node) if name.startswith("self.")}
            names |= {each for target in _targets(node) if (each := _root_of(target))}
            for name in (names | _filled_by(node)) - {"*"}:
                first_lines[name] = min(node.lineno, first_lines.get(name, node.lineno))
    return first_lines


def _targets(node: ast.stmt) -> list[ast.expr]:
    """Return what an assignment assigns to."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


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
"""Methods whose answer shares its storage with their object."""
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
            return frozenset(each for arg in args for each in _viewed(arg))
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return frozenset(each for element in elements for each in _viewed(element))
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
                names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)} if seen else ()
                for name in names:
                    views[name] = views.get(name, frozenset()) | seen
    return views


def _filled_by(node: ast.stmt) -> frozenset[str]:
    """Return the attributes that a function fills: `out=self.x`, and `fill(self.x, ..)` that stands alone."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    filled = [key.value for call in calls for key in call.keywords if key.arg == "out"]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        filled += [*node.value.args, *(key.value for key in node.value.keywords)]
    return frozenset(name for each in filled for name in _viewed(each)) - _NO_PARTS


def reached(start: str, method: FindMethod) -> dict[str, Function]:
    """Return a method and the methods of the same object that it calls, by name; none where it is missing."""
    methods: dict[str, Function] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        function = None if name in methods else method(name)
        if function is not None:
            methods[name] = function
            todo += sorted(own_methods_called(function) | _properties_read(function, method))
    return methods


def _properties_read(function: Function, method: FindMethod) -> frozenset[str]:
    """Return the names that a function reads of its instance, and that are defined as methods."""
    names = {name.removeprefix("self.") for name in reads(function) if name.startswith("self.")}
    return frozenset(name for name in names if method(name) is not None)


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
        if read := {each for node in called.body for each in reads(node)} & stored:
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


def _given_to_methods(
    function: Function, origins: Origins, methods: Mapping[str, Function]
) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield the parameters of own methods that are given stored attributes: method, parameter, attributes."""
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in methods:
                parameters = [each.arg for each in methods[name].args.args[1:]]
                values = [*zip(parameters, call.args, strict=False)]
                values += [(each.arg, each.value) for each in call.keywords if each.arg]
                for parameter, value in values:
                    if carried := _origins(value, origins):
                        yield name, parameter, carried


def _handed_on(
    function: Function,
    stored: frozenset[str],
    methods: Mapping[str, Function],
    parameters: Mapping[str, frozenset[str]],
) -> Iterator[tuple[ast.Call, frozenset[str], tuple[str, ...]]]:
    """Yield each call that hands stored attributes to a part of the model, with these and its keywords."""
    origins, parts = _flow(function, stored, methods, parameters)
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        if not (_is_part(call.func, methods, parts) or _is_run_by(call, origins, methods, parts)):
            continue
        values = [*call.args, *call.keywords]
        carried = frozenset(name for each in values for name in _origins(each, origins))
        if carried:
            keywords = [each for each in call.keywords if each.arg and _origins(each, origins)]
            yield call, carried, tuple(each.arg for each in keywords if each.arg)


def _is_run_by(call: ast.Call, origins: Origins, methods: Mapping[str, Function], parts: set[str]) -> bool:
    """Return whether a function is given a part of the model to run: `run(self.x, ..)`."""
    others = (each for each in call.args if isinstance(each, ast.Attribute) and not _origins(each, origins))
    return isinstance(call.func, ast.Name) and any(_is_part(each, methods, parts) for each in others)


def _origins(node: ast.AST, origins: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the stored attributes that the value of `node` may come from."""
    return frozenset(each for name in reads(node) if name in origins for each in origins[name])


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

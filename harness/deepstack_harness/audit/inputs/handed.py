"""What calls hand over, and whether it may be other than None in steps of some modes.

A dictionary that is passed as `**` is taken apart: what a function puts in, what it is returned from, and
what a function that it is passed to puts in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from deepstack_harness.audit.inputs.calls import argument, optional
from deepstack_harness.audit.inputs.conditions import parameters
from deepstack_harness.audit.inputs.index import is_none
from deepstack_harness.audit.inputs.phases import Scope
from deepstack_harness.audit.inputs.replays import Regions, Visit
from deepstack_harness.audit.inputs.writes import assigned, local_paths
from deepstack_harness.engines.syntax import Function

_DEPTH = 4
"""Expressions and functions that are followed to what fills a dictionary.

A member that is deeper counts as not given.
"""


class Handed:
    """What the calls of the functions of `regions` hand over."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self.given_to_entries: frozenset[str] = frozenset()
        """The optional arguments that the steps of runners give to a model."""
        self.values: dict[str, list[tuple[Visit, ast.expr]]] = {}
        """All that was put into a dictionary under a name, also what another value replaced later."""

    def gives(
        self, value: ast.expr, visit: Visit, modes: frozenset[str], depth: int = 8, *,
        given: frozenset[str] | None = None,
    ) -> bool:  # fmt: skip
        """Return whether a value may be other than None in steps of these modes.

        `given` are the optional arguments that runners give to a model, where these are fewer than all.
        """
        if not depth or is_none(value):
            return not is_none(value)
        function = visit.scope.function
        match value:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                result = self._regions.decide(function, modes)(test)
                sides = [body] if result else [orelse] if result is False else [body, orelse]
                return any(self.gives(side, visit, modes, depth - 1, given=given) for side in sides)
            case ast.Name(id=name):
                values = [
                    stated
                    for node in self._regions.nodes(function, modes)
                    for target, stated in assigned(node)
                    if isinstance(target, ast.Name) and target.id == name and stated is not None
                ]
                if any(self.gives(expression, visit, modes, depth - 1, given=given) for expression in values):
                    return True
                if name not in parameters(function):
                    return not values
                if visit.caller is None or visit.call is None:
                    entries = self.given_to_entries if given is None else given
                    return name in entries or name not in optional(function)
                handed = self.keywords(visit.call, visit.caller, modes, function, bound=visit.bound).get(name)
                return handed is not None and self.gives(handed[1], handed[0], modes, depth - 1, given=given)
        return True

    def keywords(
        self, call: ast.Call, visit: Visit, modes: frozenset[str], function: Function | None = None, *,
        bound: bool = True,
    ) -> dict[str, tuple[Visit, ast.expr]]:  # fmt: skip
        """Return what a call gives by name, `**` taken apart; by position too for a known `function`."""
        given: dict[str, tuple[Visit, ast.expr]] = {}
        for keyword in call.keywords:
            if keyword.arg:
                given[keyword.arg] = (visit, keyword.value)
            else:
                given |= self._items(keyword.value, visit, modes, _DEPTH)
        for name in parameters(function) if function else ():
            value = argument(call, function, name, bound=bound) if function else None
            if value is not None:
                given[name] = (visit, value)
        return given

    def _items(  # noqa: C901, PLR0912  # one case for each kind of expression
        self, value: ast.expr, visit: Visit, modes: frozenset[str], depth: int
    ) -> dict[str, tuple[Visit, ast.expr]]:
        """Return the members of a dictionary, as far as they can be read in the functions that fill it."""
        items: dict[str, tuple[Visit, ast.expr]] = {}
        if not depth:
            return items
        match value:
            case ast.Dict(keys=keys, values=values):
                for key, stored in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant):
                        items[str(key.value)] = (visit, stored)
                    elif key is None:
                        items |= self._items(stored, visit, modes, depth - 1)
            case ast.IfExp(body=body, orelse=orelse):
                for expression in (body, orelse):
                    items |= self._items(expression, visit, modes, depth - 1)
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                items |= {keyword.arg: (visit, keyword.value) for keyword in keywords if keyword.arg}
            case ast.Call(func=func):
                for scope in self._dict_makers(func, visit):
                    inner = Visit(scope, frozenset(), {}, visit, value)
                    for node in self._regions.nodes(scope.function, modes):
                        if isinstance(node, ast.Return) and node.value is not None:
                            items |= self._items(node.value, inner, modes, depth - 1)
            case ast.Name(id=name):
                items |= self._filled(name, visit, modes, depth)
        return items

    def _filled(  # noqa: C901, PLR0912  # one case for each way to put something into a dictionary
        self, name: str, visit: Visit, modes: frozenset[str], depth: int
    ) -> dict[str, tuple[Visit, ast.expr]]:
        """Return the members that a function puts into a dictionary of its own or of its caller."""
        items: dict[str, tuple[Visit, ast.expr]] = {}
        function = visit.scope.function
        kept = function.args.kwarg
        if kept is not None and kept.arg == name and visit.caller and visit.call:
            own = parameters(function)
            handed = self.keywords(visit.call, visit.caller, modes)
            items |= {key: expression for key, expression in handed.items() if key not in own}
        nodes = list(self._regions.nodes(function, modes))
        loops = {
            node.target.id: [stated.value for stated in node.iter.elts if isinstance(stated, ast.Constant)]
            for node in nodes
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name)
            and isinstance(node.iter, ast.Tuple | ast.List)
        }  # fmt: skip
        for node in nodes:
            for target, value in assigned(node):
                match target:
                    case ast.Name(id=bound) if bound == name and value is not None:
                        items |= self._items(value, visit, modes, depth - 1)
                    case ast.Subscript(value=ast.Name(id=bound), slice=key) if bound == name and value:
                        keys = [key.value] if isinstance(key, ast.Constant) else []
                        keys = loops.get(key.id, []) if isinstance(key, ast.Name) else keys
                        for word in map(str, keys):
                            self.values.setdefault(word, []).append((visit, value))
                            # What is None only in some steps may still be given in others.
                            if word not in items or not is_none(value):
                                items[word] = (visit, value)
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=bound), attr="update"), args=args):
                    if bound == name:
                        items |= {
                            keyword.arg: (visit, keyword.value) for keyword in node.keywords if keyword.arg
                        }
                        for given in args:
                            items |= self._items(given, visit, modes, depth - 1)
                case ast.Call(func=func, args=args) if depth > 1:
                    at = [
                        place
                        for place, given in enumerate(args)
                        if isinstance(given, ast.Name) and given.id == name
                    ]
                    for scope, bound_method in (
                        self._regions.called(func, visit, local_paths(function)) if at else ()
                    ):
                        names = [parameter.arg for parameter in scope.function.args.args][bound_method:]
                        inner = Visit(scope, frozenset(), {}, visit, node, bound_method)
                        for place in at:
                            if place < len(names):
                                items |= self._filled(names[place], inner, modes, depth - 1)
        return items

    def _dict_makers(self, func: ast.expr, visit: Visit) -> Iterator[Scope]:
        """Yield the functions that a call may run, those of another object's method by their name."""
        found = [scope for scope, _ in self._regions.called(func, visit, local_paths(visit.scope.function))]
        if not found and isinstance(func, ast.Attribute):
            found = [
                scope
                for member in list(self._regions.index.trees)
                for scope in self._regions.phases.scopes_of(member)
                if scope.function.name == func.attr and scope.owner
                and "runner" in f"{member}{scope.owner.node.name}".lower()
            ]  # fmt: skip
        yield from found

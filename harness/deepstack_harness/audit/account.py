"""The account of a source: everything in it that carries a payload, and whether it was judged.

All Python files of the package are looked at, in all folders.  Two things make a carrier:

- the shape: a class stores an attribute in `embed_input_ids`, and its `forward` passes it to a part
  of the model (`engines.carriers`), whatever the names are;
- the word: code passes a payload on under a name that has the engine's word in it, as a parameter that is no
  flag, a keyword of a call, or a place that it assigns to. What constructors are given is configuration.
  Comments, texts, weight names and imports pass nothing on.

A carrier that was not judged is no fault, and no proof that there is none: every audit fails for it, unless
`fixtures/known_carriers.toml` has it with a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from os.path import commonpath

from deepstack_harness.audit.source_worker import AuditedClass
from deepstack_harness.catalogue.known import KNOWN_CARRIERS, KnownCarrier
from deepstack_harness.catalogue.orders import UNKNOWN
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.engines.carriers import (
    EMBED,
    FORWARD,
    Carrier,
    FindMethod,
    find_carrier,
    methods_reached,
    stored_by,
)
from deepstack_harness.engines.discover import ArgumentFiles, collector_paused, depth_limited
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.syntax import Function, parse, statements_in, writes
from deepstack_harness.errors import Reason, UsageError
from deepstack_harness.sources.source import Source, decode, inside_package

SYSTEM = "account"
"""`system` in the rows of carriers that were not judged."""
WORD = "deepstack"
"""The word of every engine; an engine may have one of its own (`KnownEngine.word`)."""
_CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__"})
_DEFINES_EMBED = f"def {EMBED}(".encode()


@dataclass(frozen=True)
class UnjudgedCarrier:
    """A class or function that carries a payload and was not judged.

    `line` is None where no single line of the file is meant; `member` is empty for an entry of the catalogue.
    `reason` is that of its entry among the known carriers, empty without one.
    """

    name: str
    member: str
    line: int | None
    why: str
    reason: str = ""

    @property
    def where(self) -> str:
        """`MEMBER:LINE`, or `MEMBER` without a line."""
        return Reason("", self.member, self.line).where

    @property
    def detail(self) -> str:
        """The sentence about it, with the reason of its entry."""
        return f"{self.why} [known: {self.reason}]" if self.reason else self.why

    def row(self, label: str, package: str) -> Row[None]:
        """Return its row: no rule was judged."""
        return Row(
            system=SYSTEM, engine=package, model_class=self.name, revision=label, source=label, rule=None,
            device="", verdict=Verdict.SKIP if self.reason else Verdict.ERROR, reach=UNKNOWN,
            detail=self.detail, where=self.where, expected=bool(self.reason),
        )  # fmt: skip


@dataclass(frozen=True)
class Account:
    """Every file of a source with a carrier or the word in it.

    `judged` are the files whose carriers were all judged, `unjudged` the carriers that were not, and
    `without` the files that have the word and carry nothing.  `outdated` are classes that were judged
    although they are listed as known carriers that cannot be.
    """

    judged: tuple[str, ...] = ()
    unjudged: tuple[UnjudgedCarrier, ...] = ()
    without: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()

    @property
    def failing(self) -> tuple[UnjudgedCarrier, ...]:
        """The carriers that no entry knows: they fail every audit."""
        return tuple(carrier for carrier in self.unjudged if not carrier.reason)

    def rows(self, label: str, package: str) -> list[Row[None]]:
        """Return the rows of carriers that were not judged, and of outdated entries."""
        why = "it was judged, and it is listed as a known carrier that cannot be judged"
        outdated = (UnjudgedCarrier(name, "", None, why) for name in self.outdated)
        return [
            *(carrier.row(label, package) for carrier in self.unjudged),
            *(replace(carrier.row(label, package), verdict=Verdict.IMPROVED) for carrier in outdated),
        ]


def account_of(
    source: Source,
    classes: Sequence[AuditedClass],
    entries: Iterable[KnownCarrier] | None = None,
    unchanged: Collection[tuple[str, str]] = (),
    among: Collection[str] | None = None,
) -> Account:
    """Look at the Python files of a source; `classes` are its deepstack classes, judged or refused.

    `entries` are the known carriers, by default those that come with the harness.  `unchanged` are classes by
    file and name that are judged elsewhere, and `among` the files to look at, by default all.  Raises what
    `Source.python_files` raises, and `UsageError` for classes that are nested too deeply.
    """
    chosen = KNOWN_CARRIERS.entries if entries is None else entries
    known = [entry for entry in chosen if entry.is_about(source.package, source.version)]
    with collector_paused(), depth_limited(source):
        return _Accountant(source, classes, known, unchanged, among).account()


@dataclass(frozen=True)
class _Class:
    """A class statement, and its file."""

    node: ast.ClassDef
    member: str

    @property
    def key(self) -> tuple[str, str]:
        return self.member, self.node.name

    @cached_property
    def methods(self) -> dict[str, Function]:
        return {node.name: node for node in self.node.body if isinstance(node, Function)}

    @cached_property
    def bases(self) -> list[str]:
        """The last part of each base's name: `Base` for `models.Base` and for `Base[T]`."""
        names: list[str] = []
        for base in self.node.bases:
            node = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(node, ast.Name | ast.Attribute):
                names.append(node.id if isinstance(node, ast.Name) else node.attr)
        return names


class _Accountant:
    """The class statements of the files that had to be parsed, and which of them are judged."""

    def __init__(
        self,
        source: Source,
        classes: Sequence[AuditedClass],
        known: Sequence[KnownCarrier],
        unchanged: Collection[tuple[str, str]] = (),
        among: Collection[str] | None = None,
    ) -> None:
        engine = engine_of(source)
        self._files = source.python_files()
        self._among = self._files.keys() if among is None else among
        self._module = engine.package.module
        self._known = known
        self._version_known = source.version is not None
        self._words = tuple(sorted({WORD, engine.word}))
        self._refused = [audited for audited in classes if not audited.can_be_judged]
        self._only_methods = [
            audited
            for audited in classes
            if audited.ways.methods
            and audited.ways.refusals
            and not (audited.ways.forward or audited.argument)
        ]
        judged = {
            (audited.found.member, audited.found.class_name) for audited in classes if audited.can_be_judged
        }
        self._judged, self._covered = judged, judged | set(unchanged)
        self._covered_files = {member for member, _ in self._covered}
        if self._covered:
            # The other files of an engine that calls of its classes run, such as that of a mixin.
            for audited in classes:
                places = (audited.patched_at, audited.replayed_at, *audited.ways.places.values())
                self._covered_files |= {place.partition(":")[0] for place in places if place}
            if isinstance(engine.payload, ArgumentFiles):
                wrapper, writer = engine.payload.wrapper, engine.payload.writer
                self._covered_files |= {*([wrapper.member] if wrapper else []), *(writer or ())[:1]}
        self._trees: dict[str, ast.Module] = {}
        self._unread: dict[str, str] = {}
        self._by_name: dict[str, list[_Class]] = {}

    def account(self) -> Account:
        """Find carriers by their shape in all classes, then by the word in the files that are left."""
        worded = [name for name in self._having("|".join(map(re.escape, self._words))) if name in self._among]
        self._parse(worded)
        self._parse(
            name for name, data in self._files.items() if name in self._among and _DEFINES_EMBED in data
        )
        self._parse_relatives()
        shapes = list(self._shapes())
        carriers = [*self._refusals(), *self._unjudged(shapes)]
        unjudged_files = {carrier.member for carrier in carriers}
        judged = self._covered_files | {
            owner.member for owner, _ in shapes if owner.member not in unjudged_files
        }
        for member in worded:
            if member in judged | unjudged_files:
                continue
            stem = member.rpartition("/")[2]
            if member in self._unread:
                carriers.append(UnjudgedCarrier(stem, member, None, self._unread[member]))
                continue
            for node in self._trees[member].body:
                # The first line of a class or function that passes a payload on under a name with the word.
                for line, text in islice(_payload_uses(node, self._words), 1):
                    name = getattr(node, "name", stem)
                    carriers.append(UnjudgedCarrier(name, member, line, f"it was not called: {text}"))
        unjudged = tuple(
            replace(carrier, reason=self._reason(carrier.name, carrier.member)) for carrier in carriers
        )
        unjudged_files = {carrier.member for carrier in unjudged}
        return Account(
            tuple(sorted(judged & self._files.keys() - unjudged_files)),
            unjudged,
            tuple(member for member in worded if member not in judged | unjudged_files),
            tuple(
                sorted(
                    name
                    for member, name in self._judged
                    # An entry of other releases is not outdated by a tree whose release nobody knows.
                    if self._version_known and self._reason(name, member) and member not in unjudged_files
                )
            ),
        )

    def _having(self, pattern: str) -> list[str]:
        wanted = re.compile(pattern.encode())
        return sorted(name for name, data in self._files.items() if wanted.search(data))

    def _parse(self, members: Iterable[str]) -> None:
        """Parse files; record their classes, and the error of a file that does not parse."""
        for member in members:
            if member in self._trees or member in self._unread:
                continue
            try:
                tree = parse(decode(self._files[member], member))
            except UsageError as error:
                self._unread[member] = str(error)
                continue
            self._trees[member] = tree
            for node in statements_in(tree.body):
                if isinstance(node, ast.ClassDef):
                    self._by_name.setdefault(node.name, []).append(_Class(node, member))

    def _parse_relatives(self) -> None:
        """Parse the bases of classes that embed, then what derives from these or reads what they store."""
        self._parse_bases()
        storing = {
            owner.node.name: stored
            for owner in self._classes
            if (stored := stored_by(EMBED, self._lookup(owner)))
        }
        attributes = {name for stored in storing.values() for name in stored}
        if storing:
            self._parse(self._having(rf"\bself\.(?:{_any_of(attributes)})\b"))
            self._parse(self._having(rf"class \w+\([^)]*\b(?:{_any_of(storing)})\b"))
            self._parse_bases()

    def _parse_bases(self) -> None:
        """Parse the bases of all classes that have one of the two methods, where the source has them."""
        looked: set[str] = set()
        while True:
            steps = [owner for owner in self._classes if {EMBED, FORWARD} & owner.methods.keys()]
            bases = {name for owner in steps for base in self._lineage(owner) for name in base.bases}
            missing = bases - self._by_name.keys() - looked
            if not missing:
                return
            looked |= missing
            self._parse(self._having(rf"class (?:{_any_of(missing)})\b"))

    @property
    def _classes(self) -> list[_Class]:
        owners = (owner for same_name in self._by_name.values() for owner in same_name)
        return sorted(owners, key=lambda owner: owner.key)

    def _lineage(self, owner: _Class, derived: tuple[tuple[str, str], ...] = ()) -> Iterator[_Class]:
        """Yield a class and its base classes, depth first; a damaged source may name a derived class."""
        yield owner
        for name in owner.bases:
            base = self._base(owner, name)
            if base is not None and base.key not in derived:
                yield from self._lineage(base, (*derived, owner.key))

    def _base(self, owner: _Class, name: str) -> _Class | None:
        """Return the base class of a name: from the class's own file, or from the nearest folder."""
        others = [other for other in self._by_name.get(name, ()) if other.key != owner.key]
        return max(others, key=lambda other: len(commonpath([other.member, owner.member])), default=None)

    def _lookup(self, owner: _Class) -> FindMethod:
        lineage = list(self._lineage(owner))
        return lambda name: next((base.methods[name] for base in lineage if name in base.methods), None)

    def _refusals(self) -> Iterator[UnjudgedCarrier]:
        """Yield the classes that were found and cannot be called, or not in the order of their engine."""
        for audited in self._refused:
            yield self._refusal(audited)
        for audited in self._only_methods:
            owner = self._owner(audited)
            if owner is not None and all(map(self._lookup(owner), (EMBED, FORWARD))):
                yield self._refusal(audited, f"only its methods were called, not its {EMBED} and {FORWARD}: ")

    def _refusal(self, audited: AuditedClass, what: str = "") -> UnjudgedCarrier:
        reason = audited.ways.refusals[-1]
        where = inside_package(reason.where, self._module)
        why = str(reason) if where == reason.where else f"{reason.text} ({where})"
        owner = self._owner(audited)
        line = owner.node.lineno if owner else None
        return UnjudgedCarrier(audited.model_class, audited.found.member, line, f"{what}{why}")

    def _owner(self, audited: AuditedClass) -> _Class | None:
        """Return the statement of a class; None where its file has no such statement."""
        same_name = self._by_name.get(audited.found.class_name, ())
        return next((owner for owner in same_name if owner.member == audited.found.member), None)

    def _shapes(self) -> Iterator[tuple[_Class, Carrier]]:
        """Yield the classes with the shape of a carrier that do a part of it themselves."""
        for owner in self._classes:
            method = self._lookup(owner)
            carrier = find_carrier(method) if owner.methods else None
            if carrier is not None:
                steps = {*methods_reached(EMBED, method), *methods_reached(FORWARD, method)}
                if steps & owner.methods.keys() or _constructs(owner, carrier):
                    yield owner, carrier

    def _unjudged(self, shapes: Iterable[tuple[_Class, Carrier]]) -> Iterator[UnjudgedCarrier]:
        refused = {(audited.found.member, audited.found.class_name) for audited in self._refused}
        for owner, carrier in shapes:
            if owner.key not in refused and not self._is_judged(owner):
                stored = ", ".join(f"self.{name}" for name in carrier.attributes)
                use = f"which {FORWARD} passes to a part of the model"
                why = f"it was not called: {EMBED} stores {stored}, {use}"
                yield UnjudgedCarrier(owner.node.name, owner.member, owner.node.lineno, why)

    def _is_judged(self, owner: _Class) -> bool:
        """Return whether a class is covered, or a class that inherits both methods from it."""
        method = self._lookup(owner)
        for derived in self._classes:
            if derived.key in self._covered:
                other = self._lookup(derived)
                same = all(method(name) is other(name) for name in (EMBED, FORWARD))
                if owner.key == derived.key or (
                    same and any(base.key == owner.key for base in self._lineage(derived))
                ):
                    return True
        return False

    def _reason(self, name: str, member: str) -> str:
        reason = next((entry.reason for entry in self._known if entry.names(name, member)), "")
        return (
            f"{reason}; by name and file: the tree has no version"
            if reason and not self._version_known
            else reason
        )


def _constructs(owner: _Class, carrier: Carrier) -> bool:
    """Return whether a constructor of a class makes what it carries, or leaves out that of its base."""
    own = [owner.methods[name] for name in _CONSTRUCTORS if name in owner.methods]
    stored = {f"self.{name}" for name in carrier.attributes}
    inherits = any(
        isinstance(part, ast.Name) and part.id == "super" for node in own for part in ast.walk(node)
    )
    return any(writes(node) & stored for method in own for node in method.body) or bool(own and not inherits)


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names)))


def _payload_uses(node: ast.AST, words: Sequence[str], function: str = "") -> Iterator[tuple[int, str]]:
    """Yield the lines that pass a payload on under a name with one of the words, each with a sentence."""
    if isinstance(node, Function):
        function = node.name
        yield from _parameters(node, words)
    elif isinstance(node, ast.Call) and function not in _CONSTRUCTORS:
        for keyword in node.keywords:
            if _has(keyword.arg, words) and _is_computed(keyword.value):
                yield keyword.value.lineno, f"it passes on '{keyword.arg}'"
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and function not in _CONSTRUCTORS:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for place in (place for target in targets for place in _places(target)):
            named = any(_has(name, words) for name in _names_in(place))
            if named and node.value is not None and _is_computed(node.value):
                yield node.lineno, f"it stores into '{ast.unparse(place)}'"
    for child in ast.iter_child_nodes(node):
        yield from _payload_uses(child, words, function)


def _parameters(node: Function, words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the parameters of a function that may be a payload: constructors and flags have none."""
    if node.name in _CONSTRUCTORS:
        return
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for parameter, default in zip(
        [*positional, *arguments.kwonlyargs], [*defaults, *arguments.kw_defaults], strict=True
    ):
        flag = isinstance(default, ast.Constant) and isinstance(default.value, bool | int | str)
        text = ast.unparse(parameter.annotation) if parameter.annotation else ""
        types = set(re.findall(r"[\w.]+", text))  # of `bool`, `int | None`, `Optional[str]` and the like
        flag |= bool(types & {"bool", "int", "str"}) and types <= {"bool", "int", "str", "None", "Optional"}
        if _has(parameter.arg, words) and not flag:
            yield parameter.lineno, f"{node.name} is given '{parameter.arg}'"


def _places(target: ast.expr) -> Iterator[ast.expr]:
    """Yield the attributes and members that an assignment changes, without plain variables."""
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _places(element)
    elif isinstance(target, ast.Attribute | ast.Subscript):
        yield target


def _names_in(place: ast.expr) -> Iterator[str]:
    """Yield the names in a place: of an attribute, of a key, of the container that a member is in."""
    if isinstance(place, ast.Attribute):
        yield place.attr
    elif isinstance(place, ast.Subscript):
        constants = (node.value for node in ast.walk(place.slice) if isinstance(node, ast.Constant))
        yield from (value for value in constants if isinstance(value, str))
        yield from _names_in(place.value)
    elif isinstance(place, ast.Name):
        yield place.id


def _is_computed(value: ast.expr) -> bool:
    """Return whether a value may be a payload: it is no constant and no empty container."""
    match value:
        case ast.Constant() | ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[]):
            return False
    return True


def _has(name: str | None, words: Sequence[str]) -> bool:
    return name is not None and any(word in name for word in words)

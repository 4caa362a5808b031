"""The audit of a change: the classes that the changed files reach, in the source and in its base.

A class is reached where a changed file is one that it depends on (`Finder.files_of`), or where a changed line
has the name of the class or sets one of its members from elsewhere.  Where a function changes that decides
the order of calls, every class is reached.  All other classes are the same in both, and judged in neither.

What was judged of a commit or of a release is stored in the cache under its name, so that only the changed
source is judged when it is compared with the same base again.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache as cached
from importlib.metadata import version
from pathlib import Path

import msgspec
from packaging.version import Version

from deepstack_harness import files
from deepstack_harness.audit.account import UnjudgedCarrier, account_of
from deepstack_harness.audit.audited_source import AuditedSource, AuditScope, audit_source
from deepstack_harness.audit.gate import Base, SeenClass, gives_payload, seen_classes
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.audit.system_files import HELPERS_MEMBER, RANGES_MEMBER
from deepstack_harness.catalogue.orders import deciding_functions
from deepstack_harness.engines.discover import collector_paused, depth_limited
from deepstack_harness.engines.engine import StoredPayload
from deepstack_harness.engines.known import engine_of, find_classes, finder_of, open_source
from deepstack_harness.engines.syntax import function_hashes
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.folder import revision_of
from deepstack_harness.sources.request import ReleaseRequest, names_source, parse_source
from deepstack_harness.sources.source import Source
from deepstack_harness.sources.tree import of_release

Say = Callable[[str], None]


class BaseClass(msgspec.Struct):
    """A class of a base: its file, what it depends on, and its verdicts, None where it was not judged yet.

    No `files` mean all of them: they are not known for engines whose classes are found in another way.
    """

    member: str
    files: tuple[str, ...] = ()
    derived_from: tuple[str, ...] = ()
    seen: SeenClass | None = None


class BaseRecord(msgspec.Struct):
    """Everything that was found out about a base; `systems` are None where they were not judged yet."""

    classes: dict[str, BaseClass]
    systems: dict[str, SeenClass] | None = None


@contextmanager
def base_of(text: str, sources: list[str]) -> Iterator[str]:
    """Yield the source that `--base` names: a source, or the files of a commit of the only source.

    Raises `UsageError` for a commit of what is no git repository.
    """
    if names_source(text):
        yield text
        return
    if len(sources) != 1:
        raise UsageError(f"'{text}' would be a commit of one --source, and there are {len(sources)}")
    root = Path(sources[0]).expanduser()
    if not root.is_dir():
        raise UsageError(f"'{text}' is no source, and '{sources[0]}' is no repository that could have it")
    with revision_of(root, text) as folder:
        yield str(folder)


def audit_change(
    text: str, base: str, say: Say, names: Collection[str] = (), *, stated: Version | None = None
) -> tuple[AuditedSource, Base]:
    """Judge what a change of its base reaches in a source, or only the classes `names`; the same in the base.

    `stated` is the release of a tree, and of its base.  Raises what `audit_source` and `base_of` raise.
    """
    with base_of(base, [text]) as folder:
        of_base = stated if folder != base else None
        before, after = _opened(folder, of_base), _opened(text, stated)
        label = base if folder == base else f"{base} of {text}"
        store = _store(folder, base, stated)
        record = _load(store) or _listed(before, f"looking for classes in {label}", say)
        change = _Change(before, after, record)
        wanted = change.members.keys() & {*names} if names else change.reached()
        systems = not names and not change.files.isdisjoint({RANGES_MEMBER, HELPERS_MEMBER})
        audited = audit_source(
            text,
            say,
            AuditScope(
                lambda model_class, _: model_class in wanted,
                _others(change.members, wanted),
                systems,
                account=not names,
                among=change.files,
            ),
            may_be_empty=bool(change.members),
            stated=stated,
            source=after,
        )
        needed = change.needed(wanted)

        def judge_missing() -> None:
            missing = {name for name in needed if record.classes[name].seen is None}
            if not (missing or (systems and record.systems is None)):
                return
            part = AuditScope(lambda model_class, _: model_class in missing, systems=systems, account=False)
            judged = audit_source(
                folder, say, part, may_be_empty=True, known_as=label, stated=of_base, source=before
            )
            found = seen_classes(judged.classes)
            for name in missing:
                record.classes[name].seen = found.get(name, SeenClass())
            record.systems = seen_classes(judged.systems) if systems else record.systems
            _save(store, record)

        judge_missing()
        # A class that gave no payload shows the faults of the classes above it since it gives one.
        needed |= {
            above
            for verdicts in audited.classes
            if (known := record.classes.get(verdicts.model_class)) and gives_payload(verdicts, known.seen)
            for above in change.derived_from.get(verdicts.model_class, ())
            if above in record.classes
        }
        judge_missing()
        compared = {name: record.classes[name].seen or SeenClass() for name in needed}
        lost = [carrier for name in needed if compared[name].rows and (carrier := change.lost(name))]
        account = replace(audited.account, unjudged=(*audited.account.unjudged, *lost))
        audited = replace(audited, account=account, members=change.members, derived_from=change.derived_from)
        members = {name: known.member for name, known in record.classes.items()}
        carriers: Collection[str] = ()
        if account.failing:
            say(f"looking through all files of {label}")
            with SourceWorker(folder, source=before) as worker:
                classes = worker.classes(lambda model_class, _: model_class in needed)
                carrying = account_of(
                    worker.source, classes, unchanged=_others(members, needed), among=change.files
                )
            carriers = {carrier.name for carrier in carrying.unjudged}
        compared |= record.systems or {}
        return audited, Base(base, compared, members, carriers, frozenset(change.files))


def _others(members: Mapping[str, str], chosen: Collection[str]) -> list[tuple[str, str]]:
    """Return file and name of the classes that are not chosen."""
    return [(file, name.rpartition(".")[2]) for name, file in members.items() if name not in chosen]


def _opened(text: str, stated: Version | None) -> Source:
    source = open_source(text)
    return source if stated is None else of_release(source, stated)


def _listed(source: Source, step: str, say: Say) -> BaseRecord:
    """Return a record with the classes of a source, none of them judged."""
    say(step)
    if not _has_finder(source):
        return BaseRecord({found.model_class: BaseClass(found.member) for found in find_classes(source)})
    with collector_paused(), depth_limited(source):
        finder = finder_of(source)
        return BaseRecord({
            name: BaseClass(
                carrier.member, tuple(sorted(finder.files_of(name))), tuple(finder.derived_from(name))
            )
            for name, carrier in finder.carriers.items()
        })  # fmt: skip


def _has_finder(source: Source) -> bool:
    return isinstance(engine_of(source).payload, StoredPayload)


_SETS_MEMBER = r"(?<!self)\.(?:forward|embed_input_ids|\w*deepstack\w*)\s*=[^=]|setattr\("


class _Change:
    """The differences between two versions of a source, and the classes that they reach."""

    def __init__(self, before: Source, after: Source, record: BaseRecord) -> None:
        self._before, self._after, self._record = before, after, record
        old, new = before.python_files(), after.python_files()
        self.files = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        self._lines = "\n".join(
            line.decode("utf-8", "replace")
            for name in self.files
            for line in set(old.get(name, b"").splitlines()) ^ set(new.get(name, b"").splitlines())
        )
        self.members, self.derived_from = dict[str, str](), dict[str, list[str]]()
        if not _has_finder(after):
            self.members = {found.model_class: found.member for found in find_classes(after)}
            return
        with collector_paused(), depth_limited(after):
            finder = finder_of(after)
            known = {(base.member, name.rpartition(".")[2]) for name, base in record.classes.items()}
            if record.classes:
                finder.assume(known, self.files)
            self.members = {name: carrier.member for name, carrier in finder.carriers.items()}
            self.derived_from = {name: finder.derived_from(name) for name in self.members}

    def reached(self) -> set[str]:
        """Return the classes of the source that the change reaches, new ones among them."""
        known = self._record.classes
        if not self.files:
            return set()
        if self._decides() or not all(base.files for base in known.values()):
            return set(self.members)
        return {name for name in self.members if name not in known or self._reaches(name, known[name])}

    def needed(self, wanted: Collection[str]) -> set[str]:
        """Return the classes of the base that some classes of the source are compared with.

        Those that a changed file reaches and that are gone from the source are among them.
        """
        above = {base for name in wanted for base in self.derived_from.get(name, ())}
        gone = {
            name
            for name, known in self._record.classes.items()
            if name not in self.members and known.member in self.files
        }
        fresh = {name for name in wanted if name not in self._record.classes}
        return (set(wanted) | gone | (above if fresh else set())) & self._record.classes.keys()

    def lost(self, name: str) -> UnjudgedCarrier | None:
        """Return a class of the base that carries nothing any more, as one that was not judged.

        None for a class that carries a payload, or is not in the source any more.
        """
        member = self._record.classes[name].member
        statement = rf"^class {re.escape(name.rpartition('.')[2])}\b".encode()
        data = self._after.python_files().get(member, b"")
        if name in self.members or not re.search(statement, data, re.MULTILINE):
            return None
        why = "it carried a payload in the base, and its forward passes on none"
        return UnjudgedCarrier(name, member, None, why)

    def _decides(self) -> bool:
        """Return whether a function is changed that decides in which order a class is called."""
        functions = deciding_functions(self._after.package)
        if not any(
            name.startswith(member.removesuffix(".py").replace("/", "."))
            for member in self.files
            for name in functions
        ):
            return False
        before, after = (function_hashes(source, functions) for source in (self._before, self._after))
        return before != after

    def _reaches(self, name: str, known: BaseClass) -> bool:
        if self.files & {*known.files, self.members[name]}:
            return True
        if any(self._record.classes[above].member in self.files for above in known.derived_from):
            return True
        named = {model_class.rpartition(".")[2] for model_class in (name, *known.derived_from)}
        # Another module may set a member of a class by any name that it gives the class.
        acts = rf"\b(?:{'|'.join(map(re.escape, named))})\b[^\"'\n]*="
        return re.search(f"{acts}|{_SETS_MEMBER}", self._lines) is not None


def _store(folder: str, base: str, stated: Version | None) -> Path | None:
    """Return the file of what was found out about a base; None for a base that may change."""
    if folder != base:
        name = Path(folder).name  # the commit
    else:
        request = parse_source(base)
        if not isinstance(request, ReleaseRequest):
            return None
        name = f"{request.package}-{request.version}"
    key = hashlib.sha256("\n".join([_harness(), str(stated), version("torch"), sys.version]).encode())
    return files.cache() / "bases" / f"{name}-{key.hexdigest()[:16]}.json"


@cached
def _harness() -> str:
    """Return a digest of all files that decide a verdict: another version of the harness judges again."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for path in (*sorted(package.rglob("*.py")), *sorted(files.data("fixtures").rglob("*.*"))):
        if path.suffix in (".py", ".toml", ".json"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _load(path: Path | None) -> BaseRecord | None:
    if path is None:
        return None
    with suppress(OSError, UsageError, msgspec.MsgspecError):
        return msgspec.json.decode(files.read_regular(path), type=BaseRecord)
    return None


def _save(path: Path | None, record: BaseRecord) -> None:
    """Write the record; a cache that cannot be written costs the time of the next run, and nothing else."""
    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(path, msgspec.json.encode(record))

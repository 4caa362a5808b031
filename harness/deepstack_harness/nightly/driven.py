"""The record of a night's audits: what could be driven and which rules broke, beside the night before."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from deepstack_harness.auditing.audited_source import GRAPHS, AuditedSource
from deepstack_harness.auditing.gates import FindingKey, keys_of
from deepstack_harness.auditing.places import inside_package

_FILE = "newest.json"
_GONE = "nothing of this name can be driven now"
_PLACE = re.compile(r"\S+:\d+: ")


class AuditedPackage(msgspec.Struct, frozen=True):
    """One package in one night: `FILE:LINE` of everything that was driven, and the broken rules."""

    source: str
    driven: dict[str, str] = {}
    broken: tuple[FindingKey, ...] = ()


def record_of(found: AuditedSource) -> AuditedPackage:
    """Return the record of an audit."""
    return AuditedPackage(found.label, dict(found.places), tuple(sorted(keys_of(found.standings))))


def reasons_of(found: AuditedSource, module: str) -> dict[str, str]:
    """Return what could not be driven by its name, each with `FILE:LINE: reason`."""
    refused = {one.model_class: _shortened(one.refusals[-1], module) for one in found.refused}
    if found.live_alone:
        refused[GRAPHS] = _shortened(found.live_alone[0], module)
    return refused


def _shortened(why: str, module: str) -> str:
    """Return `PLACE: reason` with the place as seen from the folder that holds the package."""
    place, colon, reason = why.partition(": ")
    return f"{inside_package(place, module)}{colon}{reason}"


def no_longer_driven(
    before: AuditedPackage, now: AuditedPackage, reasons: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence for each name that was driven before and is not driven now.

    `reasons` are by name; the reason of an empty name is that of the whole release.  A reason without
    a line is told with the place where the name was.
    """
    for name, place in before.driven.items():
        if name in now.driven:
            continue
        kind = GRAPHS if name.startswith(f"{GRAPHS} of ") else name
        told = reasons.get(kind) or reasons.get("", _GONE)
        if not _PLACE.match(told):
            told = f"{place} of {before.source}: {told}"
        yield f"no longer driven: {name}, {told} ({now.source})"


def changes(before: AuditedPackage, now: AuditedPackage) -> Iterator[str]:
    """Yield a sentence for each rule that is broken in one of both audits alone."""
    old, new = set(before.broken), set(now.broken)
    for words, keys in ((f"broken since {before.source}", new - old), ("no longer broken", old - new)):
        yield from (f"{now.source}: {words}: {' '.join(filter(None, key))}" for key in sorted(keys))


def last_seen(history: Path, tonight: Path) -> dict[str, AuditedPackage]:
    """Return the last record of each package in the nights before.

    A night without a network has no record, so that each package is looked for by itself.
    """
    found: dict[str, AuditedPackage] = {}
    others = sorted(history.iterdir()) if history.is_dir() else []
    for folder in others:
        file = folder / _FILE
        if folder.resolve() != tonight.resolve() and file.is_file():
            with suppress(msgspec.MsgspecError):  # of a night that was killed while it wrote
                found |= msgspec.json.decode(file.read_bytes(), type=dict[str, AuditedPackage])
    return found


def write_seen(folder: Path, seen: Mapping[str, AuditedPackage]) -> None:
    """Write the record of a night."""
    (folder / _FILE).write_bytes(msgspec.json.format(msgspec.json.encode(seen), indent=2))

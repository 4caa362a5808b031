"""`python -m deepstack_harness.runs.newest FOLDER HISTORY`: audit the newest release of every engine.

Writes `newest.jsonl`, the rows, and `newest.json`, the record of what could be called and which rules broke,
which the next night compares with its own. A class that was called when its package was last audited and
cannot be called now is a finding, because no rule would be broken by it. A release that cannot be looked up
or fetched is printed, and is no finding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from deepstack_harness.audit.audited_source import GRAPHS, AuditedSource, audit_source
from deepstack_harness.audit.gate import FindingKey, keys_of
from deepstack_harness.contract.verdicts import SCHEMA_VERSION, UNEXPECTED
from deepstack_harness.engines.known import RELEASED, newest_source
from deepstack_harness.errors import ExitCode, MachineError, Reason, UsageError, reason_of
from deepstack_harness.files import read_regular
from deepstack_harness.sources.source import KnownPackage, inside_package
from deepstack_harness.text import json_line

_RECORDS = "newest.json"
_NO_REASON = Reason("nothing of this name can be judged now")


class AuditedPackage(msgspec.Struct, frozen=True):
    """One package in one night: `FILE:LINE` of everything that was called, and the broken rules.

    Records of schema_version 2, which none states, have the unit of the figure in the place of the shape.
    """

    source: str
    driven: dict[str, str] = {}
    broken: tuple[FindingKey, ...] = ()
    schema_version: int = 2


def reasons_of(audited: AuditedSource, module: str) -> dict[str, Reason]:
    """Return the reasons why something could not be called, by its name.

    The place of each is as seen from the folder that holds the package.
    """
    refused = {
        carrier.name: Reason(carrier.detail, carrier.member, carrier.line)
        for carrier in audited.account.unjudged
    }
    if audited.no_graphs:
        reason = audited.no_graphs[0]
        text = f"its graphs cannot be replayed: {reason.text}"
        refused[GRAPHS] = Reason(text, inside_package(reason.file, module), reason.line)
    return refused


def no_longer_driven(
    before: AuditedPackage, now: AuditedPackage, reasons: Mapping[str, Reason]
) -> Iterator[str]:
    """Yield a sentence for each name that was called before and is not called now.

    `reasons` are by name; the reason of an empty name is that of the whole release. To a reason without
    a line the place is added where the name was.
    """
    for name, place in before.driven.items():
        if name in now.driven:
            continue
        kind = GRAPHS if name.startswith(f"{GRAPHS} of ") else name
        reason = reasons.get(kind) or reasons.get("", _NO_REASON)
        at = f"{place} of {before.source}: " if reason.line is None else ""
        yield f"no longer judged: {name}, {at}{reason} ({now.source})"


def changes(before: AuditedPackage, now: AuditedPackage) -> Iterator[str]:
    """Yield a sentence for each rule that is broken in only one of both audits.

    A record of version 2 has no shapes: they are left out.
    """
    parts = -1 if before.schema_version == 2 else None  # without shapes
    old, new = ({key[:parts] for key in record.broken} for record in (before, now))
    for words, keys in ((f"broken since {before.source}", new - old), ("no longer broken", old - new)):
        yield from (f"{now.source}: {words}: {' '.join(filter(None, key))}" for key in sorted(keys))


def last_records(history: Path, tonight: Path) -> dict[str, AuditedPackage]:
    """Return the last record of each package in the nights before.

    A night without a network has no record, so that each package is looked for by itself.
    """
    records: dict[str, AuditedPackage] = {}
    others = sorted(history.iterdir()) if history.is_dir() else []
    for folder in others:
        file = folder / _RECORDS
        if folder.resolve() != tonight.resolve() and file.is_file():
            # A night that was killed while it wrote, or a file of somebody else.
            with suppress(msgspec.MsgspecError, RecursionError, UsageError):
                records |= msgspec.json.decode(read_regular(file), type=dict[str, AuditedPackage])
    return records


Audit = Callable[[str], AuditedSource]
Newest = Callable[[KnownPackage], str]


def _audit(text: str) -> AuditedSource:
    return audit_source(text, lambda _: None)  # a log needs no progress


def audit_newest(
    folder: Path, history: Path, newest: Newest = newest_source, audit: Audit = _audit
) -> ExitCode:
    """Judge every engine's newest release; BROKEN for an unexpected row, or for what is no longer called."""
    folder.mkdir(parents=True, exist_ok=True)
    before = last_records(history, folder)
    records: dict[str, AuditedPackage] = {}
    lost, unexpected = list[str](), 0
    with (folder / "newest.jsonl").open("wb") as rows:
        for package in (engine.package for engine in RELEASED):
            earlier = before.get(package.name)
            try:
                text = newest(package)
                audited = audit(text)
            except MachineError as error:
                print(f"{package.name}: not audited: {error}", flush=True)
                continue
            except UsageError as error:  # the release has nothing that could be judged
                records[package.name] = now = AuditedPackage(text)
                lost += no_longer_driven(earlier, now, {"": reason_of(error)}) if earlier else []
                print(f"{text}: not judged: {error}", flush=True)
                continue
            broken = tuple(sorted(keys_of(audited.subjects)))
            now = AuditedPackage(audited.label, dict(audited.places), broken, SCHEMA_VERSION)
            records[package.name], reasons = now, reasons_of(audited, package.module)
            lost += no_longer_driven(earlier, now, reasons) if earlier else []
            of_rules = [row for subject in audited.subjects for row in subject.rows]
            unexpected += sum(row.verdict in UNEXPECTED for row in of_rules)
            unexpected += len(audited.account.failing) + len(audited.account.outdated)
            carriers = audited.account.rows(audited.label, audited.package)
            rows.writelines(map(json_line, (*of_rules, *carriers)))
            rows.flush()
            for line in _lines_about(audited, now, earlier, reasons):
                print(line, flush=True)
    (folder / _RECORDS).write_bytes(msgspec.json.format(msgspec.json.encode(records), indent=2))
    print(f"{len(records)} of {len(RELEASED)} engines audited, {unexpected} unexpected verdicts")
    for line in lost:  # last, because a night prints the last lines of a stage
        print(line)
    return ExitCode.BROKEN if lost or unexpected else ExitCode.HOLDS


def _lines_about(
    audited: AuditedSource, now: AuditedPackage, earlier: AuditedPackage | None, reasons: Mapping[str, Reason]
) -> Iterator[str]:
    """Yield what was judged, what was not and why, and what is other than when it was audited last."""
    yield f"{audited.label}: judged: {', '.join(now.driven) or 'nothing'}"
    yield from (f"{audited.label}: not judged: {name}: {why}" for name, why in reasons.items())
    for name in audited.account.outdated:
        yield f"{audited.label}: known as not judged, and judged: {name}"
    if earlier is not None:
        yield from changes(earlier, now)


def main(words: Sequence[str]) -> ExitCode:
    """Judge into the first folder, compare with the second; raise `UsageError` where they are not named."""
    if len(words) != 2:
        raise UsageError("name two folders: python -m deepstack_harness.runs.newest FOLDER HISTORY")
    return audit_newest(Path(words[0]).resolve(), Path(words[1]).resolve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m deepstack_harness.nightly.newest FOLDER HISTORY`: audit the newest release of every engine.

Writes `newest.jsonl`, the rows, and `newest.json`, which the next night compares with its own.  A class that
was driven when its package was last audited and cannot be driven now is a finding, because no rule would
be broken by it.  A release that cannot be looked up or fetched is told, and is no finding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from deepstack_harness.auditing.audited_source import AuditedSource, audit_source
from deepstack_harness.contract.verdicts import UNEXPECTED
from deepstack_harness.engines.known import RELEASED
from deepstack_harness.engines.newest import newest_source
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.nightly.driven import (
    AuditedPackage,
    changes,
    last_seen,
    no_longer_driven,
    reasons_of,
    record_of,
    write_seen,
)
from deepstack_harness.sources.known_package import KnownPackage

Audit = Callable[[str], AuditedSource]
Newest = Callable[[KnownPackage], str]


def _audit(text: str) -> AuditedSource:
    return audit_source(text, lambda _: None)  # a log needs no progress


class NewestReleases:
    """Audit of the newest releases: what was seen, which rows are unexpected, and what is lost."""

    def __init__(self, rows: Path, newest: Newest = newest_source, audit: Audit = _audit) -> None:
        """Write the rows of all packages to the file `rows`."""
        self.seen: dict[str, AuditedPackage] = {}
        self.lost: list[str] = []
        self.unexpected = 0
        self._rows, self._newest, self._audit = rows, newest, audit
        rows.write_text("")

    def lines(self, packages: Iterable[KnownPackage], before: dict[str, AuditedPackage]) -> Iterator[str]:
        """Judge each package; yield what there is to tell of it."""
        for package in packages:
            try:
                text = self._newest(package)
                found = self._audit(text)
            except MachineError as error:
                yield f"{package.name}: not audited: {error}"
                continue
            except UsageError as error:  # the release has nothing that could be judged
                self._note(package, AuditedPackage(text), {"": str(error)}, before)
                yield f"{text}: not driven: {error}"
                continue
            now, reasons = record_of(found), reasons_of(found, package.module)
            self._note(package, now, reasons, before)
            self._write(found)
            yield f"{found.label}: driven: {', '.join(now.driven) or 'nothing'}"
            yield from (f"{found.label}: not driven: {name}: {why}" for name, why in reasons.items())
            if package.name in before:
                yield from changes(before[package.name], now)

    def _note(
        self,
        package: KnownPackage,
        now: AuditedPackage,
        reasons: dict[str, str],
        before: dict[str, AuditedPackage],
    ) -> None:
        self.seen[package.name] = now
        if package.name in before:
            self.lost += no_longer_driven(before[package.name], now, reasons)

    def _write(self, found: AuditedSource) -> None:
        rows = [row for standing in found.standings for row in standing.rows]
        self.unexpected += sum(row.verdict in UNEXPECTED for row in rows)
        with self._rows.open("a") as stream:
            stream.writelines(f"{row.to_json()}\n" for row in rows)


def audit_newest(
    folder: Path, history: Path, newest: Newest = newest_source, audit: Audit = _audit
) -> ExitCode:
    """Judge every engine's newest release; BROKEN for an unexpected row, or for what is no longer driven."""
    folder.mkdir(parents=True, exist_ok=True)
    releases = NewestReleases(folder / "newest.jsonl", newest, audit)
    packages = [engine.package for engine in RELEASED]
    for line in releases.lines(packages, last_seen(history, folder)):
        print(line, flush=True)
    write_seen(folder, releases.seen)
    print(
        f"{len(releases.seen)} of {len(packages)} engines audited, {releases.unexpected} unexpected verdicts"
    )
    for line in releases.lost:  # last, because a night tells the last lines of a stage
        print(line)
    return ExitCode.BROKEN if releases.lost or releases.unexpected else ExitCode.HOLDS


def main(words: Sequence[str]) -> ExitCode:
    """Judge into the first folder, beside the second; raise `UsageError` where the folders are not named."""
    if len(words) != 2:
        raise UsageError("name two folders: python -m deepstack_harness.nightly.newest FOLDER HISTORY")
    return audit_newest(Path(words[0]).resolve(), Path(words[1]).resolve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

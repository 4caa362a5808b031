"""Earlier runs: a folder that holds folders of runs, or a dataset of their Parquet files on the hub."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from deepstack_harness.contract.row import Row
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.results.files import found_in
from deepstack_harness.results.parquet import RUN
from deepstack_harness.results.read import StoredRun, read_stored
from deepstack_harness.results.records import CaseRecord, refuse_version

T = TypeVar("T")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def read_history(source: str) -> tuple[list[StoredRun], list[str]]:
    """Read the runs of a folder, or of a hub dataset `OWNER/NAME`, oldest first, and what was left out.

    Raises `UsageError` where there is no such folder or dataset, `MachineError` without a network.
    """
    folder = Path(source)
    if folder.is_dir():
        return history_in(folder)
    if _HUB_NAME.fullmatch(source):
        return sorted(of_dataset(source), key=_started), []
    raise UsageError(f"history '{source}' is neither a folder of runs nor a hub dataset OWNER/NAME")


def history_in(folder: Path) -> tuple[list[StoredRun], list[str]]:
    """Read the runs in the folders of `folder`, oldest first.

    A run that does not read is left out and noted: one damaged night must not end all later ones.
    """
    runs, notes = [], []
    for each in sorted(path for path in folder.iterdir() if any(found_in(path))):
        try:
            runs.append(read_stored(each))
        except UsageError as error:
            notes.append(f"not in the history: {error}")
    return sorted(runs, key=_started), notes


def of_dataset(name: str) -> Iterator[StoredRun]:
    """Read the runs whose `rows*.parquet` and `cases*.parquet` a dataset has, in whatever folders."""
    rows, cases = _records(name, "rows", Row), _records(name, "cases", CaseRecord)
    for started in sorted(rows):
        found, ended = rows[started], cases.get(started, [])
        yield StoredRun(f"{name} {started}", tuple(found), tuple(ended), began=started)


def _started(run: StoredRun) -> str:
    return run.started


def _records(name: str, kind: str, type_: type[T]) -> dict[str, list[T]]:
    """Return the records of each run, by its start."""
    found: dict[str, list[T]] = {}
    for record in _table(name, kind):
        where = f"history '{name}'"
        refuse_version(record.get("schema_version"), where)
        try:
            found.setdefault(record.pop(RUN), []).append(msgspec.convert(record, type_))
        except msgspec.ValidationError as error:
            raise UsageError(f"{where} does not hold what a run writes: {error}") from None
    return found


def _table(name: str, kind: str) -> list[dict[str, Any]]:
    import datasets

    try:
        found = datasets.load_dataset(name, data_files=f"**/{kind}*.parquet", split="train")
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise MachineError(f"history '{name}' cannot be read from the hub: {error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"history '{name}' is not a dataset of runs: {error}") from None
    if RUN not in found.column_names:
        raise UsageError(f"history '{name}' is not a dataset of runs: its {kind} have no column '{RUN}'")
    table: list[dict[str, Any]] = found.to_list()
    return table

"""A run as tables for other tools: Parquet files, a dataset of them on the hub, and pandas frames.

The harness itself works with typed records (`deepstack_harness.runs.store`). The libraries are those of the
extra `reports`, and are imported where they are used: processes that only write JSON lines, or play, need
none.
"""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row
from deepstack_harness.errors import MachineError, UsageError, missing_extra
from deepstack_harness.files import replacing
from deepstack_harness.runs.records import CaseRecord, refuse_version
from deepstack_harness.runs.store import RunPart, StoredRun, read_nights, read_stored

if TYPE_CHECKING:
    import pandas as pd
    from _typeshed import DataclassInstance


T = TypeVar("T")

RUN = "run"
"""The column that distinguishes runs in one dataset: the start of each."""


def has_datasets() -> bool:
    """Return whether the library is installed; importing it takes a second."""
    return importlib.util.find_spec("datasets") is not None


def write_parquet(part: RunPart) -> list[str]:
    """Write rows and cases next to their JSON lines; return the names of the files."""
    import datasets

    shown, names = datasets.is_progress_bar_enabled(), []
    datasets.disable_progress_bars()
    try:
        for name, kind, records in (("rows", Row[Rule], part.rows), ("cases", CaseRecord, part.cases)):
            path = part.files.parquet(name)
            # `asdict` has the defaults of fields that a record of an earlier harness was read without.
            lines = [{RUN: part.about.started, **msgspec.to_builtins(asdict(record))} for record in records]
            # The columns of the types, not of these lines: nights in which no case raised have the same ones.
            features = datasets.Features(
                {RUN: datasets.Value("string"), **_column(msgspec.inspect.type_info(kind))}
            )
            table = {column: [line[column] for line in lines] for column in features}
            with replacing(path) as partial:
                datasets.Dataset.from_dict(table, features=features).to_parquet(str(partial))
            names.append(path.name)
    except OSError as error:
        raise MachineError(f"cannot write '{path}': {error}; the JSON lines beside it are whole") from None
    finally:
        if shown:
            datasets.enable_progress_bars()
    return names


def _column(kind: msgspec.inspect.Type) -> Any:  # noqa: ANN401  # one of several classes of datasets
    """Return the column for values of a type, that for a dataclass as a dict; every one may be null."""
    import datasets

    match kind:
        case msgspec.inspect.UnionType(types=types):
            return _column(next(kind for kind in types if not isinstance(kind, msgspec.inspect.NoneType)))
        case msgspec.inspect.DataclassType(fields=fields):
            return {field.name: _column(field.type) for field in fields}
        case msgspec.inspect.VarTupleType(item_type=item):
            return datasets.List(_column(item))
    names = {msgspec.inspect.BoolType: "bool", msgspec.inspect.IntType: "int64"}
    names[msgspec.inspect.FloatType] = "float64"
    return datasets.Value(names.get(type(kind), "string"))


_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def read_history(source: str) -> tuple[list[StoredRun], list[str]]:
    """Read the runs of a folder, or of a hub dataset `OWNER/NAME`, oldest first, and what was left out.

    Raises `UsageError` where there is no such folder or dataset, `MachineError` without a network.
    """
    folder = Path(source)
    if folder.is_dir():
        return read_nights(folder)
    if not _HUB_NAME.fullmatch(source) or folder.exists():
        raise UsageError(f"history '{source}' is neither a folder of runs nor a hub dataset OWNER/NAME")
    from huggingface_hub import snapshot_download  # of `datasets`

    try:
        local = snapshot_download(source, repo_type="dataset", allow_patterns="*.parquet")
    except OSError as error:
        raise MachineError(f"history '{source}' cannot be read from the hub: {error}") from None
    return sorted(read_dataset(source, Path(local)), key=attrgetter("started")), []


def read_dataset(name: str, folder: Path) -> Iterator[StoredRun]:
    """Read the runs whose `rows*.parquet` and `cases*.parquet` are in any folders of a dataset."""
    rows, cases = (
        _dataset_records(name, folder, "rows", Row[Rule]),
        _dataset_records(name, folder, "cases", CaseRecord),
    )
    for started in sorted(rows):
        yield StoredRun(
            f"{name} {started}", tuple(rows[started]), tuple(cases.get(started, [])), began=started
        )


def _dataset_records(name: str, folder: Path, kind: str, type_: type[T]) -> dict[str, list[T]]:
    """Return the records of each run, by its start."""
    from pyarrow.parquet import read_table

    by_start: dict[str, list[T]] = defaultdict(list)
    where = f"history '{name}'"
    try:
        # Each file with its own columns: those of an earlier version do not have some, which have a default.
        tables = [read_table(path) for path in sorted(folder.rglob(f"{kind}*.parquet"))]
        for record in (line for table in tables for line in table.to_pylist()):
            started = record.pop(RUN)
            refuse_version(record.get("schema_version"), where)
            by_start[started].append(msgspec.convert(record, type_))
    except KeyError:
        raise UsageError(f"{where} is not a dataset of runs: its {kind} have no column '{RUN}'") from None
    except msgspec.ValidationError as error:
        raise UsageError(f"{where} does not hold what a run writes: {error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{where} is not a dataset of runs: {error}") from None
    if not by_start:
        raise UsageError(f"{where} is not a dataset of runs: it has no {kind}*.parquet")
    return by_start


@dataclass(frozen=True)
class RunFrames:
    """A run with all its shards.

    `rows` has the columns of `Row`, `cases` those of `CaseRecord` (nested ones as
    dicts and lists), `meta` one `run.json` for each shard, `notes` what a reader should know.
    """

    name: str
    rows: pd.DataFrame
    cases: pd.DataFrame
    meta: list[dict[str, Any]]
    notes: list[str]


def read_run(folder: Path | str) -> RunFrames:
    """Read the run in a folder; raises `UsageError` for a folder without a run, and for a damaged one.

    Raises `MachineError` without pandas, which the extra `reports` brings.

    >>> run = read_run("reports/none")
    Traceback (most recent call last):
    deepstack_harness.errors.UsageError: ...
    """
    run = read_stored(folder)
    return RunFrames(
        run.name,
        _frame(run.rows, Row),
        _frame(run.cases, CaseRecord),
        msgspec.to_builtins(list(run.abouts)),
        list(run.notes),
    )


def _frame(records: Sequence[object], kind: type[DataclassInstance]) -> pd.DataFrame:
    try:
        import pandas as pd  # processes that only write, or play, need none
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    names = [field.name for field in fields(kind)]
    plain = msgspec.json.decode(msgspec.json.encode(list(records)))  # tuples become lists, as in the files
    return pd.DataFrame(plain, columns=names)

"""A run as tables for other tools: Parquet files, a dataset of them on the hub, and pandas frames.

The harness itself works with typed records (`deepstack_harness.runs.store`).  The libraries are those of the
extra `reports`, and are imported where they are used: processes that only write JSON lines, or play, need
none.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from deepstack_harness.contract.verdicts import Row
from deepstack_harness.errors import MachineError, UsageError, missing_extra
from deepstack_harness.files import replacing
from deepstack_harness.runs.records import CaseRecord, refuse_version
from deepstack_harness.runs.store import RunPart, StoredRun, read_nights, read_stored

if TYPE_CHECKING:
    import datasets
    import pandas as pd
    from _typeshed import DataclassInstance


T = TypeVar("T")

RUN = "run"
"""The column that tells runs apart in one dataset: the start of each."""


def has_datasets() -> bool:
    """Say whether the library is installed; importing it takes a second."""
    return importlib.util.find_spec("datasets") is not None


def write_parquet(part: RunPart) -> list[str]:
    """Write rows and cases beside their JSON lines; return the names of the files."""
    kinds = (("rows", Row, part.rows), ("cases", CaseRecord, part.cases))
    with _without_progress_bars():
        return [_write_table(part, name, kind, records) for name, kind, records in kinds]


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Switch the library's progress bars off, and afterwards to what they were."""
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _write_table(part: RunPart, name: str, kind: type, records: Sequence[object]) -> str:
    import datasets

    path = part.files.parquet(name)
    objects = [{RUN: part.about.started, **msgspec.to_builtins(record)} for record in records]
    features = _features(kind)
    # A record that an earlier harness wrote, and this one read to go on, lacks the fields that it had not.
    columns = {name: [each.get(name) for each in objects] for name in features}
    try:
        with replacing(path) as partial:
            datasets.Dataset.from_dict(columns, features=features).to_parquet(str(partial))
    except OSError as error:
        raise MachineError(f"cannot write '{path}': {error}; the JSON lines beside it are whole") from None
    return path.name


def _features(kind: type) -> datasets.Features:
    """Return the columns of a table of records, the start of their run first."""
    import datasets

    return datasets.Features({RUN: datasets.Value("string"), **_columns(kind)})


def _columns(kind: type) -> dict[str, Any]:
    """Return the columns of a dataclass; every one may be null."""
    described = msgspec.inspect.type_info(kind)
    return {each.name: _feature(each.type) for each in described.fields}  # type: ignore[attr-defined]


def _feature(kind: msgspec.inspect.Type) -> Any:  # noqa: ANN401  # one of several classes of datasets
    import datasets

    match kind:
        case msgspec.inspect.UnionType(types=types):
            return _feature(next(each for each in types if not isinstance(each, msgspec.inspect.NoneType)))
        case msgspec.inspect.DataclassType(cls=cls):
            return _columns(cls)
        case msgspec.inspect.VarTupleType(item_type=item):
            return datasets.List(_feature(item))
        case msgspec.inspect.BoolType():
            return datasets.Value("bool")
        case msgspec.inspect.IntType():
            return datasets.Value("int64")
        case msgspec.inspect.FloatType():
            return datasets.Value("float64")
        case _:
            return datasets.Value("string")


_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def read_history(source: str) -> tuple[list[StoredRun], list[str]]:
    """Read the runs of a folder, or of a hub dataset `OWNER/NAME`, oldest first, and what was left out.

    Raises `UsageError` where there is no such folder or dataset, `MachineError` without a network.
    """
    folder = Path(source)
    if folder.is_dir():
        return read_nights(folder)
    if _HUB_NAME.fullmatch(source) and not folder.exists():
        return sorted(read_dataset(source), key=attrgetter("started")), []
    raise UsageError(f"history '{source}' is neither a folder of runs nor a hub dataset OWNER/NAME")


def read_dataset(name: str) -> Iterator[StoredRun]:
    """Read the runs whose `rows*.parquet` and `cases*.parquet` a dataset has, in whatever folders."""
    rows, cases = _dataset_records(name, "rows", Row), _dataset_records(name, "cases", CaseRecord)
    for started in sorted(rows):
        of_run, ended = rows[started], cases.get(started, [])
        yield StoredRun(f"{name} {started}", tuple(of_run), tuple(ended), began=started)


def _dataset_records(name: str, kind: str, type_: type[T]) -> dict[str, list[T]]:
    """Return the records of each run, by its start."""
    by_start: dict[str, list[T]] = {}
    described, where = msgspec.inspect.type_info(type_), f"history '{name}'"
    for line in _load_table(name, kind, type_):
        record = _without_new_columns(line, described)
        refuse_version(record.get("schema_version"), where)
        try:
            by_start.setdefault(record.pop(RUN), []).append(msgspec.convert(record, type_))
        except msgspec.ValidationError as error:
            raise UsageError(f"{where} does not hold what a run writes: {error}") from None
    return by_start


def _without_new_columns(value: Any, kind: msgspec.inspect.Type) -> Any:  # noqa: ANN401  # JSON
    """Leave out columns that an earlier version did not have, nested ones too: they are null in its files."""
    if isinstance(kind, msgspec.inspect.UnionType):
        kind = next(each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType))
    match kind, value:
        case msgspec.inspect.DataclassType(fields=fields), dict():
            by_name = {field.name: field for field in fields}
            return {
                key: _without_new_columns(item, by_name[key].type) if key in by_name else item
                for key, item in value.items()
                if item is not None or key not in by_name or by_name[key].required
            }
        case msgspec.inspect.VarTupleType(item_type=item_type), list():
            return [_without_new_columns(item, item_type) for item in value]
    return value


def _load_table(name: str, kind: str, type_: type) -> list[dict[str, Any]]:
    import datasets

    try:
        loaded = datasets.load_dataset(
            name, data_files=f"**/{kind}*.parquet", split="train", features=_features(type_)
        )
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise MachineError(f"history '{name}' cannot be read from the hub: {error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"history '{name}' is not a dataset of runs: {error}") from None
    table: list[dict[str, Any]] = loaded.to_list()
    if any(line[RUN] is None for line in table):
        raise UsageError(f"history '{name}' is not a dataset of runs: its {kind} have no column '{RUN}'")
    return table


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
    names = [each.name for each in fields(kind)]
    plain = msgspec.json.decode(msgspec.json.encode(list(records)))  # tuples become lists, as in the files
    return pd.DataFrame(plain, columns=names)

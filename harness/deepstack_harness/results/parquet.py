"""A run as Parquet, through `datasets`: for pandas, DuckDB, or a dataset on the hub."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from deepstack_harness.atomic import replacing
from deepstack_harness.contract.row import Row
from deepstack_harness.errors import MachineError
from deepstack_harness.results.records import CaseRecord

if TYPE_CHECKING:
    from deepstack_harness.results.read import RunPart

RUN = "run"
"""The column that tells runs apart in one dataset: the start of each."""


def has_datasets() -> bool:
    """Say whether the library is installed; importing it takes a second."""
    return importlib.util.find_spec("datasets") is not None


def write_parquet(part: RunPart) -> list[str]:
    """Write rows and cases beside their JSON lines; return the names of the files."""
    kinds = (("rows", Row, part.rows), ("cases", CaseRecord, part.cases))
    with _no_bars():
        return [_write(part, name, kind, records) for name, kind, records in kinds]


@contextmanager
def _no_bars() -> Iterator[None]:
    """Switch the library's progress bars off, and afterwards to what they were."""
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _write(part: RunPart, name: str, kind: type, records: Sequence[object]) -> str:
    import datasets

    path = part.files.parquet(name)
    objects = [{RUN: part.about.started, **msgspec.to_builtins(record)} for record in records]
    features = datasets.Features({RUN: datasets.Value("string"), **_struct(kind)})
    columns = {name: [each[name] for each in objects] for name in features}
    try:
        with replacing(path) as partial:
            datasets.Dataset.from_dict(columns, features=features).to_parquet(str(partial))
    except OSError as error:
        raise MachineError(f"cannot write '{path}': {error}; the JSON lines beside it are whole") from None
    return path.name


def _struct(kind: type) -> dict[str, Any]:
    """Return the columns of a dataclass; every one may be null."""
    found = msgspec.inspect.type_info(kind)
    return {each.name: _feature(each.type) for each in found.fields}  # type: ignore[attr-defined]


def _feature(kind: msgspec.inspect.Type) -> Any:  # noqa: ANN401  # one of several classes of datasets
    import datasets

    match kind:
        case msgspec.inspect.UnionType(types=types):
            return _feature(next(each for each in types if not isinstance(each, msgspec.inspect.NoneType)))
        case msgspec.inspect.DataclassType(cls=cls):
            return _struct(cls)
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

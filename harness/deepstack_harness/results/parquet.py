"""A run as Parquet, through `datasets`: for pandas, DuckDB, or a dataset on the hub."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from deepstack_harness.errors import MachineError
from deepstack_harness.results.records import CaseRecord, RunRow

if TYPE_CHECKING:
    from deepstack_harness.results.read import Part

RUN = "run"
"""The column that tells runs apart in one dataset: when this one was started."""


def has_datasets() -> bool:
    """Whether the library is installed; importing it takes a second."""
    return importlib.util.find_spec("datasets") is not None


def write_parquet(part: Part) -> list[str]:
    """Write rows and cases beside their JSON lines; answers the names of the files."""
    kinds = (("rows", RunRow, part.rows), ("cases", CaseRecord, part.cases))
    with _no_bars():
        return [_write(part, name, kind, records) for name, kind, records in kinds]


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without the library's progress bars; they are as before afterwards."""
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _write(part: Part, name: str, kind: type, records: Sequence[object]) -> str:
    import datasets

    path = part.files.parquet(name)
    objects = [{RUN: part.about.started, **msgspec.to_builtins(record)} for record in records]
    features = datasets.Features({RUN: datasets.Value("string"), **_struct(kind)})
    partial = path.with_name(path.name + ".partial")
    columns = {name: [one[name] for one in objects] for name in features}
    try:
        datasets.Dataset.from_dict(columns, features=features).to_parquet(str(partial))
        partial.replace(path)
    except OSError as error:
        raise MachineError(f"cannot write '{path}': {error}; the JSON lines beside it are whole") from None
    return path.name


def _struct(kind: type) -> dict[str, Any]:
    """The columns of a dataclass; every one may be null."""
    found = msgspec.inspect.type_info(kind)
    return {one.name: _feature(one.type) for one in found.fields}  # type: ignore[attr-defined]


def _feature(kind: msgspec.inspect.Type) -> Any:  # noqa: ANN401  # one of several classes of datasets
    import datasets

    match kind:
        case msgspec.inspect.UnionType(types=types):
            return _feature(next(one for one in types if not isinstance(one, msgspec.inspect.NoneType)))
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

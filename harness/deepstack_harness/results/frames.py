"""A run as pandas frames, for people who work with them; the harness itself reads typed records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from deepstack_harness.contract.row import Row
from deepstack_harness.errors import missing_extra
from deepstack_harness.results.read import read_stored
from deepstack_harness.results.records import CaseRecord

if TYPE_CHECKING:
    import pandas as pd
    from _typeshed import DataclassInstance


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

"""Earlier runs: a folder that holds folders of runs, or a dataset of their Parquet files on the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.results.files import found_in
from deepstack_harness.results.parquet import RUN
from deepstack_harness.results.read import Run, read_run

if TYPE_CHECKING:
    import pandas as pd

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def read_history(source: str) -> tuple[list[Run], list[str]]:
    """The runs of a folder, or of a hub dataset `OWNER/NAME`, oldest first, and what was left out of them.

    Raises `UsageError` where there is no such folder or dataset, `MachineError` without a network.
    """
    folder = Path(source)
    if folder.is_dir():
        runs, notes = _of_folder(folder)
    elif _HUB_NAME.fullmatch(source):
        runs, notes = list(of_dataset(source)), []
    else:
        raise UsageError(f"history '{source}' is neither a folder of runs nor a hub dataset OWNER/NAME")
    return sorted(runs, key=lambda run: run.started), notes


def _of_folder(folder: Path) -> tuple[list[Run], list[str]]:
    """A run that does not read is left out, and named: one damaged night must not end all later ones."""
    runs, notes = [], []
    for each in sorted(path for path in folder.iterdir() if any(found_in(path))):
        try:
            runs.append(read_run(each))
        except UsageError as error:
            notes.append(f"not in the history: {error}")
    return runs, notes


def of_dataset(name: str) -> Iterator[Run]:
    """The runs whose `rows*.parquet` and `cases*.parquet` a dataset has, in whatever folders."""
    rows, cases = (_frame(name, kind) for kind in ("rows", "cases"))
    for started in sorted(set(rows[RUN])):
        parts: Sequence[pd.DataFrame] = [one[one[RUN] == started].drop(columns=RUN) for one in (rows, cases)]
        ours, theirs = (part.reset_index(drop=True) for part in parts)
        yield Run(f"{name} {started}", ours, theirs, [{"started": started}], [])


def _frame(name: str, kind: str) -> pd.DataFrame:
    import datasets

    try:
        found = datasets.load_dataset(name, data_files=f"**/{kind}*.parquet", split="train")
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise MachineError(f"history '{name}' cannot be read from the hub: {error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"history '{name}' is no dataset of runs: {error}") from None
    frame = found.to_pandas()
    if RUN not in frame:
        raise UsageError(f"history '{name}' is no dataset of runs: its {kind} have no column '{RUN}'")
    return frame.astype(object).where(frame.notna(), None)

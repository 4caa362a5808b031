"""The names of a run's files in its folder, and of a shard's among those of the others."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deepstack_harness.errors import UsageError

_ABOUT = re.compile(r"run(?:-(\d+)of(\d+))?\.json")


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        """The text that `parse` reads back."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `1/3`; raises `UsageError` for anything else."""
        found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        if not found or int(found[1]) > int(found[2]):
            raise UsageError(f"--shard takes I/N with I from 1 to N, as in 1/3, not '{text}'")
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Files:
    """Of one run, or of one shard of it."""

    folder: Path
    shard: Shard | None = None

    @property
    def about(self) -> Path:
        """`run.json`."""
        return self._named("run", "json")

    @property
    def rows(self) -> Path:
        """`rows.jsonl`."""
        return self._named("rows", "jsonl")

    @property
    def cases(self) -> Path:
        """`cases.jsonl`."""
        return self._named("cases", "jsonl")

    def parquet(self, kind: str) -> Path:
        """`rows.parquet` and `cases.parquet`, at the end of a run."""
        return self._named(kind, "parquet")

    def _named(self, stem: str, suffix: str) -> Path:
        part = f"-{self.shard.index}of{self.shard.count}" if self.shard else ""
        return self.folder / f"{stem}{part}.{suffix}"


def found_in(folder: Path) -> Iterator[Files]:
    """Every run or shard that a folder holds, by its `run.json`; nothing for a folder that is not there."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if found := _ABOUT.fullmatch(path.name):
            yield Files(folder, Shard(int(found[1]), int(found[2])) if found[1] else None)

"""File names of a run in its folder, and of its shards, which share the folder."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deepstack_harness.clean_text import shortened
from deepstack_harness.errors import UsageError

_ABOUT = re.compile(r"run(?:-(\d+)of(\d+))?\.json")


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse `1/3`; raises `UsageError` for anything else."""
        found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if not found or int(found[1]) > int(found[2]):
            raise UsageError(
                "--shard takes I/N with I from 1 to N and N up to 999999, as in 1/3, "
                f"not '{shortened(text, 200)}'"
            )
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Files:
    """Paths of the files of one run, or of one shard of it."""

    folder: Path
    shard: Shard | None = None

    @property
    def about(self) -> Path:
        """Return the path of `run.json`."""
        return self._named("run", "json")

    @property
    def rows(self) -> Path:
        """Return the path of `rows.jsonl`."""
        return self._named("rows", "jsonl")

    @property
    def cases(self) -> Path:
        """Return the path of `cases.jsonl`."""
        return self._named("cases", "jsonl")

    def parquet(self, kind: str) -> Path:
        """Return the path of `rows.parquet` or `cases.parquet`, which are written at the end of a run."""
        return self._named(kind, "parquet")

    def _named(self, stem: str, suffix: str) -> Path:
        part = f"-{self.shard.index}of{self.shard.count}" if self.shard else ""
        return self.folder / f"{stem}{part}.{suffix}"


def found_in(folder: Path) -> Iterator[Files]:
    """Iterate over the runs or shards in a folder, by their `run.json`; none where there is no folder."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if found := _ABOUT.fullmatch(path.name):
            yield Files(folder, Shard(int(found[1]), int(found[2])) if found[1] else None)

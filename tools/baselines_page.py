"""Write docs/reference/baselines.md: how kernels moved from torch to torch, and why.

    python -m tools.baselines_page

The figures are those of `fixtures/baselines/`, the reasons those of `explained.toml` beside them.  A move
without a reason, and a reason without a move, are errors: a test compares the page with both.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from cases.baselines import BaselineRow, Baselines, load, path_of
from deepstack_harness.errors import UsageError
from deepstack_harness.files import data, load_file, write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "baselines.md"
TARGETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cpu": ("Inductor's C++ code for a CPU, one thread", ("graphs", "kernels", "points", "bytes")),
    "h200": ("Triton code for an H200, generated and not run", ("graphs", "kernels", "points", "bytes")),
    "h200-executed": (
        "the same, interpreted: what each launch touched",
        ("launches", "touched_rows", "touched_bytes", "outside_bytes"),
    ),
}
"""Target -> its heading, and the facts that its table shows."""


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why facts of some families moved with a torch, for some targets."""

    torch: str
    targets: tuple[str, ...]
    families: tuple[str, ...]
    facts: tuple[str, ...]
    reason: str


class Reasons(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of `explained.toml`."""

    schema_version: int
    reason: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Move:
    """A fact of a subject that is another one from `torch` on."""

    target: str
    torch: str
    row: BaselineRow
    fact: str
    before: object
    after: object

    def is_explained_by(self, reason: Reason) -> bool:
        """Say whether a reason is about this move."""
        return (
            self.torch == reason.torch
            and self.target in reason.targets
            and self.row.subject["family"] in reason.families
            and self.fact in reason.facts
        )


def moves(target: str, known: Baselines) -> Iterator[Move]:
    """Yield what moved between one torch and the next; columns of real GPUs are left out."""
    for row in known.rows:
        for fact, values in row.facts.items():
            for (_, before), (torch, after) in pairwise(_of_torches(values)):
                if before != after:
                    yield Move(target, torch, row, fact, before, after)


def _of_torches(values: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(column, value) for column, value in values.items() if " on " not in column]


def page(files: Mapping[str, Baselines], reasons: Iterable[Reason]) -> str:
    """Return the text of the page; raise `UsageError` for a move without a reason, or one without a move."""
    reasons = tuple(reasons)
    moved = [move for target, known in files.items() for move in moves(target, known)]
    for move in moved:
        if not any(map(move.is_explained_by, reasons)):
            raise UsageError(
                f"{move.target}, torch {move.torch}: {move.fact} {move.before} -> {move.after} of "
                f"{_subject(move.row)} has no reason in fixtures/baselines/explained.toml"
            )
    for reason in reasons:
        if not any(move.is_explained_by(reason) for move in moved):
            raise UsageError(f"fixtures/baselines/explained.toml: nothing moved as in {reason}")
    parts = [_HEAD, *_columns(files), *_reasons(reasons, moved)]
    parts += [part for target, known in files.items() for part in _table(target, known)]
    return "\n".join([*parts, _FOOT])


_HEAD = """\
# Kernels from torch to torch

<!-- Written by `python -m tools.baselines_page`. -->

What Inductor generates for a decode step of 77 tokens, with a buffer of 8,192 rows, was measured on
each torch below and is kept in `fixtures/baselines/`: a file for each target, a line for each fact, a
column for each torch. Where a cell has an arrow, the fact is another one from that torch on. What has
none is the same on every torch that has a column. A real GPU has one of its own, and is named in a cell
where it did something else than was predicted.
"""
_FOOT = """\
## Write a column

A case compares with the column of the torch that runs it, and fails when anything differs, an
improvement included. A torch without a column is compared with nothing: the case is skipped with `not
compared: no baseline for torch X` and the command that writes it. All columns of a torch are written by

<!-- not run: needs a checkout and time -->
```console
$ python -m pytest -m '' -k baseline cases/test_kernels.py cases/test_h200.py \\
    --deepstack-update-baselines=all
$ python -m tools.baselines_page
```

The second command writes this page anew. It refuses a fact that moved until
`fixtures/baselines/explained.toml` says why. On a machine with an H200 the case that is marked `gpu`
adds the column of the real GPU beside the prediction.
"""


def _columns(files: Mapping[str, Baselines]) -> Iterator[str]:
    generated = files["h200"].columns  # they name triton too
    yield f"Measured with {'; '.join(generated.values())}.\n"


def _reasons(reasons: Iterable[Reason], moved: Iterable[Move]) -> Iterator[str]:
    yield "## What moved, and why\n"
    moved = tuple(moved)
    for reason in reasons:
        ratios = [_ratio(move) for move in moved if move.is_explained_by(reason)]
        of = f"{', '.join(reason.facts)} of {', '.join(reason.families)} ({', '.join(reason.targets)})"
        yield f"- **torch {reason.torch}**: {of}, {_between(list(filter(None, ratios)))}. {reason.reason}"
    yield ""


def _ratio(move: Move) -> float | None:
    if isinstance(move.before, int) and isinstance(move.after, int) and move.before:
        return 100 * (move.after / move.before - 1)
    return None


def _between(changes: list[float]) -> str:
    least, most = (f"{change:+.1f} %" for change in (min(changes), max(changes)))
    return least if least == most else f"{least} to {most}"


def _table(target: str, known: Baselines) -> Iterator[str]:
    title, facts = TARGETS[target]
    yield f"## `{target}`: {title}\n"
    yield f"Columns: torch {', '.join(known.columns)}.\n"
    yield f"| subject | {' | '.join(fact.replace('_', ' ') for fact in facts)} |"
    yield f"|---|{'---:|' * len(facts)}"
    for row in known.rows:
        yield f"| {_subject(row)} | {' | '.join(_cell(row.facts.get(fact, {})) for fact in facts)} |"
    yield ""


def _subject(row: BaselineRow) -> str:
    subject = row.subject
    static = ", static sizes" if str(subject["arm"]).endswith("/static") else ""
    traced = f", traced with {subject['profile_tokens']:,}" if not static else ""
    return f"`{subject['family']}`, `{subject['revision']}`{static}{traced}"


def _cell(values: Mapping[str, object]) -> str:
    """Return the first value, and each later one behind an arrow with its torch.

    A real GPU's value stands behind them where it is not the one that was predicted on the same torch.
    """
    parts: list[str] = []
    last: object = None
    for torch, value in _of_torches(values):
        if not parts:
            parts.append(_number(value))
        elif value != last:
            parts.append(f"→ **{_number(value)}** ({torch})")
        last = value
    real = {column: value for column, value in values.items() if " on " in column}
    parts += [
        f"but **{_number(value)}** ({column})"
        for column, value in real.items()
        if value != values.get(column.partition(" ")[0])
    ]
    return " ".join(parts)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def written() -> str:
    """Return the page of the files that are here."""
    path = data("fixtures/baselines") / "explained.toml"
    reasons = load_file(path, Reasons, "a file of reasons", 1).reason
    return page({target: load(path_of(target, "")) for target in TARGETS}, reasons)


if __name__ == "__main__":
    write_atomically(PAGE, written().encode())

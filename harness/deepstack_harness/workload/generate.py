"""Make a workload that looks like Geometry3K: `python -m deepstack_harness.workload.generate OUT`.

The data set itself is not redistributed here.  The rows have the same columns, with sizes, texts and
answers of the same kind, drawn from a fixed seed.

Image sizes are an assumption, modelled on the label boxes of figures in the published annotations
(Inter-GPS, `geometry_labels_val.csv`, the first 48 figures, with 20 pixels of margin).  The geometric mean
of the sides has a median of 350 pixels and a spread (standard deviation of the logarithm) of 0.36.  Width
to height has a median of 1.39 and a spread of 0.30.  Both are drawn log-normal and independently, and
sides are kept in 80 .. 1100 pixels.  Images are blank, because only their headers are read.

Problems are short, as in the data set: about ten words, many of them just `Find x.`.  Answers are numbers,
fractions and roots.
"""

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 600
SEED = 43602
SIDE_MEDIAN, SIDE_SPREAD = 350.0, 0.36
ASPECT_MEDIAN, ASPECT_SPREAD = 1.39, 0.30
SIDES = (80, 1100)

_PROBLEMS = (
    "Find {x}.",
    "Find {x}.",
    "Find {x}. Round to the nearest tenth.",
    "Find m \\angle {n}.",
    "Find the area of the figure. Round to the nearest tenth if necessary.",
    "Find the perimeter of the triangle if {A}{B} = {a} and {B}{C} = {b}.",
    "In \\odot {A}, {B}{C} = {a} and m \\widehat {B}{C} = {b}. Find {A}{D}.",
    "Quadrilateral {A}{B}{C}{D} is a parallelogram. Find {x} and the measure of \\angle {B}{C}{D}.",
    (
        "The trapezoid {A}{B}{C}{D} has bases of {a} and {b} inches, and its legs are congruent. "
        "What is the length of the median, and how much longer is it than the shorter base?"
    ),
)
_ANSWERS = ("{a}", "{a}", "{a}.{d}", "\\frac{{{a}}}{{{b}}}", "{a} \\sqrt {{ {d} }}", "{a} \\sqrt {{ 3 }}")
_FEATURES = {
    "images": {"feature": {"_type": "Image"}, "_type": "List"},
    "problem": {"dtype": "string", "_type": "Value"},
    "answer": {"dtype": "string", "_type": "Value"},
    "id": {"dtype": "string", "_type": "Value"},
    "choices": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"},
    "ground_truth": {"dtype": "string", "_type": "Value"},
}


@dataclass(frozen=True)
class DrawnRow:
    """Row of the workload before its image is made: sides in pixels, texts, and the place of the answer."""

    height: int
    width: int
    problem: str
    choices: tuple[str, ...]
    truth: int

    @property
    def answer(self) -> str:
        """The right one of the choices."""
        return self.choices[self.truth]


def drawn(rows: int = ROWS, seed: int = SEED) -> list[DrawnRow]:
    """Draw the rows of a workload; equal seeds give equal rows."""
    # Only `Random.random` is used: Python promises to keep its sequence, and no other.
    draw = random.Random(seed)
    return [_row(draw) for _ in range(rows)]


def generate(rows: int = ROWS, seed: int = SEED) -> list[dict[str, Any]]:
    """Draw the rows of a workload with the columns and blank images of Geometry3K."""
    return [_columns(index, row) for index, row in enumerate(drawn(rows, seed))]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as Parquet, with the metadata from which `datasets` knows which column has images."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pylist(list(rows), schema=_schema())
    parquet.write_table(table, path, compression="zstd")


def _schema() -> "pa.Schema":
    import pyarrow as pa

    text, image = pa.string(), pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {"images": pa.list_(image), "choices": pa.list_(text)}
    note = json.dumps({"info": {"features": _FEATURES}})
    return pa.schema([(name, columns.get(name, text)) for name in _FEATURES], metadata={"huggingface": note})


def _row(draw: random.Random) -> DrawnRow:
    height, width = _size(draw)
    problem = _fill(_PROBLEMS, draw)
    choices = tuple(_fill(_ANSWERS, draw) for _ in range(4))
    return DrawnRow(height, width, f"<image>{problem}", choices, truth=int(draw.random() * 4))


def _columns(index: int, row: DrawnRow) -> dict[str, Any]:
    return {
        "images": [{"bytes": _blank(row.height, row.width), "path": f"{index}.png"}],
        "problem": row.problem,
        "answer": row.answer,
        "id": str(index),
        "choices": list(row.choices),
        "ground_truth": "ABCD"[row.truth],
    }


def _size(draw: random.Random) -> tuple[int, int]:
    """Draw a height and a width in pixels."""
    side = _log_normal(draw, SIDE_MEDIAN, SIDE_SPREAD)
    stretch = math.sqrt(_log_normal(draw, ASPECT_MEDIAN, ASPECT_SPREAD))
    low, high = SIDES
    height, width = (min(max(round(length), low), high) for length in (side / stretch, side * stretch))
    return height, width


def _log_normal(draw: random.Random, median: float, spread: float) -> float:
    # Not from 0 to 1: at both ends the inverse of the distribution is infinite.
    share = 0.001 + 0.998 * draw.random()
    return median * math.exp(spread * NormalDist().inv_cdf(share))


def _fill(templates: Sequence[str], draw: random.Random) -> str:
    numbers = {name: 2 + int(draw.random() * 120) for name in "ab"}
    corner = int(draw.random() * 20)
    corners = {name: chr(ord("A") + corner + place) for place, name in enumerate("ABCD")}
    unknown = "xyz"[int(draw.random() * 3)]
    template = templates[int(draw.random() * len(templates))]
    return template.format(**numbers, **corners, x=unknown, n=1 + corner % 9, d=2 + corner % 8)


def _blank(height: int, width: int) -> bytes:
    """Return a white PNG of one bit per pixel, which takes a few hundred bytes."""
    from PIL import Image

    file = BytesIO()
    Image.new("1", (width, height), 1).save(file, "PNG", optimize=True)
    return file.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the workload to the path given, as Parquet; needs the extra `workload`."""
    parser = argparse.ArgumentParser(
        prog="python -m deepstack_harness.workload.generate",
        description="Make a workload that looks like Geometry3K.",
    )
    parser.add_argument("out", type=Path, help="the Parquet file to write")
    out: Path = parser.parse_args(arguments).out
    try:
        write(out, generate())
    except OSError as error:
        parser.error(f"cannot write '{out}': {error}")


if __name__ == "__main__":
    main()

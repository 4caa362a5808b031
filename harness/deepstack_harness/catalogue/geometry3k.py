r"""Geometry3K as requests: image sizes, and lengths of problem and answer; no model is needed.

Rows have the columns of `hiyouga/geometry3k`: `images` (a list of {bytes, path}), `problem`, `answer`, and
others that are not read.  Images are not decoded, because the header has their size.  (A rotation in EXIF
data would be missed; figures have none.)

Tokens are estimated, so that no tokenizer has to be downloaded: a digit or a sign is one token, as in
Qwen's vocabulary, and a word has one for every six letters, rounded up.  `<image>` in a problem stands for
the visual tokens and counts as none.  A prompt has 8 more tokens for the chat template (`<|im_start|>user\n`
.. `<|im_end|>\n<|im_start|>assistant\n`), and 2 for the marks around each image.

`python -m deepstack_harness.catalogue.geometry3k OUT` makes a workload that looks like Geometry3K, which is
not redistributed here: rows with the same columns, and sizes, texts and answers of the same kind, drawn
from a fixed seed.  Images are blank, because only their headers are read.  Their sizes are an assumption,
modelled on the label boxes of figures in the published annotations (Inter-GPS, `geometry_labels_val.csv`,
the first 48 figures, with 20 pixels of margin).  The geometric mean of the sides has a median of 350 pixels
and a spread (standard deviation of the logarithm) of 0.36, width to height a median of 1.39 and a spread of
0.30.  Both are drawn log-normal and independently, and sides are kept in 80 .. 1100 pixels.  Problems are
short, as in the data set: about ten words, many of them just `Find x.`; answers are numbers, fractions and
roots.
"""

import argparse
import json
import math
import random
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import msgspec

from deepstack_harness.catalogue.workload import Request
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.text import first_line_of

if TYPE_CHECKING:
    import pyarrow as pa


SPLIT = "test"
"""The split of a hub data set if the name states none; evaluations use it.  Geometry3K's has 601 rows."""

TEMPLATE_TOKENS = 8
MARKS_PER_IMAGE = 2
LETTERS_PER_TOKEN = 6

_PIECE = re.compile(r"(?P<word>[^\W\d_]+)|\S")
_HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<split>[\w.-]+))?")
_HUB_TIMEOUT_S = 5  # one small question, so that a machine without a network fails at once


class StoredImage(msgspec.Struct):
    """Image as `datasets` stores it: the bytes of a file."""

    bytes: bytes


class GeometryRow(msgspec.Struct):
    """Row of the data set, with the columns that are read."""

    images: list[StoredImage]
    problem: str
    answer: str


def load_workload(where: str | None = None) -> list[Request]:
    """Load the requests of a workload, one per row, with the ids `row0`, `row1` and so on.

    `where` is the path of a Parquet file, or the name of a data set on the hub, such as
    `hiyouga/geometry3k` or `hiyouga/geometry3k@train`; both need the extra `workload`.  None stands for the
    workload of `generate`, which is drawn anew.  Raises `UsageError` for a file or rows that are not a
    workload, and `MachineError` for a hub that cannot be reached, without retries.
    """
    if where is None:
        return [
            _request(index, ((row.height, row.width),), row.problem, row.answer)
            for index, row in enumerate(drawn())
        ]
    requests = [
        _request(index, tuple(_sizes(index, row.images, where)), row.problem, row.answer)
        for index, row in enumerate(_rows(_load_table(where), where))
    ]
    if not any(request.images for request in requests):
        raise UsageError(f"'{where}' has no images in its {len(requests)} rows: no payload would be set")
    return requests


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text by the rule above; `<image>` counts as none."""
    pieces = _PIECE.finditer(text.replace("<image>", " "))
    return sum(-(-len(piece["word"] or ".") // LETTERS_PER_TOKEN) for piece in pieces)


def _load_table(where: str) -> "pa.Table":
    path = Path(where)
    if path.is_file():
        return _read_parquet(path)
    named = _HUB_NAME.fullmatch(where)
    if named is None or path.exists() or path.suffix == ".parquet":
        raise UsageError(
            f"workload '{where}' is not a file: give a Parquet file, or a name such as 'hiyouga/geometry3k'"
        )
    _ask_hub(named["name"])
    return _fetch_from_hub(named["name"], named["split"] or SPLIT)


def _read_parquet(path: Path) -> "pa.Table":
    # Not `datasets`: it leaves locks and copies in the user's cache, and prints a line of its own when
    # the file is not Parquet.
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            return file.read(columns=[name for name in GeometryRow.__struct_fields__ if name in columns])
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"'{path}' is not a Parquet file that can be read: {first_line_of(error)}") from None


def _ask_hub(name: str) -> None:
    """Raise at once where `datasets` would retry for 20 seconds."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        HfApi().dataset_info(name, timeout=_HUB_TIMEOUT_S)
    except OfflineModeIsEnabled:
        return  # offline mode was asked for, and `datasets` reads its cache
    except (HFValidationError, RepositoryNotFoundError):
        raise UsageError(f"the hub has no data set '{name}' that you may read") from None
    except Exception as error:  # noqa: BLE001  # what a failed connection raises depends on the hub's client
        raise _unreachable(name, error) from None


def _fetch_from_hub(name: str, split: str) -> "pa.Table":
    """Load a split of a data set on the hub, or of a folder."""
    import datasets

    try:
        return datasets.load_dataset(name, split=split).with_format("arrow")[:]
    except OSError as error:
        raise _unreachable(name, error) from None
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"split '{split}' of '{name}' cannot be read: {first_line_of(error)}") from None


def _unreachable(name: str, error: Exception) -> MachineError:
    return MachineError(
        f"data set '{name}' cannot be fetched ({first_line_of(error)}): give a local Parquet file, "
        "or nothing for the workload that comes with the harness"
    )


def _rows(table: "pa.Table", where: str) -> list[GeometryRow]:
    fields = GeometryRow.__struct_fields__
    missing = [name for name in fields if name not in table.column_names]
    if missing:
        raise UsageError(
            f"'{where}' lacks the columns {', '.join(missing)}: a workload has {', '.join(fields)}, "
            "as hiyouga/geometry3k"
        )
    try:
        return msgspec.convert(table.select(list(fields)).to_pylist(), list[GeometryRow])
    except msgspec.ValidationError as error:
        raise UsageError(f"'{where}' is not a workload: {error}, where $[0] is the first row") from None


def _request(index: int, sizes: tuple[tuple[int, int], ...], problem: str, answer: str) -> Request:
    text = TEMPLATE_TOKENS + MARKS_PER_IMAGE * len(sizes) + estimated_tokens(problem)
    return Request(f"row{index}", sizes, text, estimated_tokens(answer))


def _sizes(index: int, images: Iterable[StoredImage], where: str) -> Iterable[tuple[int, int]]:
    for number, image in enumerate(images):
        try:
            yield _stored_size(image.bytes)
        except ValueError as error:
            raise UsageError(f"'{where}', row {index}, image {number}: {error}") from None


def _stored_size(content: bytes) -> tuple[int, int]:
    """Read height and width in pixels from the header; raises `ValueError` for bytes without one."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # nothing is decompressed
        try:
            with Image.open(BytesIO(content)) as image:
                return image.height, image.width
        except (OSError, Image.DecompressionBombError):
            raise ValueError(
                f"{len(content)} bytes that are no image with sides of 1 pixel or more"
            ) from None


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
    return [_drawn_row(draw) for _ in range(rows)]


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


def _drawn_row(draw: random.Random) -> DrawnRow:
    height, width = _drawn_size(draw)
    problem = _fill_template(_PROBLEMS, draw)
    choices = tuple(_fill_template(_ANSWERS, draw) for _ in range(4))
    return DrawnRow(height, width, f"<image>{problem}", choices, truth=int(draw.random() * 4))


def _columns(index: int, row: DrawnRow) -> dict[str, Any]:
    return {
        "images": [{"bytes": _blank_png(row.height, row.width), "path": f"{index}.png"}],
        "problem": row.problem,
        "answer": row.answer,
        "id": str(index),
        "choices": list(row.choices),
        "ground_truth": "ABCD"[row.truth],
    }


def _drawn_size(draw: random.Random) -> tuple[int, int]:
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


def _fill_template(templates: Sequence[str], draw: random.Random) -> str:
    numbers = {name: 2 + int(draw.random() * 120) for name in "ab"}
    corner = int(draw.random() * 20)
    corners = {name: chr(ord("A") + corner + place) for place, name in enumerate("ABCD")}
    unknown = "xyz"[int(draw.random() * 3)]
    template = templates[int(draw.random() * len(templates))]
    return template.format(**numbers, **corners, x=unknown, n=1 + corner % 9, d=2 + corner % 8)


def _blank_png(height: int, width: int) -> bytes:
    """Return a white PNG of one bit per pixel, which takes a few hundred bytes."""
    from PIL import Image

    file = BytesIO()
    Image.new("1", (width, height), 1).save(file, "PNG", optimize=True)
    return file.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the workload to the path given, as Parquet; needs the extra `workload`."""
    parser = argparse.ArgumentParser(
        prog="python -m deepstack_harness.catalogue.geometry3k",
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

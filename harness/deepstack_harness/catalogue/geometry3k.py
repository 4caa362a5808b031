r"""Geometry3K as requests: image sizes, and token counts of problem and solution; no model is needed.

Rows have the columns of `hiyouga/geometry3k`: `images` (a list of {bytes, path}), `problem`, `answer`, and
others that are not read. Images are not decoded, because the header has their size. (A rotation in EXIF
data would be missed; figures have none.)

Tokens are estimated, so that no tokenizer has to be downloaded: a digit or a sign is one token, as in
Qwen's vocabulary, and a word has one for every six letters, rounded up. `<image>` in a problem marks the
place of the visual tokens and counts as none. A prompt has 8 more tokens for the chat template
(`<|im_start|>user\n` .. `<|im_end|>\n<|im_start|>assistant\n`), and 2 for the marks around each image.

Geometry3K is not redistributed here. `fixtures/workload.csv` has 200 requests like its own. Sides of images
are those of the label boxes in the published annotations (Inter-GPS, `geometry_labels_val.csv`, the first 48
figures, with 20 pixels of margin): their geometric mean has a median of 350 pixels and a spread (standard
deviation of the logarithm) of 0.36, width to height a median of 1.39 and a spread of 0.30.
"""

import csv
import re
import sys
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from deepstack_harness.catalogue.workload import Request
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.files import data
from deepstack_harness.text import first_line_of

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT = "test"
"""The split of a hub data set if the name states none; evaluations use it. Geometry3K's has 601 rows."""
TEMPLATE_TOKENS = 8
"""Tokens that the chat template adds to a prompt. An estimate: lengths only have to be realistic."""
MARKS_PER_IMAGE = 2
"""Tokens around an image: its start and its end."""
LETTERS_PER_TOKEN = 6
"""Letters of a word for one token, rounded up; a longer word is several tokens."""

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
    `hiyouga/geometry3k` or `hiyouga/geometry3k@train`; both need the extra `workload`. None is the workload
    of ours, of 200 requests. Raises `UsageError` for a file or rows that are not a workload, and
    `MachineError` for a hub that cannot be reached, without retries.
    """
    if where is None:
        with data("fixtures/workload.csv").open(encoding="utf-8", newline="") as file:
            sizes = [[int(cell) for cell in row] for row in [*csv.reader(file)][1:]]
        return [
            Request(f"row{number}", ((height, width),), text, answer)
            for number, (height, width, text, answer) in enumerate(sizes)
        ]
    requests = [_request(number, row, where) for number, row in enumerate(_rows(_load_table(where), where))]
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
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        HfApi().dataset_info(named["name"], timeout=_HUB_TIMEOUT_S)  # `datasets` would try for 20 seconds
    except OfflineModeIsEnabled:
        pass  # `datasets` reads its cache
    except (HFValidationError, RepositoryNotFoundError):
        raise UsageError(f"the hub has no data set '{named['name']}' that you may read") from None
    except Exception as error:  # noqa: BLE001  # what a failed connection raises depends on the hub's client
        raise _unreachable(named["name"], error) from None
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


def _request(number: int, row: GeometryRow, where: str) -> Request:
    """Return a row as a request: the sizes of its images are read from their headers."""
    from PIL import Image

    sizes: list[tuple[int, int]] = []
    for image in row.images:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # nothing is decompressed
            try:
                with Image.open(BytesIO(image.bytes)) as opened:
                    sizes.append((opened.height, opened.width))
            except (OSError, ValueError, Image.DecompressionBombError):
                raise UsageError(
                    f"'{where}', row {number}, image {len(sizes)}: {len(image.bytes)} bytes that are no "
                    "image with sides of 1 pixel or more"
                ) from None
    text = TEMPLATE_TOKENS + MARKS_PER_IMAGE * len(sizes) + estimated_tokens(row.problem)
    return Request(f"row{number}", tuple(sizes), text, estimated_tokens(row.answer))


if __name__ == "__main__":
    sys.stderr.write(
        "this program is removed: the workload that it made is fixtures/workload.csv, and "
        "'repro 43602 --workload FILE' takes a Parquet file of yours\n"
    )
    sys.exit(ExitCode.USAGE)

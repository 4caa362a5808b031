r"""Geometry3K as requests: image sizes, lengths of problem and answer; no model is needed.

Rows have the columns of `hiyouga/geometry3k`: `images` (a list of {bytes, path}), `problem`, `answer`, and
others that are not read.  Images are not decoded, because the header has their size.  (A rotation in EXIF
data would be missed; figures have none.)

Tokens are estimated, so that no tokenizer has to be downloaded: a digit or a sign is one token, as in
Qwen's vocabulary, and a word has one for every six letters, rounded up.  `<image>` in a problem stands for
the visual tokens and counts as none.  A prompt has 8 more tokens for the chat template
(`<|im_start|>user\n` .. `<|im_end|>\n<|im_start|>assistant\n`), and 2 for the marks around each image.
"""

import re
import warnings
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.workload.generate import drawn
from deepstack_harness.workload.requests import Request

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
        for index, row in enumerate(_rows(_table(where), where))
    ]
    if not any(request.images for request in requests):
        raise UsageError(f"'{where}' has no images in its {len(requests)} rows: no payload would be set")
    return requests


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text by the rule above; `<image>` counts as none."""
    pieces = _PIECE.finditer(text.replace("<image>", " "))
    return sum(-(-len(piece["word"] or ".") // LETTERS_PER_TOKEN) for piece in pieces)


def _table(where: str) -> "pa.Table":
    path = Path(where)
    if path.is_file():
        return _read(path)
    named = _HUB_NAME.fullmatch(where)
    if named is None or path.exists() or path.suffix == ".parquet":
        raise UsageError(
            f"workload '{where}' is not a file: give a Parquet file, or a name such as 'hiyouga/geometry3k'"
        )
    _ask_hub(named["name"])
    return _fetch(named["name"], named["split"] or SPLIT)


def _read(path: Path) -> "pa.Table":
    # Not `datasets`: it leaves locks and copies in the user's cache, and prints a line of its own when
    # the file is not Parquet.
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            known = file.schema_arrow.names
            return file.read(columns=[name for name in GeometryRow.__struct_fields__ if name in known])
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"'{path}' is not a Parquet file that can be read: {_first_line(error)}") from None


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


def _fetch(name: str, split: str) -> "pa.Table":
    """Load a split of a data set on the hub, or of a folder."""
    import datasets

    try:
        return datasets.load_dataset(name, split=split).with_format("arrow")[:]
    except OSError as error:
        raise _unreachable(name, error) from None
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"split '{split}' of '{name}' cannot be read: {_first_line(error)}") from None


def _unreachable(name: str, error: Exception) -> MachineError:
    return MachineError(
        f"data set '{name}' cannot be fetched ({_first_line(error)}): give a local Parquet file, "
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
            yield _size(image.bytes)
        except ValueError as error:
            raise UsageError(f"'{where}', row {index}, image {number}: {error}") from None


def _size(content: bytes) -> tuple[int, int]:
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


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

r"""Geometry3K as requests: image sizes, problem text and answer, and nothing that needs a model.

Rows have the columns of `hiyouga/geometry3k`: `images` (a list of {bytes, path}),
`problem`, `answer` and others that are not read.  Images are not decoded: their
size stands in the header.  (A rotation in EXIF data would not be seen; figures
have none.)

Tokens are estimated, not counted, so that no tokenizer has to be fetched: a digit
or a sign is one token, as in Qwen's vocabulary, and a word is one for each begun
six letters.  `<image>` in a problem stands for the visual tokens and counts
nothing.  A prompt has 8 more for the chat template (`<|im_start|>user\n` ..
`<|im_end|>\n<|im_start|>assistant\n`), and 2 for the marks around each image.
"""

import re
import warnings
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.workload.requests import Request

if TYPE_CHECKING:
    import pyarrow as pa

FIXTURE = "fixtures/workloads/geo3k_like.parquet"
SPLIT = "test"
"""The part of a hub data set that evaluations use, where the name says none: 601 rows of Geometry3K."""

TEMPLATE_TOKENS = 8
MARKS_PER_IMAGE = 2
LETTERS_PER_TOKEN = 6

_PIECE = re.compile(r"(?P<word>[^\W\d_]+)|\S")
_HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<split>[\w.-]+))?")
_HUB_SECONDS = 5  # for one small question: a machine without a network says so at once


class StoredImage(msgspec.Struct):
    """An image as `datasets` stores it: the bytes of its file."""

    bytes: bytes


class Geometry3KRow(msgspec.Struct):
    """The columns that are read."""

    images: list[StoredImage]
    problem: str
    answer: str


def load_workload(where: str | None = None) -> list[Request]:
    """The requests of a workload, one a row, named `row0`, `row1` and so on.

    `where` is None for the generated one that comes with the harness, the path of
    a Parquet file, or the name of a data set on the hub, such as
    `hiyouga/geometry3k` or `hiyouga/geometry3k@train`.  Raises `UsageError` for a
    file or rows that are no workload, and `MachineError`, at once, for a name when
    the hub cannot be reached.
    """
    source = str(data(FIXTURE)) if where is None else where
    requests = [_request(index, row, source) for index, row in enumerate(_rows(_table(source), source))]
    if not any(request.images for request in requests):
        raise UsageError(f"'{source}' has no images in its {len(requests)} rows: no payload would be set")
    return requests


def estimated_tokens(text: str) -> int:
    """Tokens of a text by the rule above; `<image>` counts nothing."""
    pieces = _PIECE.finditer(text.replace("<image>", " "))
    return sum(-(-len(piece["word"] or ".") // LETTERS_PER_TOKEN) for piece in pieces)


def _table(where: str) -> "pa.Table":
    path = Path(where)
    if path.is_file():
        return _read(path)
    named = _HUB_NAME.fullmatch(where)
    if named is None or path.exists() or path.suffix == ".parquet":
        raise UsageError(
            f"workload '{where}' is no file: give a Parquet file, or a name such as 'hiyouga/geometry3k'"
        )
    _ask_hub(named["name"])
    return _fetch(named["name"], named["split"] or SPLIT)


def _read(path: Path) -> "pa.Table":
    # Arrow alone: `datasets` would leave locks and copies in the user's cache, and
    # write a line of its own beside ours when the file is no Parquet.
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            known = file.schema_arrow.names
            return file.read(columns=[name for name in Geometry3KRow.__struct_fields__ if name in known])
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"'{path}' is not a Parquet file that can be read: {_first_line(error)}") from None


def _ask_hub(name: str) -> None:
    """Fail at once where `datasets` would try again for 20 seconds."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        HfApi().dataset_info(name, timeout=_HUB_SECONDS)
    except OfflineModeIsEnabled:
        return  # a copy of an earlier run is all that is asked for
    except (HFValidationError, RepositoryNotFoundError):
        raise UsageError(f"the hub has no data set '{name}' that you may read") from None
    except Exception as error:  # noqa: BLE001  # what a failed connection raises depends on the hub's client
        raise _unreachable(name, error) from None


def _fetch(name: str, split: str) -> "pa.Table":
    """A split of a data set: a name on the hub, or a folder."""
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


def _rows(table: "pa.Table", where: str) -> list[Geometry3KRow]:
    fields = Geometry3KRow.__struct_fields__
    missing = [name for name in fields if name not in table.column_names]
    if missing:
        raise UsageError(
            f"'{where}' lacks the columns {', '.join(missing)}: a workload has {', '.join(fields)}, "
            "as hiyouga/geometry3k"
        )
    try:
        return msgspec.convert(table.select(list(fields)).to_pylist(), list[Geometry3KRow])
    except msgspec.ValidationError as error:
        raise UsageError(f"'{where}' is no workload: {error}, where $[0] is the first row") from None


def _request(index: int, row: Geometry3KRow, where: str) -> Request:
    sizes = tuple(_sizes(index, row.images, where))
    framing = TEMPLATE_TOKENS + MARKS_PER_IMAGE * len(sizes)
    text = framing + estimated_tokens(row.problem)
    return Request(f"row{index}", sizes, text, estimated_tokens(row.answer))


def _sizes(index: int, images: Iterable[StoredImage], where: str) -> Iterable[tuple[int, int]]:
    for number, image in enumerate(images):
        try:
            yield _size(image.bytes)
        except ValueError as error:
            raise UsageError(f"'{where}', row {index}, image {number}: {error}") from None


def _size(content: bytes) -> tuple[int, int]:
    """Height and width in pixels, from the header; raises `ValueError` where there is none."""
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

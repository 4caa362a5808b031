"""The workload: rows of Geometry3K become requests, requests become steps, steps become a trace."""

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deepstack_harness.catalogue import geometry3k
from deepstack_harness.catalogue.geometry3k import estimated_tokens, load_workload
from deepstack_harness.catalogue.workload import (
    CAPTURE_SIZES,
    MAX_PIXELS,
    MIN_PIXELS,
    Chunk,
    Request,
    ScheduledStep,
    pad_to_capture,
    pad_to_multiple,
    schedule,
    serve,
    smart_resize,
    to_trace,
)
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import HarnessError, MachineError, UsageError

sides = st.integers(1, 900)
sizes = st.tuples(sides, sides).filter(lambda size: max(size) <= 200 * min(size))
requests = st.lists(
    st.tuples(st.lists(sizes, max_size=2).map(tuple), st.integers(1, 60), st.integers(0, 12)), max_size=8
).map(lambda drawn: [Request(f"r{place}", *counts) for place, counts in enumerate(drawn)])
budgets, slot_counts = st.integers(1, 600), st.integers(1, 5)


# Images: the same arithmetic as the processor of the model


@cache
def of_transformers() -> Callable[..., tuple[int, int]]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as theirs

    return partial(theirs, factor=32, min_pixels=65_536, max_pixels=16_777_216)


@given(st.integers(1, 6000), st.integers(1, 6000))
@example(256, 256)
@example(255, 257)
@example(1, 200)
@example(200, 1)
@example(16, 3200)
@example(48, 80)  # halves: Python rounds them to even
@example(4096, 4096)
@example(4112, 4112)
@example(5000, 5000)
@example(25, 5000)
@example(300, 60_000)
def test_images_are_scaled_as_transformers_scales_them(height: int, width: int) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ValueError, match="aspect ratio"):
            of_transformers()(height, width)
        with pytest.raises(UsageError, match=f"{height} x {width} pixels is too narrow"):
            smart_resize(height, width)
    else:
        assert smart_resize(height, width) == of_transformers()(height, width)


@pytest.mark.parametrize(
    ("height", "width", "tokens"), [(1, 1, 64), (256, 256, 64), (250, 251, 64), (640, 480, 300)]
)
def test_a_visual_token_covers_32_by_32_pixels(height: int, width: int, tokens: int) -> None:
    assert Request("a", ((height, width),), 1, 0).visual_tokens == tokens


@given(sizes)
def test_scaled_images_keep_to_the_limits(size: tuple[int, int]) -> None:
    height, width = smart_resize(*size)
    assert height % 32 == width % 32 == 0
    assert MIN_PIXELS <= height * width <= MAX_PIXELS


# Padding: the pairs that users reported


@pytest.mark.parametrize(
    ("tokens", "padded"),
    [
        *[(9, 16), (11, 16), (14, 16), (76, 80), (309, 320), (329, 336), (479, 480)],
        *[(0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (248, 248), (249, 256), (257, 272), (512, 512), (513, 513)],
    ],
)
def test_a_step_is_padded_to_the_next_capture_size(tokens: int, padded: int) -> None:
    assert pad_to_capture(tokens) == padded


def test_there_are_as_many_capture_sizes_as_in_the_engine() -> None:
    assert len(CAPTURE_SIZES) == 3 + 31 + 17


@pytest.mark.parametrize(
    ("tokens", "ranks", "padded"), [(0, 4, 0), (1, 4, 4), (8, 4, 8), (510, 3, 510), (511, 3, 513)]
)
def test_sequence_parallelism_pads_to_a_multiple_of_its_ranks(tokens: int, ranks: int, padded: int) -> None:
    assert pad_to_multiple(tokens, ranks) == padded


def test_no_ranks_cannot_share_a_step() -> None:
    with pytest.raises(UsageError, match="0 ranks"):
        pad_to_multiple(8, 0)


# Requests


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        (("a+b", (), 1, 0), "request id 'a+b'"),
        (("a b", (), 1, 0), "request id 'a b'"),
        (("a", ((0, 40),), 1, 0), "request 'a': an image of 0 x 40 pixels has no area"),
        (("a", ((40, -1),), 1, 0), "an image of 40 x -1 pixels has no area"),
        (("a", ((10, 2001),), 1, 0), "request 'a': an image of 10 x 2001 pixels is too narrow"),
        (("a", (), -1, 0), "text_tokens is -1"),
        (("a", (), 1, -2), "decode_tokens is -2"),
        (("a", (), 0, 3), "neither images nor text"),
    ],
)
def test_a_request_that_cannot_be_is_refused(arguments: tuple[Any, ...], quoted: str) -> None:
    with pytest.raises(UsageError) as caught:
        Request(*arguments)
    assert quoted in str(caught.value)


def test_the_tokens_of_a_request() -> None:
    request = Request("a", ((640, 480), (256, 256)), 20, 5)
    assert (request.visual_tokens, request.prompt_tokens, request.tokens) == (364, 384, 389)


# The schedule


def chunks_of(steps: Sequence[ScheduledStep]) -> dict[str, list[Chunk]]:
    found: dict[str, list[Chunk]] = defaultdict(list)
    for step in steps:
        for chunk in step.chunks:
            found[chunk.request].append(chunk)
    return found


@given(requests, budgets, slot_counts)
def test_no_step_exceeds_budget_or_slots(asked: list[Request], budget: int, slots: int) -> None:
    for step in schedule(asked, budget, slots):
        assert 1 <= step.tokens <= budget
        assert 1 <= len(set(step.requests)) == len(step.chunks) <= slots


@given(requests, budgets, slot_counts)
def test_every_token_is_computed_once_and_in_order(asked: list[Request], budget: int, slots: int) -> None:
    computed = chunks_of(schedule(asked, budget, slots))
    assert computed.keys() == {request.id for request in asked}
    for request in asked:
        tokens = [chunk.start + place for chunk in computed[request.id] for place in range(chunk.tokens)]
        assert tokens == list(range(request.tokens))


@given(requests, budgets, slot_counts)
def test_answers_are_computed_one_token_a_step(asked: list[Request], budget: int, slots: int) -> None:
    computed = chunks_of(schedule(asked, budget, slots))
    for request in asked:
        decoded = [chunk for chunk in computed[request.id] if chunk.start >= request.prompt_tokens]
        assert [chunk.tokens for chunk in decoded] == [1] * request.decode_tokens
        ends = [chunk.start + chunk.tokens for chunk in computed[request.id]]
        assert request.prompt_tokens in ends


@given(requests, budgets, slot_counts)
def test_visual_tokens_are_the_first_of_a_request(asked: list[Request], budget: int, slots: int) -> None:
    computed = chunks_of(schedule(asked, budget, slots))
    for request in asked:
        visual = {chunk.start + place for chunk in computed[request.id] for place in range(chunk.visual)}
        assert visual == set(range(request.visual_tokens))


@given(requests, budgets, slot_counts)
def test_at_most_as_many_requests_are_under_way_as_there_are_slots(
    asked: list[Request], budget: int, slots: int
) -> None:
    left = {request.id: request.tokens for request in asked}
    begun: set[str] = set()
    for step in schedule(asked, budget, slots):
        begun.update(step.requests)
        assert len([name for name in begun if left[name]]) <= slots
        for chunk in step.chunks:
            left[chunk.request] -= chunk.tokens


@given(requests, budgets, slot_counts)
def test_requests_begin_in_the_order_in_which_they_came(
    asked: list[Request], budget: int, slots: int
) -> None:
    begun = dict.fromkeys(name for step in schedule(asked, budget, slots) for name in step.requests)
    assert list(begun) == [request.id for request in asked]


def test_decode_steps_mix_with_chunks_of_prompts() -> None:
    first, second = Request("a", (), 10, 3), Request("b", ((640, 480),), 20, 2)
    steps = schedule([first, second], budget=200, slots=2)
    assert [(step.tokens, step.visual, step.requests) for step in steps] == [
        (200, True, ("a", "b")),
        (131, True, ("a", "b")),
        (2, False, ("a", "b")),
        (2, False, ("a", "b")),
    ]


@pytest.mark.parametrize(("budget", "slots"), [(0, 4), (512, 0)])
def test_an_engine_without_budget_or_slots_is_refused(budget: int, slots: int) -> None:
    with pytest.raises(UsageError, match=f"budget {budget} and slots {slots}"):
        schedule([Request("a", (), 1, 0)], budget, slots)


def test_two_requests_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two requests have the id 'a'"):
        schedule([Request("a", (), 1, 0), Request("a", (), 2, 0)])


def test_every_fourth_question_comes_again_without_its_images() -> None:
    steps = serve([Request(name, ((256, 256),), 20, 1) for name in "abcdefgh"], budget=2000, slots=10)
    assert steps[0].requests == (*"abcd", "d.text", *"efgh", "h.text")
    assert [chunk.tokens for chunk in steps[0].chunks][3:5] == [84, 20]


def test_an_evaluation_ends_with_a_single_decoding_request() -> None:
    steps = serve([Request("a", (), 20, 3), Request("b", ((640, 480),), 20, 3)])
    assert [step.requests for step in steps[-9:]] == [("tail",)] * 9
    assert [(step.tokens, step.visual) for step in steps[-9:]] == [(320, True), *[(1, False)] * 8]


def test_an_evaluation_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no requests"):
        serve([])
    with pytest.raises(UsageError, match="two requests have the id 'tail'"):
        serve([Request("tail", (), 5, 1)])


# The trace


@given(requests, budgets, slot_counts)
def test_a_trace_of_steps_parses_as_it_prints(asked: list[Request], budget: int, slots: int) -> None:
    trace = to_trace(schedule(asked, budget, slots), budget)
    assert Trace.parse(str(trace)) == trace


def test_text_only_steps_set_nothing() -> None:
    steps = schedule([Request("a", ((256, 256),), 9, 1), Request("b", (), 12, 2)])
    assert str(to_trace(steps)) == (
        "cap 512: profile 512; set 85 request=a+b; forward 85; forward 2; forward 1"
    )


# The workload of ours


def test_the_workload_shows_what_an_evaluation_shows() -> None:
    steps = serve(load_workload())
    text_only = sum(not step.visual for step in steps)
    shrinking = sum(step.visual and other.tokens < step.tokens for step, other in pairwise(steps))
    assert len(steps) >= 400
    assert len({step.tokens for step in steps}) >= 100
    assert sum(step.tokens == 1 for step in steps) >= 8
    assert min(text_only, len(steps) - text_only, shrinking) >= 100


def test_the_workload_is_the_one_that_the_figures_were_measured_on() -> None:
    assert hashlib.sha256(repr(load_workload()).encode()).hexdigest().startswith("5c8d8d06dbeae7d0")


def test_the_program_that_made_it_names_the_file() -> None:
    command = [sys.executable, "-m", geometry3k.__name__, "made.parquet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "is fixtures/workload.csv" in done.stderr) == (2, True), done.stderr


# Rows


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("<image>", 0),
        ("<image>Find x.", 3),
        ("120", 3),
        ("parallelogram", 3),
        ("\\frac{5}{12}", 9),
    ],
)
def test_the_rule_for_text(text: str, tokens: int) -> None:
    assert estimated_tokens(text) == tokens


def test_rows_become_requests(tmp_path: Path) -> None:
    rows = [
        row(images=[png(640, 480), png(300, 200)], problem="<image><image>Find x.", answer="12"),
        row(images=[], problem="Why?", answer=""),
    ]
    assert load_workload(written(tmp_path, rows)) == [
        Request("row0", ((480, 640), (200, 300)), 8 + 2 * 2 + 3, 2),
        Request("row1", (), 8 + 2, 0),
    ]


def test_an_image_is_not_decoded(tmp_path: Path) -> None:
    huge = written(tmp_path, [row(images=[png(12_000, 9_000)])])  # and no pixels after the header
    assert load_workload(huge)[0].images == ((9_000, 12_000),)


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    refused(
        written(tmp_path, [{"images": [png(64, 64)], "question": "Why?"}]),
        "lacks the columns problem, answer",
    )


@pytest.mark.parametrize("size", [(0, 300), (300, 0)])
def test_an_image_without_area_is_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    rows = [row(), row(images=[png(64, 64), png(*size)])]
    refused(written(tmp_path, rows), "row 1, image 1: ", "no image with sides of 1 pixel or more")


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n\0\0", b"\xff\xd8\xff\xe0"])
def test_bytes_that_are_no_image_are_refused(tmp_path: Path, content: bytes) -> None:
    refused(
        written(tmp_path, [row(images=[{"bytes": content, "path": None}])]),
        f"{len(content)} bytes that are no",
    )


def test_an_image_that_is_absurdly_large_is_refused(tmp_path: Path) -> None:
    refused(written(tmp_path, [row(images=[png(40_000, 40_000)])]), "row 0, image 0")


def test_an_image_that_is_too_slender_is_refused(tmp_path: Path) -> None:
    refused(
        written(tmp_path, [row(images=[png(3000, 10)])]),
        "'row0': an image of 10 x 3000 pixels is too narrow",
    )


@pytest.mark.parametrize(
    ("rows", "quoted"),
    [
        (
            [{"images": None, "problem": "Why?", "answer": "3"}],
            "Expected `array`, got `null` - at `$[0].images`",
        ),
        ([{"images": "a.png", "problem": "Why?", "answer": "3"}], "at `$[0].images`"),
        (
            [{"images": [{"bytes": None, "path": "a.png"}], "problem": "Why?", "answer": "3"}],
            "at `$[0].images[0].bytes`",
        ),
        ([{"images": [], "problem": 3, "answer": "3"}], "Expected `str`, got `int` - at `$[0].problem`"),
    ],
)
def test_a_cell_of_another_kind_is_named(tmp_path: Path, rows: list[dict[str, Any]], quoted: str) -> None:
    refused(written(tmp_path, rows), quoted)


@pytest.mark.parametrize("count", [0, 3])
def test_a_workload_without_images_is_refused(tmp_path: Path, count: int) -> None:
    refused(written(tmp_path, [row(images=[])] * count), f"no images in its {count} rows")


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 and then nothing")
    refused(str(path), "not a Parquet file that can be read", "rows.parquet")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    whole = Path(written(tmp_path, [row()] * 50)).read_bytes()
    path = tmp_path / "cut.parquet"
    path.write_bytes(whole[:200] + b"\0" * 100 + whole[300:])
    refused(str(path), "not a Parquet file that can be read")


@pytest.mark.parametrize("where", ["missing.parquet", "no/such.parquet", "nothing", "a/b/c", "", "a/b@"])
def test_a_file_that_is_not_there_is_refused(where: str) -> None:
    refused(where, f"workload '{where}' is not a file")


def test_a_folder_is_no_workload(tmp_path: Path) -> None:
    refused(str(tmp_path), "is not a file")


def refused(where: str, *quoted: str, kind: type[HarnessError] = UsageError) -> None:
    with pytest.raises(kind) as caught:
        load_workload(where)
    message = str(caught.value)
    assert all(text in message for text in quoted), message
    assert "\n" not in message


def row(**cells: object) -> dict[str, Any]:
    return {"images": [png(64, 64)], "problem": "Why?", "answer": "3"} | cells


def png(width: int, height: int) -> dict[str, Any]:
    """A file that states its size and has no pixels: also sizes that no library would write."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    content = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
    return {"bytes": b"\x89PNG\r\n\x1a\n" + content, "path": None}


def written(folder: Path, rows: list[dict[str, Any]]) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / "rows.parquet"
    kinds = {
        "images": pa.list_(pa.struct({"bytes": pa.binary()})),
        "problem": pa.string(),
        "answer": pa.string(),
    }
    table = pa.Table.from_pylist(rows) if rows else pa.Table.from_pylist(rows, schema=pa.schema(kinds))
    parquet.write_table(table, path)
    return str(path)


# The hub

ASKS_THE_HUB = """
import sys
from deepstack_harness.errors import HarnessError
from deepstack_harness.catalogue.geometry3k import load_workload
try:
    load_workload("nobody/nothing")
except HarnessError as error:
    print(int(error.exit_code), "datasets" in sys.modules, error)
"""
COMPARES = """
from deepstack_harness.errors import UsageError
from pathlib import Path
from deepstack_harness.catalogue.geometry3k import _fetch_from_hub, _read_parquet, _rows
fetched, read = _fetch_from_hub("like", "test"), _read_parquet(Path("like/test.parquet"))
print(_rows(fetched, "like") == _rows(read, "file"))
try:
    _fetch_from_hub("like", "dev")
except UsageError as error:
    print(error)
"""


def test_offline_a_hub_name_fails_with_advice() -> None:
    # HF_HUB_OFFLINE is set for every test (conftest.py).
    refused("nobody/nothing", "'nobody/nothing' cannot be fetched", "local Parquet file", kind=MachineError)


def test_an_unreachable_hub_is_tried_once(tmp_path: Path) -> None:
    # A port that nothing listens on; with a request, datasets would be imported, and try for 20 seconds.
    done = run(tmp_path, ASKS_THE_HUB, HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.startswith("3 False data set 'nobody/nothing' cannot be fetched (")


class NothingThere(BaseHTTPRequestHandler):
    """Responds as the hub does for a name that it does not have."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_a_name_that_the_hub_does_not_have_is_refused(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), NothingThere) as server:
        Thread(target=server.serve_forever).start()
        try:
            hub = f"http://127.0.0.1:{server.server_port}"
            done = run(tmp_path, ASKS_THE_HUB, HF_HUB_OFFLINE="0", HF_ENDPOINT=hub, NO_PROXY="127.0.0.1")
        finally:
            server.shutdown()
    assert done == "2 False the hub has no data set 'nobody/nothing' that you may read"


def test_what_datasets_fetches_is_read_as_a_file_is(tmp_path: Path) -> None:
    # A folder in place of the hub: the same call of the same library.
    (tmp_path / "like").mkdir()
    shutil.move(written(tmp_path, [row(), row(images=[])]), tmp_path / "like" / "test.parquet")
    same, error = run(tmp_path, COMPARES).splitlines()
    assert same == "True"
    assert error.startswith("split 'dev' of 'like' cannot be read: ")


def run(folder: Path, program: str, **environment: str) -> str:
    """Its own process: the hub's settings are read at import, and caches lie in `folder`."""
    child = (
        os.environ
        | {"HF_HOME": str(folder / "hub"), "PYTHONPATH": str(Path(geometry3k.__file__).parents[2])}
        | environment
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=child, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

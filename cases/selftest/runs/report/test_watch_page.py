"""The page of a watched program: its order, what is escaped, and what it shows where nothing was watched."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser

from deepstack_harness.compile.watch_process import WatchedProcess
from deepstack_harness.runs.report.watch_page import render_watch


@dataclass
class Program:
    processes: Sequence[WatchedProcess]
    status: int = 0
    unwatched: Sequence[str] = field(default=())


def guard(name: str, *, counts: bool, has_effect: bool | None) -> dict[str, object]:
    return {
        "source": f"L['{name}']", "name": name, "kind": "NONE_MATCH", "rule": f"L['{name}'] is None",
        "where": "serve.py:7", "class": "decides", "then": "None", "now": "float32 tensor [3] on cpu",
        "first_call": 3, "calls": 2, "restored_by": f"L['{name}']", "counts": counts,
        "effect": "outputs differ by 4 (largest value 6)", "has_effect": has_effect, "distance": 4.0,
    }  # fmt: skip


def process(*guards: dict[str, object]) -> WatchedProcess:
    tensor = {
        "kind": "tensor", "value": "", "subclass": "", "dtype": "float32", "device": "cpu", "shape": [3],
        "stride": [1], "requires_grad": True, "address": 64,
    }  # fmt: skip
    changed = {
        "name": "extra", "source": "L['extra']", "first_call": 3, "changed": {"presence": 2},
        "then": {**tensor, "kind": "None"}, "now": tensor,
    }  # fmt: skip
    region = {
        "name": "Net.forward", "where": "serve.py:5", "kept": {}, "dropped": {"TENSOR_MATCH": 4}, "calls": 5,
        "problem": "", "looked_at": 4, "failed": list(guards), "inputs": [changed],
    }  # fmt: skip
    return WatchedProcess(7, "python serve.py", rank="1", compiles=True, ended=True, regions={0: region})


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.external += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(page: str) -> _Cells:
    cells = _Cells()
    cells.feed(page)
    return cells


def test_what_decides_comes_first_and_what_was_not_measured_after_an_effect() -> None:
    guards = (
        guard("shown", counts=False, has_effect=False),
        guard("unmeasured", counts=True, has_effect=None),
        guard("wrong", counts=True, has_effect=True),
    )
    cells = read(render_watch(["python", "serve.py"], Program([process(*guards)]), []))
    names = [word for word in cells.words if word in {"shown", "unmeasured", "wrong"}]
    assert names == ["wrong", "unmeasured", "shown"]
    text = " ".join(cells.words)
    assert "2 dropped guards failed and decide" in text
    assert "Further guards that failed, and do not decide: 1" in text
    assert "presence (2)" in text
    assert "float32 tensor [3], strides [1], on cpu, requires grad, at 0x40" in text
    assert all(place.startswith(("#", "data:")) for place in cells.external)


def test_everything_from_outside_is_escaped() -> None:
    hostile = guard("<script>alert(1)</script>", counts=True, has_effect=True)
    page = render_watch(["python", "<b>"], Program([process(hostile)]), [])
    assert "<script" not in page
    assert "<b>" not in page


def test_a_page_without_watches_states_that() -> None:
    page = render_watch(["python"], Program([], 7, ["nothing watched: 0 processes"]), [])
    assert "<h1>Nothing was watched</h1>" in page
    assert "nothing watched: 0 processes" in page
    assert "ended with 7" in page


def test_a_guard_that_was_put_back() -> None:
    rows = [{"restored": "L['extra']", "status": 0, "still_failing": []}]
    page = render_watch(["python"], Program([process()]), rows)
    assert "nothing: this guard decides the output" in page


def test_the_page_needs_nothing_that_draws() -> None:
    code = (
        "import sys, deepstack_harness.runs.report.watch_page; "
        "sys.exit(bool({'matplotlib', 'torch', 'pandas'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

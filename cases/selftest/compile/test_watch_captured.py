"""Captured graphs, held against their replays: what differs is found, and what may differ is not."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.selftest.compile.recorded_graphs import Wrapper, use_recorded_graphs
from cases.specimens.replays import Net, Proxies
from cases.specimens.replays import ones as x
from deepstack_harness.compile.watch_captured import around, watch_captured
from deepstack_harness.compile.watch_facts import WatchedRegion, WatchedRegions

ON_BOTH = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
"""With graphs that a CPU records, and with those of a GPU."""


@pytest.fixture(autouse=True)
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.node.get_closest_marker("gpu"):
        with torch.device("cuda"):
            yield
    else:
        use_recorded_graphs(monkeypatch)
        yield


Step = Callable[..., Tensor]
"""`step(size, *args, **kwargs)`: None runs without a graph; else a graph for that size, and its replays."""


class Run:
    """A program that is run with graphs, and whose outputs are compared with those of the uncompiled code."""

    def __init__(self) -> None:
        self.equal: list[bool] = []

    def start(self, code: Any) -> Step:  # noqa: ANN401  # a function or a module
        wrapper = Wrapper(code)

        def step(size: object, *args: Any, **kwargs: Any) -> Tensor:
            marked = around(lambda *a, **k: wrapper(size, *a, **k), code=code)
            out: Tensor = marked(*args, **kwargs).clone()
            right = code(*args, **kwargs)
            self.equal.append(out.shape == right.shape and torch.equal(out, right))
            return out

        return step


@ON_BOTH
def test_steps_without_a_graph_are_those_of_the_code(device: str) -> None:
    watched, run, given = WatchedRegions(), Run(), x()
    with watch_captured(watched):
        step = run.start(Net())
        step(3, given)
        step(None, x(), payload=x())
        step(3, given)
    assert (run.equal, watched.decisive) == ([True] * 3, []), watched.report()


@ON_BOTH
def test_a_second_model_of_the_class_has_captures_of_its_own(device: str) -> None:
    watched, run = WatchedRegions(), Run()
    with watch_captured(watched):
        pairs = [(run.start(Net()), x()) for _ in range(2)]
        for step, given in pairs * 2:
            step(3, given)
    assert (run.equal, watched.decisive) == ([True] * 4, []), watched.report()
    assert sum(region.calls - region.unseen for region in watched.regions) > 0


@ON_BOTH
def test_a_captured_layer_in_a_captured_model_is_judged_by_itself(device: str) -> None:
    watched, run, model, given = WatchedRegions(), Run(), nn.Sequential(Net()), x()
    with watch_captured(watched):
        inner = run.start(model[0].forward)
        vars(model[0])["forward"] = lambda x: inner(3, x)
        outer = run.start(model)
        for _ in range(3):
            outer(None, given)  # only the pieces are captured
    assert all(run.equal)
    assert watched.decisive == [], watched.report()


def test_members_of_what_appears_are_not_listed() -> None:
    watched = WatchedRegions()
    with watch_captured(watched):
        step, given = Run().start(Net()), x()
        step(3, given)
        step(3, given, parts=Proxies({"residual": x()}))
    assert [guard.name for guard in watched.decisive] == ["parts"]


def test_a_bare_replay_has_no_visible_inputs() -> None:
    watched, net, given = WatchedRegions(), Net(), x()
    with watch_captured(watched):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(given)
        graph.replay()
        graph.replay()
    (region,) = watched.regions
    assert (region.name, region.calls, region.unseen, region.failed) == ("CUDA graph", 2, 2, {})
    assert "recorded_graphs.py:" in region.where  # in place of torch.cuda.graph, which is left out
    assert "2 replays\n    inputs not visible in 2 replays" in watched.report()


def test_a_graph_that_was_captured_before_is_reported() -> None:
    watched, net, given = WatchedRegions(), Net(), x()
    step = Run().start(net)
    step(3, given)
    with watch_captured(watched):
        step(3, torch.ones(3, 4))
    (region,) = watched.regions
    assert (region.name, region.unseen) == ("CUDA graph that was captured before", 1)


def test_a_sentence_names_what_differs() -> None:
    watched, step = WatchedRegions(), Run()
    with watch_captured(watched):
        run = step.start(Net())
        first, second = x(), x()
        run(3, first)
        run(3, first)
        run(3, second)
    sentence, *_ = watched.report().splitlines()
    assert sentence == (
        f"Net.forward: `x` was float32 tensor [3, 4] on cpu at 0x{first.data_ptr():x} when captured, and "
        f"float32 tensor [3, 4] on cpu at 0x{second.data_ptr():x} in 1 of 2 replays; "
        "a replay reads what was captured"
    )


class Counter(nn.Module):
    """Counts its runs, and notes that it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.has_run = 0, False

    def forward(self, x: Tensor) -> Tensor:
        self.count, self.has_run = self.count + 1, True
        return x * 2


def captured_behind(*sizes: int) -> WatchedRegions:
    """Run a counter with rows of each size without a graph, then capture 3 rows and replay them."""
    watched = WatchedRegions()
    with watch_captured(watched):
        net, given = Counter(), x()
        wrapper = Wrapper(net)
        for size, rows in [*((None, x(size)) for size in sizes), (3, given), (3, given), (3, given)]:
            around(lambda rows, size=size: wrapper(size, rows), code=net)(rows)
    return watched


def test_what_each_run_writes_and_no_replay_does_is_found() -> None:
    watched = captured_behind(3)
    assert [(guard.name, guard.calls) for guard in watched.decisive] == [("self.count", 2)]
    sentence, advice, *_ = watched.report().splitlines()
    assert sentence == (
        "Counter.forward: `self.count` was int 1 before the capture, and int 2 after it; "
        "each run of the code writes it, and none of 2 replays does"
    )
    assert advice == "  to do: write self.count outside of what is captured, or hold it in a tensor"


@pytest.mark.parametrize("sizes", [(), (5,), (3, 5)])
def test_what_a_first_run_with_its_sizes_writes_is_not_reported(sizes: tuple[int, ...]) -> None:
    assert captured_behind(*sizes).decisive == []


def graphed(watched: WatchedRegions, code: Any, *calls: tuple[Tensor, ...]) -> list[Tensor]:  # noqa: ANN401
    with watch_captured(watched):
        run: Any = torch.cuda.make_graphed_callables(code, (torch.zeros(3, 4),))
        return [run(*call).clone() for call in calls]


@ON_BOTH
def test_graphed_callables_copy_their_inputs(device: str) -> None:
    watched, net = WatchedRegions(), Net()
    first, second = graphed(watched, net, (x(),), (torch.full((3, 4), 2.0).t().contiguous().t(),))
    assert (set(first.flatten().tolist()), set(second.flatten().tolist())) == ({2.0}, {4.0})
    assert watched.decisive == [], watched.report()
    assert [(region.name, region.calls, region.unseen) for region in watched.regions] == [
        ("Net.forward", 2, 0)
    ]


def test_python_state_of_graphed_callables_is_burnt_in() -> None:
    watched, net = WatchedRegions(), Net()
    with watch_captured(watched):
        run: Any = torch.cuda.make_graphed_callables((net, lambda x: x + 1), ((x(),), (x(),)))
        run[1](x())
        net.side = torch.ones(3, 4)
        assert torch.equal(run[0](x()), 2 * x())
    assert [(guard.name, guard.rule) for guard in watched.decisive] == [
        ("self.side", "the presence of self.side is that of the capture")
    ]


class Runner:
    """Captures a model in one method, and replays it in another one, as SGLang's runners do."""

    def __init__(self) -> None:
        self.slot = torch.zeros(8, 4)
        self.graph: Any = None

    def capture(self, size: int) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.model(self.slot, None)

    def model(self, x: Tensor, payload: Tensor | None) -> Tensor:
        return x * 2 if payload is None else x + payload  # torch warns of a graph without a kernel

    def execute(self, x: Tensor, payload: Tensor | None = None, *, session: int = 0) -> None:
        self.slot[: len(x)] = x
        self.graph.replay()


@ON_BOTH
def test_a_callable_that_captures_and_another_one_that_replays(device: str) -> None:
    watched, runner = WatchedRegions(), Runner()
    runner.model = around(runner.model, name="runner", copies=True, pads=True)  # type: ignore[method-assign]
    runner.execute = around(runner.execute, name="runner", copies=True, pads=True)  # type: ignore[method-assign]
    with watch_captured(watched):
        runner.capture(8)
        runner.execute(torch.ones(5, 4), session=3)
        assert watched.decisive == [], watched.report()
        runner.execute(torch.ones(3, 4), torch.ones(3, 4))
    (guard,) = watched.decisive
    assert (guard.name, guard.calls, guard.first_call) == ("payload", 1, 2)
    assert [region.unseen for region in watched.regions] == [0]


@ON_BOTH
def test_a_broken_graph_is_one_replay(device: str) -> None:
    watched, given = WatchedRegions(), x()
    pieces: list[Any] = []

    def broken(x: Tensor) -> None:
        if pieces:
            for piece in pieces:
                piece.replay()
            return
        for _ in range(2):
            piece = torch.cuda.CUDAGraph()
            with torch.cuda.graph(piece):
                x.add_(1)
            pieces.append(piece)

    with watch_captured(watched):
        run = around(broken)
        run(given)
        run(given)
        run(torch.ones(3, 4))
    assert [(region.calls, len(region.failed)) for region in watched.regions] == [(2, 1)]


def test_a_change_is_counted_after_many_equal_replays() -> None:
    """Replays that are equal to an earlier one are recognised by a fingerprint, without a list of facts."""
    watched, run = WatchedRegions(), Run()
    with watch_captured(watched):
        net, given, payload = Net(), x(), torch.ones(3, 4)
        step = run.start(net)
        for number in range(40):
            net.set_rows = number in {20, 30}
            step(3, given, payload if number == 35 else None)
    counts = {guard.name: (guard.first_call, guard.calls) for guard in watched.decisive}
    assert counts == {"self.set_rows": (20, 2), "payload": (35, 1)}


@pytest.mark.parametrize(
    "nested",
    [lambda tensor: [[({"a": tensor},)]], lambda tensor: {"a": Proxies({"b": tensor})}],
    ids=["four_deep", "in_a_dataclass"],
)
def test_a_tensor_that_moves_inside_is_found_after_many_equal_replays(
    nested: Callable[[Tensor], Any],
) -> None:
    watched, given = WatchedRegions(), x()
    with watch_captured(watched):
        step = Run().start(lambda *inputs: inputs[0] * 2)
        for held in [given] * 12 + [x()]:
            step(3, given, nested(held))
    found = [(guard.name[:9], guard.first_call, guard.calls) for guard in watched.decisive]
    assert found == [("inputs[1]", 12, 1)]


def test_a_watch_holds_no_model_and_no_tensor() -> None:
    with watch_captured(WatchedRegions()):
        net, given = Net(), x()
        step = Run().start(net)
        step(3, given)
        step(3, given)
        alive = weakref.ref(net), weakref.ref(given)
        del net, given, step
        gc.collect()
        assert [reference() for reference in alive] == [None, None]


def test_each_change_is_reported_once() -> None:
    changes: list[tuple[str, str]] = []

    def on_change(region: WatchedRegion, guard: Any) -> None:  # noqa: ANN401
        changes.append((region.name, guard.source if guard else ""))

    with watch_captured(WatchedRegions(), on_change):
        step, given = Run().start(Net()), x()
        step(3, given)
        for _ in range(3):
            step(3, given, scale=4)
    assert changes == [("Net.forward", ""), ("Net.forward", "scale")]


def test_nothing_is_changed_after_the_end() -> None:
    before = torch.cuda.CUDAGraph.replay, torch.cuda.make_graphed_callables
    watched = WatchedRegions()
    step, given = Run().start(Net()), x()
    with watch_captured(watched):
        step(3, given)
    step(3, torch.ones(3, 4))
    assert (torch.cuda.CUDAGraph.replay, torch.cuda.make_graphed_callables) == before
    assert (watched.decisive, [region.calls for region in watched.regions]) == ([], [0])

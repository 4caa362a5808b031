"""`watch_guards`: the dropped guards of compiled regions, checked again in every later call."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cases.selftest.compile.watched_programs import (
    SPECIAL,
    Compile,
    Layer,
    Weighted,
    compile_without_guards,
    play,
    rows,
)
from cases.shallow import shallow
from deepstack_harness import restore_guards, watch_guards
from deepstack_harness.compile.torch_compat import guards
from deepstack_harness.compile.torch_compat.guards import GuardTree
from deepstack_harness.errors import MachineError

SCALE = torch.ones(4)

Program = Callable[[Compile], Iterator[None]]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def name_of(program: Program) -> str:
    return program.__name__


@pytest.mark.parametrize("program", SPECIAL, ids=name_of)
def test_nothing_decides_in_a_right_program(program: Program) -> None:
    with watch_guards() as watched:
        outputs = play(program)
    assert watched.decisive == [], watched.report()
    assert sum(region.calls for region in watched.regions) > 0
    for compiled, eager in zip(outputs.compiled, outputs.eager, strict=True):
        torch.testing.assert_close(compiled, eager)


class Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        return x + 1 if extra is None else x + extra


def test_a_stance_that_checks_no_guard_is_watched() -> None:
    layer = Layer()
    run = torch.compile(layer.forward, backend="eager")
    with watch_guards() as watched, torch.no_grad():
        run(rows())
        run(rows(), rows())
        assert watched.decisive == []  # it recompiled
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            layer.factor = 5
            assert not torch.equal(run(rows()), layer.forward(rows()))
    assert {guard.name for guard in watched.decisive} == {"self.factor"}
    assert {(str(guard.then), str(guard.now)) for guard in watched.decisive} == {("int 2", "int 5")}


def test_a_saved_artifact_that_checks_no_guard_is_watched() -> None:
    layer = Adds()
    with watch_guards() as watched:
        saved = compile_without_guards(layer.forward).aot_compile(((torch.zeros(3), None), {}))
        saved.disable_guard_check()
        assert saved(layer, torch.zeros(3), torch.full((3,), 5.0)).tolist() == [1, 1, 1]
    (guard,) = watched.decisive
    assert (guard.name, str(guard.then), guard.calls) == ("extra", "None", 1)


def test_outputs_and_graphs_are_those_without_a_watch() -> None:
    def serve() -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        torch.compiler.reset()
        built: list[int] = []

        def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
            built.append(1)
            return graph.forward

        run = torch.compile(Layer(), backend=backend, dynamic=True)
        return [run(rows(n)).detach() for n in (3, 5, 7, 1)], len(built)

    with watch_guards() as watched:
        watched_outputs, watched_graphs = serve()
    outputs, graphs = serve()
    assert watched_graphs == graphs == len(watched.regions)
    assert all(
        torch.equal(out, watched_out) for out, watched_out in zip(outputs, watched_outputs, strict=True)
    )


def test_facts_are_stored_and_never_tensors() -> None:
    big = torch.ones(1000, 4)
    gone = weakref.ref(big)
    run = compile_without_guards(Layer())
    with watch_guards() as watched:
        run(big)
        run(big, big)
    del big
    gc.collect()
    assert gone() is None
    (guard,) = watched.decisive
    assert (guard.now.shape, guard.now.stride, guard.now.device) == ((1000, 4), (4, 1), "cpu")


def test_the_layout_of_all_inputs_is_stored_then_and_now() -> None:
    """Positional, keyword and nested arguments, attributes and globals, with each fact that changes."""

    def serve(self: Layer, x: torch.Tensor, *, extra: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        return x * self.factor * SCALE + extra["a"][0]

    global SCALE  # noqa: PLW0603  # a global that the region reads
    SCALE = torch.ones(4)
    layer = Layer()
    run = compile_without_guards(serve)
    with watch_guards() as watched:
        run(layer, first := rows(), extra={"a": [other := rows()]})
        layer.factor, SCALE = 3, torch.ones(4, dtype=torch.float64)
        run(layer, rows().t().contiguous().t(), extra={"a": [rows().requires_grad_()]})
        run(layer, rows(), extra={"a": [rows()]})
    del first, other  # alive until here, so that the last call's have addresses of their own
    (region,) = watched.regions
    changed = {seen.name: dict(seen.changed) for seen in region.inputs.values()}
    assert region.looked_at == 2
    assert changed["x"] == {"stride": 1, "address": 2}
    assert changed["extra['a'][0]"] == {"requires_grad": 1, "address": 2}
    assert changed["self.factor"] == {"value": 2}
    assert changed["SCALE"] == {"dtype": 2, "address": 2}
    assert changed["extra"] == {}
    (nested,) = [seen for seen in region.inputs.values() if seen.name == "extra['a'][0]"]
    assert nested.now is not None
    assert (nested.then.requires_grad, nested.now.requires_grad, nested.first_call) == (False, True, 2)


def test_nothing_is_counted_after_the_end() -> None:
    run = compile_without_guards(Layer())
    with watch_guards() as watched:
        run(rows())
    run(rows(), rows())
    assert (watched.decisive, [region.calls for region in watched.regions]) == ([], [1])


def test_a_stranger_understands_a_report() -> None:
    with watch_guards() as watched:
        assert watched.report() == "no region was compiled, so nothing was watched"
        run = compile_without_guards(Layer())
        run(rows())
        run(rows(), rows())
    first, _, counts, *_ = watched.report().splitlines()
    assert first.startswith(
        "Layer.forward: `payload` was None when compiled, and float32 tensor [3, 4] on cpu in 1 of 2"
    )
    assert counts.endswith("decides the answer: 1")


def test_a_branch_of_user_code_decides_and_a_bound_of_torch_does_not() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 5 else x - 1

    run = compile_without_guards(branch)
    with watch_guards() as watched:
        run(torch.ones(8, 4))
        run(torch.ones(8, 1))
        assert watched.decisive == [], watched.report()
        run(torch.ones(3, 4))
    assert [guard.rule for guard in watched.decisive] == ["6 <= L['x'].size()[0]"]


def test_every_guard_is_evaluated_in_every_call() -> None:
    layer, weighted = Layer(), Weighted()
    first, second = compile_without_guards(layer), compile_without_guards(weighted)
    with watch_guards(measure=False) as watched, torch.no_grad():
        for call in range(64):
            if call == 20:
                layer.factor = 3
                weighted.weight = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
            first(rows())
            second(rows())
    assert {guard.name: guard.first_call for guard in watched.decisive} == {
        "self.factor": 21,
        "self.weight": 21,
    }


def test_a_failure_that_stays_does_not_hide_another_one() -> None:
    layer = Layer()
    run = compile_without_guards(layer)
    with watch_guards(measure=False) as watched:
        run(rows())
        for call in range(30):
            layer.factor = 3
            run(rows(), torch.ones(3, 4) if call == 20 else None)
    assert {guard.name: (guard.first_call, guard.calls) for guard in watched.decisive} == {
        "self.factor": (2, 30),
        "payload": (22, 1),
    }


@pytest.mark.slow  # by day the guards of incidents
def test_the_guard_that_changes_the_outputs_of_a_decoder_is_named() -> None:
    """Two guards of a decoder decide, and a third one fails without an effect."""
    model = shallow("qwen3_vl", layers=1)

    def serve() -> None:
        decoder = model.decoder
        run = compile_without_guards(decoder.forward)
        hidden, positions = torch.zeros(4, model.family.hidden), model.family.positions(4, model.device)
        payload = tuple(torch.ones(4, model.family.hidden) for _ in range(model.family.levels))
        with torch.no_grad():
            run(hidden + 1, positions, None)
            run(hidden + 1, positions, payload)
            run(hidden[:1] + 1, positions[:, :1], None)

    (restored,) = restore_guards(serve)
    assert restored.failed.name == "payload"
    assert restored.changes_answers
    assert restored.remaining == ()


def test_each_of_two_guards_that_decide_is_put_back_by_itself() -> None:
    def serve() -> None:
        layer = Layer()
        run = compile_without_guards(layer)
        run(rows())
        run(rows(), torch.ones(3, 4))
        layer.factor = 3
        run(rows())

    found = {restored.failed.name: restored for restored in restore_guards(serve)}
    assert found.keys() == {"payload", "self.factor"}
    assert all(restored.changes_answers for restored in found.values())
    assert [guard.name for guard in found["payload"].remaining] == ["self.factor"]
    assert [guard.name for guard in found["self.factor"].remaining] == ["payload"]


def test_a_torch_without_a_name_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_NEEDED", {"torch": ("compile", "no_such.name"), "torch.no_such": ("x",)})
    guards.missing_names.cache_clear()
    try:
        with pytest.raises(MachineError) as caught, watch_guards():
            pass
    finally:
        guards.missing_names.cache_clear()
    assert str(caught.value) == (
        f"torch {torch.__version__} has no torch.no_such.name, torch.no_such.x: its dropped guards cannot be "
        "watched"
    )


def test_an_artifact_that_was_loaded_without_guards_is_reported(tmp_path: Path) -> None:
    layer = Adds()
    saved = compile_without_guards(layer.forward).aot_compile(((torch.zeros(3), None), {}))
    saved.save_compiled_function(str(tmp_path / "saved"))
    torch.compiler.reset()
    with watch_guards() as watched:
        with (tmp_path / "saved").open("rb") as file:
            loaded: Any = torch.compiler.load_compiled_function(file)
        loaded.disable_guard_check()
        assert loaded(layer, torch.zeros(3), torch.full((3,), 5.0)).tolist() == [1, 1, 1]
    (region,) = watched.regions
    assert (region.calls, dict(region.kept), dict(region.dropped)) == (2, {}, {})
    assert "the guards could not be evaluated in a graph that was loaded from a file" in watched.report()


def test_a_watch_that_fails_does_not_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise ValueError("no tree")

    monkeypatch.setattr(GuardTree, "holds", fail)
    with watch_guards() as watched:
        run = compile_without_guards(Layer())
        run(rows())
        run(rows())
    assert [region.problem for region in watched.regions] == ["call 2: ValueError: no tree"]
    assert "the guards could not be evaluated in call 2: ValueError: no tree" in watched.report()

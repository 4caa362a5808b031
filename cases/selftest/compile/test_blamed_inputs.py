"""The input that changes the outputs is named, where several inputs change in one call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.selftest.compile.watched_programs import compile_without_guards, rows
from deepstack_harness import watch_guards
from deepstack_harness.compile.watch_facts import WatchedRegions

LIMIT = 5


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def watched(code: Any, first: tuple[Any, ...], *later: tuple[Any, ...]) -> WatchedRegions:  # noqa: ANN401
    run = compile_without_guards(code)
    with watch_guards() as found:
        run(*first)
        for args in later:
            run(*args)
    return found


def names(found: WatchedRegions) -> set[str]:
    return {guard.name for guard in found.decisive}


def mask_and_noise(x: Tensor, mask: Tensor | None, noise: Tensor | None) -> Tensor:
    x = x if mask is None else x * mask
    return x if noise is None else x + noise


def flag_and_dtype(x: Tensor, upper: bool, weight: Tensor) -> Tensor:
    x = x + 1 if upper else x
    return x * (weight.float() / 127 if weight.dtype == torch.int8 else weight.float())


def flag_and_size(x: Tensor, flag: bool) -> Tensor:
    x = x + 0 if flag else x
    return x * 2 if x.shape[0] > 10 else x


def parts_and_flag(parts: list[Tensor], flag: bool) -> Tensor:
    return torch.stack(parts).sum(0) + (0 if flag else 0.0)


ZERO, ONE = torch.zeros(3, 4), torch.ones(3, 4)
BLAMED: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...], tuple[Any, ...], set[str]]] = {
    "noise": (mask_and_noise, (rows(), None, None), (rows(), ONE, ONE), {"noise"}),
    "mask": (mask_and_noise, (rows(), None, None), (rows(), ZERO, ZERO), {"mask"}),
    "both": (mask_and_noise, (rows(), None, None), (rows(), 2 * ONE, ONE), {"mask", "noise"}),
    "none": (mask_and_noise, (rows(), None, None), (rows(), ONE, ZERO), set()),
    "flag": (flag_and_dtype, (rows(), False, ONE), (rows(), True, ONE.double()), {"upper"}),
    "dtype": (flag_and_dtype, (rows(), False, ONE), (rows(), False, ONE.to(torch.int8)), {"weight"}),
    "size": (flag_and_size, (rows(3), False), (rows(20), True), {"x.shape[0]"}),
    "length": (parts_and_flag, ([ONE], False), ([ONE, ONE], True), {"parts"}),
}


@pytest.mark.parametrize(("code", "first", "later", "blamed"), BLAMED.values(), ids=BLAMED)
def test_one_input_at_a_time_is_varied(
    code: Callable[..., Tensor], first: tuple[Any, ...], later: tuple[Any, ...], blamed: set[str]
) -> None:
    found = watched(code, first, later)
    assert names(found) == blamed, found.report()
    assert all(guard.effect.distance for guard in found.decisive)


def test_an_attribute_and_a_global_are_varied_in_copies() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor, self.harmless = 2, 1

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.factor).clamp(max=100 * LIMIT) + (0 if self.harmless else 0.0)

    global LIMIT  # a global that the region reads
    layer = Scales()
    run = compile_without_guards(layer)
    with watch_guards() as found:
        run(rows())
        layer.factor, layer.harmless, LIMIT = 3, 0, 6
        run(rows())
        assert (layer.factor, layer.harmless, LIMIT) == (3, 0, 6)
    assert names(found) == {"self.factor"}, found.report()


class Layer(nn.Module):
    """A layer with a factor of its class."""

    factor = 2

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        return x * self.factor


class Model(nn.Module):
    """Equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_that_are_equal_are_one_finding() -> None:
    model = Model()
    run = compile_without_guards(model)
    with watch_guards() as found:
        run(rows())
        for layer in model.layers:
            layer.factor = 3  # type: ignore[assignment]
        run(rows())
    assert len(found.decisive) == 4
    (line,) = [line for line in found.report().splitlines() if " when compiled" in line]
    assert line.startswith(
        "Model.forward: `self.layers[*].factor` (4 of them) was that of its class when compiled, and int 3 "
    )


def test_a_size_has_its_line_and_what_was_assumed() -> None:
    found = watched(lambda x: x * 2 if x.shape[0] > 16 else x, (rows(20),), (rows(9),))
    line, to_do, *_ = found.report().splitlines()
    assert (
        "`x.shape[0]` was int 20 when compiled, and int 9 in 1 of 2 calls; 17 or more was assumed, by" in line
    )
    assert "x.shape[0] > 16" in line
    assert f"{__file__.rpartition('/')[2]}:" in line
    assert to_do.startswith("  to do: take the decision on x.shape[0] before the compiled call")


def test_of_equal_sizes_the_one_that_the_line_reads_is_named() -> None:
    """Sizes that were equal when compiled are one symbol, which torch calls by its first source."""

    def step(ids: Tensor, positions: Tensor) -> Tensor:
        ids = ids + 1
        return ids * 3 if positions.shape[0] > 16 else ids + positions[0]

    found = watched(step, (rows(20), rows(20)), (rows(9), rows(9)))
    (guard,) = found.decisive
    assert guard.name == "positions.shape[0]"
    assert guard.rule == "17 <= L['positions'].size()[0]"


def test_a_size_without_a_line_is_reported_as_that() -> None:
    found = watched(lambda x, y: (x + 1, y + 1), (rows(8), rows(8)), (rows(8), rows(5)))
    guard = found.regions[0].failed["L['y'].size()[0] == L['x'].size()[0]", "SHAPE_ENV"]
    assert guard.relation is not None
    assert (guard.relation.code, guard.relation.reason) == (
        "", "no line of the program compares them: they were equal when compiled",
    )  # fmt: skip


def test_two_tensors_that_become_one_unmeasured_are_in_doubt() -> None:
    run = compile_without_guards(lambda x, memory: x + memory)
    with watch_guards(measure=False) as found:
        run(rows(), ONE[:3])
        run(ONE, ONE)
    (guard,) = found.regions[0].failed.values()
    assert (guard.name, str(guard.then), str(guard.now)) == ("x and memory", "two tensors", "one tensor")
    assert (guard.counts, guard.in_doubt) == (False, True)


def test_two_tensors_that_become_one_decide_where_the_graph_writes_into_one() -> None:
    def writes(x: Tensor, memory: Tensor) -> Tensor:
        memory.add_(1)
        return x * 2

    run = compile_without_guards(writes)
    with watch_guards(measure=False) as found:
        run(rows(), torch.ones(3, 4))
        same = torch.ones(3, 4)
        run(same, same)
    assert names(found) == {"x and memory"}

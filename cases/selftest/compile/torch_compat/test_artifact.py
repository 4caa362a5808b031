"""Saved artifacts and rebuilt modules are as `torch_compat` documents them, on this torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.selftest.compile.small_decoders import Doubling
from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.compile.torch_compat import artifact, dynamo
from deepstack_harness.errors import MachineError, StepUnavailable

pytestmark = pytest.mark.xdist_group("eager")
ARGUMENTS = (torch.ones(4, 2), torch.zeros(3, 4), None)


def keep_all(guards: Sequence[object]) -> list[bool]:
    return [True] * len(guards)


def save(path: Path, options: dict[str, Any] | None = None, backend: str = "eager") -> None:
    artifact.save(Doubling().forward, ARGUMENTS, path, backend=backend, options=options or {})


def test_a_loaded_function_takes_the_module_first(tmp_path: Path) -> None:
    save(tmp_path / "one")
    out = artifact.load(tmp_path / "one")(Doubling(), *ARGUMENTS)
    assert torch.equal(out, 2 * torch.ones(4, 2))


def test_guards_that_can_be_saved_are_checked(tmp_path: Path) -> None:
    save(tmp_path / "one", {"guard_filter_fn": keep_all})
    hidden, *rest = ARGUMENTS
    loaded = artifact.load(tmp_path / "one")
    loaded(Doubling(), hidden, *rest)
    with pytest.raises(RuntimeError, match="GuardManager check failed"):
        loaded(Doubling(), hidden.double(), *rest)


def test_dropped_guards_are_not_checked(tmp_path: Path) -> None:
    save(tmp_path / "one", {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe})
    hidden, *rest = ARGUMENTS
    assert artifact.load(tmp_path / "one")(Doubling(), hidden.double(), *rest).dtype is torch.float64


def test_guards_that_cannot_be_saved_are_dropped(tmp_path: Path) -> None:
    # If it is not dropped, a guard on the class of a submodule ends in a PackageError (torch 2.11, 2.13).
    decoder = family_named("qwen3_vl").build(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    arguments = (torch.ones(4, 128), torch.zeros(3, 4, dtype=torch.int64), None)
    options = {"guard_filter_fn": keep_all}
    artifact.save(decoder.forward, arguments, tmp_path / "one", backend="eager", options=options)
    assert torch.equal(artifact.load(tmp_path / "one")(decoder, *arguments), decoder(*arguments))


def test_saving_counts_nothing_and_leaves_options_unchanged(tmp_path: Path) -> None:
    dynamo.start_counting()
    torch.compile(torch.sin, backend="eager", fullgraph=True)(torch.ones(2))
    options = {"guard_filter_fn": keep_all}
    save(tmp_path / "one", options)
    assert (dynamo.graphs_built(), dynamo.recompile_reasons()) == (1, [])
    assert options == {"guard_filter_fn": keep_all}


def test_a_backend_that_saves_nothing_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StepUnavailable, match="cannot save what backend eager_noexcept compiled"):
        save(tmp_path / "one", backend="eager_noexcept")


def test_other_errors_of_the_compiler_come_through(tmp_path: Path) -> None:
    nothing = (None, *ARGUMENTS[1:])
    with pytest.raises(RuntimeError, match="NoneType"):
        artifact.save(Doubling().forward, nothing, tmp_path / "one", backend="eager", options={})


def test_switched_off_caches_are_named(tmp_path: Path) -> None:
    # Torch's own patch: a value put back by pytest's would be no setting any more.
    switched_off = torch.compiler.config.patch(force_disable_caches=True)  # type: ignore[attr-defined]
    with switched_off, pytest.raises(MachineError, match="force_disable_caches"):
        save(tmp_path / "one")


class Holding(nn.Module):
    """Everything a module can hold itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3, bias=False)
        self.inner = nn.ModuleList([nn.LayerNorm(2)])
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("absent", None)
        self.level_of = {0: 1, 4: None}
        self.shape: tuple[int, ...] = (1, 2)
        self.eps = 1e-6
        self.function = torch.sin
        self.unpicklable = lambda: None
        self.register_forward_hook(lambda *_: None)


def test_a_module_is_loaded_as_it_was(tmp_path: Path) -> None:
    whole = Holding().eval()
    whole.linear.requires_grad_(requires_grad=False)
    artifact.save_module(whole, tmp_path / "module")
    again = artifact.load_module(tmp_path / "module")
    assert [(path, type(part)) for path, part in again.named_modules()] == [
        (path, type(part)) for path, part in whole.named_modules()
    ]
    assert {name: vars(again)[name] for name in ("level_of", "shape", "eps", "training")} == {
        "level_of": {0: 1, 4: None}, "shape": (1, 2), "eps": 1e-6, "training": False,
    }  # fmt: skip
    assert not hasattr(again, "function")
    assert not hasattr(again, "unpicklable")
    assert not again._forward_hooks
    assert "absent" in vars(again)["_buffers"]
    assert "bias" in vars(again.get_submodule("linear"))["_parameters"]
    assert all(same(*pair) for pair in zip(again.parameters(), whole.parameters(), strict=True))
    assert all(same(*pair) for pair in zip(again.buffers(), whole.buffers(), strict=True))


def same(one: Tensor, two: Tensor) -> bool:
    return type(one) is type(two) and torch.equal(one, two) and one.requires_grad == two.requires_grad

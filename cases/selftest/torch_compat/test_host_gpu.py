"""Tensors that say `cuda:0` over host memory: the way there and back, and a module that holds them."""

import pytest
import torch
from torch import Tensor, nn

from deepstack_harness.errors import MachineError
from deepstack_harness.torch_compat import fake_gpu_guard
from deepstack_harness.torch_compat.host_gpu import HostGpu

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
ROWS = torch.arange(24.0).view(6, 4)


@pytest.mark.parametrize(
    "tensor",
    [ROWS, ROWS[2:5], ROWS.t(), ROWS[:0], ROWS[1], ROWS.bfloat16(), torch.arange(6)],
    ids=["whole", "cut", "transposed", "empty", "row", "half", "integers"],
)
def test_a_tensor_says_cuda_has_the_same_memory_and_is_found_again(tensor: Tensor) -> None:
    host = HostGpu()
    moved = host.on_gpu(tensor)
    assert (str(moved.device), moved._base, moved.dtype) == ("cuda:0", None, tensor.dtype)
    assert (moved.shape, moved.stride(), moved.data_ptr()) == (
        tensor.shape,
        tensor.stride(),
        tensor.data_ptr(),
    )
    assert host.on_host(moved) is tensor
    assert host.on_host(moved.detach()) is tensor


def test_views_of_one_memory_are_told_apart() -> None:
    host, cut = HostGpu(), ROWS[:3]
    moved = [host.on_gpu(one) for one in (ROWS, cut)]
    assert [host.on_host(one) is tensor for one, tensor in zip(moved, (ROWS, cut), strict=True)] == [True] * 2


def test_what_is_not_on_the_gpu_stays_as_it_is() -> None:
    assert HostGpu().on_host(ROWS) is ROWS
    assert HostGpu().on_host(17) == 17


def test_a_tensor_that_was_made_elsewhere_is_refused() -> None:
    moved = HostGpu().on_gpu(ROWS)
    with pytest.raises(MachineError, match=r"a tensor \(6, 4\) of cuda:0 that is no argument of it: look at"):
        HostGpu().on_host(moved)


class Small(nn.Module):
    """A module with a parameter, a buffer, one that is None, and a part with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3), requires_grad=False)
        self.register_buffer("level", torch.zeros(4))
        self.register_buffer("nothing", None)
        self.part = nn.Linear(3, 2, bias=False)


def test_a_module_holds_the_same_objects_each_time_and_its_own_again_behind_it() -> None:
    host, module = HostGpu(), Small()
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    seen: list[nn.Parameter] = []
    for _ in range(2):
        with host.holding(module):
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            seen.append(module.weight)
    assert {str(one.device) for one in held.values()} == {"cuda:0"}
    assert {name: one.data_ptr() for name, one in held.items()} == {
        n: one.data_ptr() for n, one in own.items()
    }
    assert (seen[0] is seen[1], seen[0].requires_grad) == (True, False)
    assert module._buffers["nothing"] is None
    assert all(held[name].requires_grad == one.requires_grad for name, one in own.items())
    after = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert all(after[name] is one for name, one in own.items())


def test_a_torch_that_looks_at_the_memory_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._C._from_dlpack", lambda _: ROWS)
    with pytest.raises(MachineError, match=r"made a tensor of cpu of memory that was said to be of cuda"):
        HostGpu().on_gpu(ROWS)


def test_a_torch_without_the_registry_of_device_guards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    with pytest.raises(MachineError, match="keeps its device guards where this harness does not know"):
        fake_gpu_guard.plant_guard()


@pytest.mark.parametrize("left", [None, "planted"])
def test_a_torch_that_does_not_replace_the_planted_guard_is_refused(
    left: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot: list[object] = [0, 0]

    def ensure() -> None:
        if left is None:
            slot[1] = None

    monkeypatch.setattr(fake_gpu_guard, "_slot", lambda: slot)
    monkeypatch.setattr(fake_gpu_guard, "_object_of_zeros", lambda: 4096)
    monkeypatch.setattr("torch._C._ensureCUDADeviceGuardSet", ensure)
    with pytest.raises(MachineError, match="does not put its own guard in place of a planted one"):
        fake_gpu_guard.plant_guard()

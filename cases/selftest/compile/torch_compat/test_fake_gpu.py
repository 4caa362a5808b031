"""A process believes in a GPU that it does not have, and tensors in host memory claim `cuda:0`."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepstack_harness.compile.torch_compat import fake_gpu
from deepstack_harness.compile.torch_compat.fake_gpu import HostGpu
from deepstack_harness.compile.torch_compat.targets import why_not
from deepstack_harness.errors import MachineError
from deepstack_harness.workers.outcomes import Answered
from deepstack_harness.workers.worker import Worker

NEEDS_TRITON = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def in_worker() -> dict[str, Any]:
    with Worker() as worker:
        result = worker.call("cases.selftest.compile.torch_compat.fake_gpu_child:find")
    assert isinstance(result, Answered), result
    value: dict[str, Any] = result.value
    return value


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
@pytest.mark.slow  # 7 s; `kernels` for an H200 by day
def test_tensors_lie_on_the_gpu_that_is_pretended(in_worker: dict[str, Any]) -> None:
    assert (in_worker["device"], in_worker["capability"]) == ("cuda:0", [9, 0])
    assert in_worker["target"] == ["90"]


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
def test_every_generated_kernel_is_a_triton_function(in_worker: dict[str, Any]) -> None:
    assert in_worker["kinds"] == ["generated", "generated"]
    assert [sorted(operations) for operations in in_worker["kernels"]] == in_worker["functions"]


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
def test_registers_and_shared_memory_are_those_of_the_cubin(in_worker: dict[str, Any]) -> None:
    assert len(in_worker["candidates"]) >= 1
    assert [[registers, shared] for registers, _, shared, *_ in in_worker["candidates"]] == in_worker[
        "dumped"
    ]
    assert all(x >= 1 and (y, z) == (1, 1) for *_, x, y, z in in_worker["candidates"])


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
def test_loading_a_kernel_is_refused(in_worker: dict[str, Any]) -> None:
    assert "there is no NVIDIA H200" in in_worker["launch"]


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
def test_a_second_pretence_is_refused(in_worker: dict[str, Any]) -> None:
    assert "there is a real GPU here" in in_worker["again"]


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
def test_spilled_registers_are_counted() -> None:
    from deepstack_harness.compile.torch_compat.fake_gpu import _registers_and_spills

    held = range(64)
    ptx = "\n".join(
        [
            ".version 8.0",
            ".target sm_90",
            ".address_size 64",
            ".visible .entry busy(.param .u64 p) .maxnreg 16 {",
        ]
        + [".reg .u64 %rd<2>;", ".reg .b32 %r<64>;", "ld.param.u64 %rd1, [p];"]
        + [f"ld.volatile.global.u32 %r{index}, [%rd1+{4 * index}];" for index in held]
        + [f"st.volatile.global.u32 [%rd1+{4 * index}], %r{index};" for index in reversed(held)]
        + ["ret;", "}"]
    )
    registers, spills = _registers_and_spills(SimpleNamespace(asm={"ptx": ptx}))
    assert registers <= 24
    assert spills > 4 * 32


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
def test_a_kernel_that_ptxas_refuses_is_reported_with_its_words() -> None:
    from deepstack_harness.compile.torch_compat.fake_gpu import _registers_and_spills

    ptx = ".version 8.0\n.target sm_90\n.address_size 64\nnonsense"
    with pytest.raises(MachineError, match=r"ptxas did not say what a kernel uses: .*nonsense"):
        _registers_and_spills(SimpleNamespace(asm={"ptx": ptx}))


@pytest.mark.xdist_group("inductor")
@NEEDS_TRITON
def test_constants_of_a_fake_gpu_are_folded_on_the_cpu() -> None:
    from deepstack_harness.compile.torch_compat.fake_gpu import _on_cpu, _replace

    def fold(count: int, *, device: torch.device) -> Tensor:
        return torch.ops.aten.full([count], 3.0, device=device)  # type: ignore[no-any-return]

    folded = _on_cpu(fold)(2, device=torch.device("cuda"))
    assert (folded.device.type, folded.tolist()) == ("cpu", [3.0, 3.0])
    owner = SimpleNamespace(there=1)
    _replace(owner, "there", 2)
    assert owner.there == 2
    with pytest.raises(MachineError, match=r"has no gone, which simulating a GPU needs"):
        _replace(owner, "gone", 2)


ROWS = torch.arange(24.0).view(6, 4)


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
@pytest.mark.parametrize(
    "tensor",
    [ROWS, ROWS[2:5], ROWS.t(), ROWS[:0], ROWS[1], ROWS.bfloat16(), torch.arange(6)],
    ids=["whole", "cut", "transposed", "empty", "row", "half", "integers"],
)
def test_a_tensor_claims_cuda_has_the_same_memory_and_is_found_again(tensor: Tensor) -> None:
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


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
def test_views_of_one_memory_are_distinguished() -> None:
    host, cut = HostGpu(), ROWS[:3]
    moved = [host.on_gpu(tensor) for tensor in (ROWS, cut)]
    assert all(host.on_host(copy) is tensor for copy, tensor in zip(moved, (ROWS, cut), strict=True))


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
def test_what_is_not_on_the_gpu_stays_as_it_is() -> None:
    assert HostGpu().on_host(ROWS) is ROWS
    assert HostGpu().on_host(17) == 17


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
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


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
def test_a_module_holds_the_same_objects_each_time_and_its_own_again_after_it() -> None:
    host, module = HostGpu(), Small()
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    seen: list[nn.Parameter] = []
    for _ in range(2):
        with host.holding(module):
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            seen.append(module.weight)
    assert {str(tensor.device) for tensor in held.values()} == {"cuda:0"}
    assert {name: tensor.data_ptr() for name, tensor in held.items()} == {
        name: tensor.data_ptr() for name, tensor in own.items()
    }
    assert (seen[0] is seen[1], seen[0].requires_grad) == (True, False)
    assert module._buffers["nothing"] is None
    assert all(held[name].requires_grad == tensor.requires_grad for name, tensor in own.items())
    after = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert all(after[name] is tensor for name, tensor in own.items())


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
def test_a_torch_that_looks_at_the_memory_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._C._from_dlpack", lambda _: ROWS)
    with pytest.raises(MachineError, match=r"made a tensor of cpu of memory that was said to be of cuda"):
        HostGpu().on_gpu(ROWS)


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
def test_a_torch_without_the_registry_of_device_guards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    with pytest.raises(MachineError, match="keeps its device guards where this harness does not know"):
        fake_gpu.plant_guard()


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CPU build takes any capsule")
@pytest.mark.parametrize("left", [None, "planted"])
def test_a_torch_that_does_not_replace_the_planted_guard_is_refused(
    left: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot: list[object] = [0, 0]

    def ensure() -> None:
        if left is None:
            slot[1] = None

    monkeypatch.setattr(fake_gpu, "_slot", lambda: slot)
    monkeypatch.setattr(fake_gpu, "_guard_returning_zero", lambda: 4096)
    monkeypatch.setattr("torch._C._ensureCUDADeviceGuardSet", ensure)
    with pytest.raises(MachineError, match="does not put its own guard in place of a planted one"):
        fake_gpu.plant_guard()

"""Made-up addresses: each access belongs to a row of a named tensor, or is known to be outside of it."""

import numpy as np
import pytest
import torch

from deepstack_harness.compile.torch_compat.device_memory import DeviceMemory
from deepstack_harness.contract.facts import AccessFacts, KernelAccess

FLOAT = np.dtype(np.float32)


def addresses(memory: DeviceMemory, tensor: torch.Tensor, elements: list[int]) -> np.ndarray:
    first = memory.address(tensor)
    return np.array([first + 4 * element for element in elements], dtype=np.int64).astype(np.uint64)


def read(
    tensor: torch.Tensor, elements: list[int], mask: list[bool] | None = None
) -> tuple[KernelAccess, np.ndarray]:
    memory = DeviceMemory({"x": tensor})
    memory.begin("kernel", ["in_ptr0"])
    lanes = np.array(mask or [True] * len(elements))
    out = memory.load(addresses(memory, tensor, elements), lanes, 7, FLOAT)
    memory.end()
    (access,) = memory.facts(None, 0).accesses
    return access, out


def test_what_is_read_is_counted_in_rows_and_elements() -> None:
    access, out = read(torch.arange(12.0).view(4, 3), [3, 4, 4, 9, 0], [True, True, True, True, False])
    assert (access.kernel, access.tensor, access.argument, access.shape) == ("kernel", "x", "in_ptr0", (4, 3))
    assert (access.read, access.written, access.wild) == (((1, 2), (3, 4)), (), ())
    assert (access.elements_read, access.rows, access.bytes, access.outside) == (3, 2, 12, 0)
    assert out.tolist() == [3.0, 4.0, 4.0, 9.0, 7.0]


@pytest.mark.parametrize(
    ("rows", "in_storage", "value"), [(4, False, "nan"), (5, True, "12.0")], ids=["its own", "a view"]
)
def test_a_row_too_many_is_wild_also_where_the_memory_goes_on(
    rows: int, in_storage: bool, value: str
) -> None:
    tensor = torch.arange(3.0 * rows).view(rows, 3)[:4]
    access, out = read(tensor, [9, 12])
    assert (access.wild, access.in_storage, access.outside) == (((4, 5),), in_storage, 4)
    assert [str(element) for element in out] == ["9.0", value]


def test_a_row_before_the_tensor_is_wild() -> None:
    access, _ = read(torch.zeros(4, 3)[1:], [-3, 0])
    assert (access.wild, access.first, access.in_storage) == (((-1, 0),), -12, True)


def test_memory_is_unwritten_until_a_kernel_writes_it() -> None:
    memory = DeviceMemory({})
    tensor = memory.allocate((2, 2), (2, 1), torch.float32)
    mask = np.ones(2, dtype=bool)
    memory.begin("writes", ["out_ptr0"])
    memory.store(addresses(memory, tensor, [0, 1]), np.array([1, 2], np.float32), mask)
    memory.end()
    for kernel, elements in (("first", [0, 1]), ("second", [2, 3])):
        memory.begin(kernel, ["in_ptr0"])
        memory.load(addresses(memory, tensor, elements), mask, 0, FLOAT)
        memory.end()
    accesses = memory.facts(None, 0).accesses
    unwritten = [(access.kernel, access.unwritten) for access in accesses]
    assert unwritten == [("writes", 0), ("first", 0), ("second", 8)]
    assert [access.launch for access in accesses] == [0, 1, 2]
    assert tensor[0].tolist() == [1.0, 2.0]
    assert bool(tensor[1].isnan().all())


@pytest.mark.parametrize(("rows", "poisoned"), [(1, 0), (2, 1)], ids=["real rows", "all rows"])
def test_only_rows_below_n_have_to_be_free_of_what_nobody_wrote(rows: int, poisoned: int) -> None:
    """An attention output of which only real rows are written is right."""
    memory = DeviceMemory({})
    tensor = memory.allocate((2, 2), (2, 1), torch.float32)
    memory.called("attention", {}, [tensor[:1]])
    tensor[0] = 1
    memory.called("mm", {"self": tensor}, [])
    assert memory.facts(tensor, rows).unwritten_rows == poisoned
    assert memory.facts(tensor, rows).calls[-1].unwritten == ("buffer 0",)


def test_nan_of_a_payload_is_not_blamed_on_memory() -> None:
    memory = DeviceMemory({})
    memory.called("mm", {"self": torch.full((2, 2), torch.nan)}, [])
    assert memory.facts(torch.full((2, 2), torch.nan), 2).unwritten_rows == 0


def test_the_gaps_of_a_view_may_be_unwritten() -> None:
    memory = DeviceMemory({})
    tensor = memory.allocate((2, 4), (4, 1), torch.float32)
    memory.begin("writes", ["out_ptr0"])
    memory.store(addresses(memory, tensor, [0, 4]), np.array([1, 2], np.float32), np.ones(2, dtype=bool))
    memory.end()
    memory.called("mm", {"self": tensor[:, :1]}, [])
    memory.called("mm", {"self": tensor}, [])
    assert [call.unwritten for call in memory.facts(None, 0).calls] == [(), ("buffer 0",)]


def test_names_follow_storage_and_offset() -> None:
    levels = torch.zeros(2, 3, 4)
    memory = DeviceMemory({"payload[0]": levels[0], "payload[1]": levels[1]})
    assert [memory.name(levels[level]) for level in (0, 1)] == ["payload[0]", "payload[1]"]
    assert memory.name(memory.allocate((1,), (1,), torch.float32)) == "buffer 0"
    assert memory.name(torch.zeros(1)) == "a result of torch"


def test_the_share_is_that_of_the_bytes() -> None:
    memory = DeviceMemory({})
    tensor = torch.zeros(2, 2)
    memory.begin("reads", ["in_ptr0"])
    memory.load(addresses(memory, tensor, [0, 1]), np.ones(2, dtype=bool), 0, FLOAT)
    memory.end()
    memory.called("mm", {"self": tensor}, [torch.zeros(2)])
    facts = memory.facts(None, 0)
    assert (facts.launches, facts.share) == (1, 8 / (8 + 16 + 8))
    assert AccessFacts(()).share == 0


def test_half_precision_and_integers_are_filled_with_what_shows() -> None:
    memory = DeviceMemory({})
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert bool(memory.allocate((3,), (1,), dtype).isnan().all())
    assert memory.allocate((2,), (1,), torch.int64).tolist() == [-1, -1]


def test_an_atomic_adds_to_what_is_there() -> None:
    tensor = torch.zeros(4)
    memory = DeviceMemory({"x": tensor})
    memory.begin("kernel", ["in_out_ptr0"])
    lanes, values = np.ones(3, bool), np.array([2.0, 3.0, 5.0], np.float32)
    at = addresses(memory, tensor, [1, 1, 2])
    memory.store(at, values, lanes, adds=True)
    ((_, storage),) = memory.results()
    memory.end()
    assert storage.data.view(FLOAT).tolist() == [0.0, 5.0, 5.0, 0.0]
    (access,) = memory.facts(None, 0).accesses
    assert (access.written, access.elements_written, access.read) == (((1, 3),), 2, ())


def test_an_argument_that_a_launch_never_touches_has_no_access() -> None:
    """All lanes of an access may be masked off: it touches nothing, and is noted without a row."""
    used, unused = torch.ones(4), torch.ones(0, 3)
    memory = DeviceMemory({"x": used, "y": unused})
    memory.begin("kernel", ["in_ptr0", "in_ptr1"])
    out = memory.load(addresses(memory, used, [0, 99]), np.zeros(2, bool), 7, FLOAT)
    memory.address(unused)
    assert [parameter for parameter, _ in memory.results()] == ["in_ptr0", "in_ptr1"]
    memory.end()
    assert out.tolist() == [7.0, 7.0]
    (access,) = memory.facts(None, 0).accesses
    assert (access.argument, access.read, access.wild) == ("in_ptr0", (), ())

"""Launches of an interpreted step next to the static count: rows for programs, tables for people."""

from dataclasses import replace

import pytest
from msgspec import to_builtins

from cases.selftest.compile.test_kernels import QWEN
from deepstack_harness.cli.kernel_tables import show_executed, show_executed_beside
from deepstack_harness.cli.output import Output
from deepstack_harness.compile.kernel_rows import ExecutedStep, executed, executed_rows
from deepstack_harness.compile.kernels import Measurement
from deepstack_harness.contract.facts import AccessFacts, GraphCall, Kernel, KernelAccess, LibraryCall
from deepstack_harness.errors import NotMeasured

SUBJECT = replace(QWEN, tokens=4, capacity=8, profile_tokens=8, target="h200", execute=True)


KERNEL = Kernel(
    graph=0, kernel="fused_add", kind="generated", points=8, symbolic_points="2*n", reduction=1,
    symbolic_reduction="1", rows=4, symbolic_rows="n", bytes=48, ideal_bytes=48, carries_tokens=True,
    function="triton_add_0",
)  # fmt: skip


LEVEL = KernelAccess(
    "triton_add_0", "payload[0]", 32, 0, 32, argument="in_ptr1", shape=(4, 2), itemsize=4, read=((0, 4),),
    elements_read=8,
)  # fmt: skip


OUT = replace(LEVEL, tensor="buffer 0", argument="out_ptr0", read=(), written=((0, 4),), elements_read=0,
              elements_written=8)  # fmt: skip


WEIGHT = replace(LEVEL, tensor="layers.0.weight", shape=(8, 2), read=((0, 8),))


MM = LibraryCall("aten.mm.out", ("buffer 0", "layers.0.weight"), 96)


def step(*accesses: KernelAccess, kernels: int = 1, revision: str = "pr43617") -> ExecutedStep:
    call = GraphCall(0, symbolic=True, symbols={"n": 4}, kernels=(KERNEL,) * kernels)
    facts = AccessFacts(accesses, calls=(MM,), programs=3)
    measured = Measurement(
        replace(SUBJECT, revision=revision), "qwen3_vl:opaque", (call,), 1, "2.13.0", "3.7.1", "NVIDIA H200",
        2.0, 1.0, 2**30, facts, 0.5,
    )  # fmt: skip
    return executed(measured)


def test_a_launch_has_the_rows_of_its_payload_and_all_its_bytes() -> None:
    (launch,) = step(LEVEL, OUT, WEIGHT).launches
    assert (launch.rows, launch.payload_rows, launch.bytes, launch.counted.bytes) == (4, 4, 96, 48)


def test_rows_outside_count_among_those_that_were_touched() -> None:
    (launch,) = step(replace(LEVEL, wild=((4, 6),), end=48), OUT).launches
    assert launch.rows == 6


@pytest.mark.parametrize("kernels", [0, 2])
def test_a_launch_without_its_kernel_is_not_measured(kernels: int) -> None:
    with pytest.raises(NotMeasured, match=f"{kernels} kernels were generated and 1 launched"):
        step(LEVEL, kernels=kernels)


def test_rows_for_programs_are_launches_and_what_was_left_to_torch() -> None:
    launch, library = map(to_builtins, executed_rows(step(LEVEL, OUT)))
    accesses = launch.pop("accesses")
    assert [access["tensor"] for access in accesses] == ["payload[0]", "buffer 0"]
    common = {
        "schema_version": 1, "system": "deepstack", "family": "qwen3_vl:opaque", "revision": "pr43617",
        "target": "h200",
    }  # fmt: skip
    assert launch == {
        **common, "kind": "launch", "arm": "h200/drop_all/no_size_asserts", "device": "NVIDIA H200",
        "dtype": "bfloat16", "tokens": 4, "capacity": 8, "launch": 0, "kernel": "triton_add_0", "rows": 4,
        "payload_rows": 4, "bytes": 64, "static_bytes": 48, "share": 0.4, "step_processor_seconds": 0.5,
        "torch": "2.13.0", "triton": "3.7.1",
    }  # fmt: skip
    assert library == {
        **common, "kind": "library", "operation": "aten.mm.out", "operands": MM.operands, "bytes": 96,
        "unwritten": (),
    }  # fmt: skip


def test_tables_show_what_was_touched_and_what_is_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    Output(None, quiet=False).show(show_executed(step(replace(LEVEL, wild=((4, 5),), end=40), OUT)))
    said = capsys.readouterr().out
    assert "races, PTX, layouts and CUDA graphs are not seen" in " ".join(said.split())
    assert "payload[0] (4, 2) read rows 0..3; OUTSIDE: row 4" in said
    assert "1 launches of 3 programs, rows touched 5; 64 bytes, counted statically 48" in said


def test_two_revisions_are_printed_next_to_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    whole = replace(LEVEL, shape=(8, 2), read=((0, 8),), elements_read=16)
    both = [step(whole, OUT, revision="granite_rows"), step(LEVEL, OUT)]
    Output(None, quiet=False).show(show_executed_beside(both))
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "triton_add_0" in line]
    assert row.split() == ["1", "8", "4", "8", "4", "96", "64", "triton_add_0"]


def test_a_step_without_an_interpreted_launch_is_not_measured() -> None:
    found = step(LEVEL).measured
    with pytest.raises(NotMeasured, match="no launch was interpreted"):
        executed(replace(found, accesses=None))

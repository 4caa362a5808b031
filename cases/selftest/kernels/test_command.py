"""`kernels`: one sentence for each wrong use, rows for programs, tables for people."""

import importlib.metadata
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from deepstack_harness.cli import main
from deepstack_harness.commands import kernels as command
from deepstack_harness.contract.facts.kernels import Candidate, GraphCall, Kernel
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.kernels import in_worker
from deepstack_harness.kernels.decode import Decode, sized_family
from deepstack_harness.kernels.measurement import Cost, Measurement
from deepstack_harness.kernels.subject import Subject
from deepstack_harness.reporting.terminal.kernel_table import show_measurement
from deepstack_harness.reporting.terminal.output import Output

KERNELS = ["kernels", "--family", "qwen3_vl", "--layers", "3"]
QWEN = Subject("qwen3_vl", "pr43617", tokens=77, capacity=8192, profile_tokens=8192)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; stdout stays empty."""
    seen = capsys.readouterr()
    assert (seen.out, seen.err.count("\n")) == ("", 1), seen.err
    return seen.err


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (["--target", "h100"], "unknown target 'h100'; did you mean 'h200'? known are cpu, cuda, h200"),
        (["--family", "gpt2"], "unknown family 'gpt2'; known are qwen3_vl, "),
        (["--family", "gpt2:opaque"], "unknown family 'gpt2'; known are qwen3_vl, "),
        (["--revision", "pr1"], "unknown revision 'pr1'; known are original"),
        (["--compare", "pr1"], "unknown revision 'pr1'; known are original"),
        (["--tokens", "100", "--capacity", "64"], "--tokens 100 is above --capacity 64"),
        (["--profile-tokens", "9000"], "--profile-tokens 9000 is above --capacity 8192"),
        (["--tokens", "0"], "--tokens 0: there is nothing to measure below 1"),
        (["--layers", "0"], "--layers 0: there is nothing to measure below 1"),
        (["--tokens", "many"], "invalid int value: 'many'"),
        (["--cubin"], "--cubin compiles for a GPU that is not here (h200), not 'cpu'"),
        (["--target", "h200", "--run"], "--run cannot run code for 'h200'"),
        (["--execute"], "--execute interprets code for a GPU that need not be here (h200), not 'cpu'"),
        (["--target", "h200", "--execute", "--cubin"], "leave one of them out"),
        (["--target", "h200", "--configurations"], "--configurations compares what --execute runs"),
        (["--cost", "--static"], "brings its own decoder and sizes: leave --layers, --static out"),
    ],
)
def test_a_wrong_call_is_answered_with_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], quoted: str
) -> None:
    assert main([*KERNELS, *words]) == ExitCode.USAGE
    assert quoted in sentence(capsys)


@pytest.mark.parametrize(
    ("changes", "quoted"),
    [
        ({"family": "qwen3_vl:tiny"}, "unknown variant 'tiny' of family 'qwen3_vl'"),
        ({"hidden": 100}, "--hidden 100: heads of family 'qwen3_vl' is 4 at hidden 128"),
        ({"layers": 2}, "3 levels need as many layers, not 2"),
        ({"dtype": "int3"}, "unknown dtype 'int3'; known are float32"),
    ],
)
def test_a_subject_that_cannot_be_made_is_refused(changes: dict[str, Any], quoted: str) -> None:
    with pytest.raises(UsageError, match=re.escape(quoted)):
        Decode.open(replace(QWEN, **changes))


@pytest.mark.parametrize(
    ("family", "full"),
    [
        ("qwen3_vl", "qwen3_vl:opaque"),
        ("qwen3_vl:written_out", "qwen3_vl:written_out"),
        ("granite4_vision", "granite4_vision:opaque+payload_first"),
        ("granite4_vision:hidden_first", "granite4_vision:hidden_first+opaque"),
    ],
)
def test_what_a_variant_does_not_decide_is_chosen_so_that_extra_rows_show(family: str, full: str) -> None:
    assert sized_family(replace(QWEN, family=family)).name == full


def test_levels_of_granite_go_with_their_layers() -> None:
    config = sized_family(replace(QWEN, family="granite4_vision", layers=3)).config
    assert (config.layers, config.targets, config.levels) == (3, (1, 0, 2), 3)
    assert sized_family(replace(QWEN, family="granite4_vision", layers=36)).config.levels == 4


def test_heads_and_feed_forward_widen_with_the_hidden_size() -> None:
    config = sized_family(replace(QWEN, hidden=2560, layers=36)).config
    assert (config.hidden, config.layers, config.heads, config.kv_heads, config.mlp) == (
        2560,
        36,
        80,
        40,
        5120,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, so asking for one is no mistake")
def test_a_missing_gpu_is_the_machines_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*KERNELS, "--target", "cuda"]) == ExitCode.MACHINE
    assert "device 'cuda' is not available" in sentence(capsys)


@pytest.mark.parametrize(
    ("versions", "quoted"),
    [
        (
            {"torch": "2.9.1", "triton": "3.5.1"},
            "torch 2.9.1 has not been tested for a GPU that is not here",
        ),
        (
            {"torch": "2.13.0+cpu"},
            "needs the package triton 3.7: python -m pip install --no-deps 'triton==3.7.*'",
        ),
        ({"torch": "2.13.0+cpu", "triton": "3.6.0"}, "torch 2.13.0+cpu needs triton 3.7, here is 3.6.0"),
        ({"torch": "2.11.0", "triton": "3.7.1"}, "torch 2.11.0 needs triton 3.6, here is 3.7.1"),
    ],
)
def test_an_unsupported_torch_or_triton_is_the_machines_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], quoted: str
) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert main([*KERNELS, "--target", "h200"]) == ExitCode.MACHINE
    assert quoted in sentence(capsys)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """Rows for programs, and the table for people."""
    path: Path = tmp_path_factory.mktemp("kernels") / "rows.jsonl"
    words = ["--family", "granite4_vision", "--layers", "1", "--static", "--json", str(path)]
    words += ["--revision", "granite_full", "--compare", "granite_sliced"]
    with redirect_stdout(StringIO()) as shown:
        assert main(["kernels", *words]) == ExitCode.HOLDS
    return [json.loads(line) for line in path.read_text().splitlines()], shown.getvalue()


@pytest.mark.xdist_group("kernels-cpu")
def test_there_is_a_row_for_each_kernel_and_one_for_each_graph(
    measured: tuple[list[dict[str, Any]], str],
) -> None:
    rows, _ = measured
    for revision in ("granite_full", "granite_sliced"):
        of_revision = [row for row in rows if row["revision"] == revision]
        *kernels, graph = of_revision
        generated = [row for row in kernels if row["kind"] == "generated"]
        assert (graph["kind"], graph["kernel"], graph["kernels"]) == ("graph", None, len(generated))
        assert graph["points"] == sum(row["points"] for row in generated)
        assert graph["bytes"] == sum(row["bytes"] for row in generated)
        assert graph["largest"] == max(row["points"] for row in generated) == 77 * 256
        assert {row["rows"] for row in kernels} == {77}
        assert {row["graph"] for row in of_revision} == {0}
        assert graph["seconds"] > 0
        assert graph["peak_bytes"] > 2**20
    family = "granite4_vision:opaque+payload_first"
    assert {(row["family"], row["target"], row["layers"]) for row in rows} == {(family, "cpu", 1)}


@pytest.mark.xdist_group("kernels-cpu")
def test_two_revisions_are_compared_and_the_rule_of_each_is_said(
    measured: tuple[list[dict[str, Any]], str],
) -> None:
    lines = measured[1].splitlines()
    (moved,) = [line.split() for line in lines if line.startswith("bytes moved")]
    assert (moved[2], moved[4]) == (moved[3], "1.0x")
    assert [line.split(";")[0] for line in lines[-2:]] == [
        "R10 of granite_full: kept, 77 rows against 77",
        "R10 of granite_sliced: kept, 77 rows against 77",
    ]


def kernel(points: int, **changes: Any) -> Kernel:
    defaults: dict[str, Any] = {
        "graph": 0, "kernel": "fused_add", "kind": "generated", "points": points,
        "symbolic_points": "128*n", "reduction": 1, "symbolic_reduction": "1", "rows": points // 128,
        "symbolic_rows": "n", "bytes": 4 * points, "ideal_bytes": 4 * points, "carries_tokens": True,
    }  # fmt: skip
    return Kernel(**{**defaults, **changes})


def test_the_table_shows_equal_kernels_once_and_what_each_candidate_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    candidate = Candidate("XBLOCK=128 warps=4 stages=1", (77, 1, 1), 32, 16, 1024)
    large = kernel(1048576, ideal_bytes=39424, candidates=(candidate,), function="triton_poi_0")
    call = GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=(kernel(9856), large, kernel(9856)))
    measured = Measurement(
        "qwen3_vl:opaque", (call,), 1, "2.13.0", "3.7.1", "NVIDIA H200", Cost(2.5, 1.5, 2**30)
    )
    show_measurement(Output(None, quiet=False), QWEN, measured)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines if "fused_add" in line] == [
        ["2", "generated", "9,856", "128*n", "77"],
        ["1", "generated", "1,048,576", "128*n", "8,192"],
    ]
    assert any("106.4x" in line for line in lines)
    assert (
        "XBLOCK=128 warps=4 stages=1: grid 77x1x1, 32 registers, 16 bytes spilled, 1024 bytes shared"
        in "\n".join(lines)
    )
    assert lines[-1] == "took 2.5 s (1.5 s of processor time), 1.0 GiB at most"


@pytest.mark.parametrize(("words", "shown"), [([], ["R10 of pr43617"]), (["--execute"], ["interpreted"])])
def test_one_revision_is_shown_by_itself_and_interpreted_where_asked(
    words: list[str], shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=(kernel(9856),))
    seen = Measurement("qwen3_vl:opaque", (call,), 1, "2.13.0", "3.7.1", "NVIDIA H200", Cost(2.5, 1.5, 2**30))
    monkeypatch.setattr(in_worker, "measure", lambda subjects: [seen for _ in subjects])

    def executed(output: Output, subjects: object, measured: object) -> ExitCode:
        assert measured == [seen]
        output.line("interpreted")
        return ExitCode.BROKEN

    monkeypatch.setattr(command, "_executed", executed)
    monkeypatch.setattr(command, "_subject", lambda _args, revision: replace(QWEN, revision=revision))
    code = main([*KERNELS, "--target", "h200", *words])
    assert code == (ExitCode.BROKEN if words else ExitCode.HOLDS)
    said = capsys.readouterr().out
    assert all(part in said for part in shown)
    assert ("fused_add" in said) is not bool(words)

"""`kernels`: a sentence for each wrong use, rows for programs, tables for people; workers that misbehave."""

import importlib.metadata
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from cases.by_day import by_day
from cases.selftest.workers.misbehaving import ALWAYS
from deepstack_harness.cli import kernels as command
from deepstack_harness.cli.kernel_tables import show_comparison, show_judgement, show_measurement
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.compile import kernels
from deepstack_harness.compile.kernel_steps import Decode, sized_family
from deepstack_harness.compile.kernels import Measurement, Subject
from deepstack_harness.compile.torch_compat.inductor import kernels_in
from deepstack_harness.compile.torch_compat.targets import why_not
from deepstack_harness.contract.facts import Candidate, GraphCall, Kernel
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.document.blocks import Document, Line
from deepstack_harness.errors import ExitCode, HarnessError, MachineError, UsageError

KERNELS = ["kernels", "--family", "qwen3_vl", "--layers", "3"]


QWEN = Subject("qwen3_vl", "pr43617", tokens=77, capacity=8192, profile_tokens=8192)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; stdout stays empty."""
    seen = capsys.readouterr()
    assert (seen.out, seen.err.count("\n")) == ("", 1), seen.err
    return seen.err


@pytest.mark.parametrize(
    ("changes", "quoted"),
    [
        ({"family": "qwen3_vl:tiny"}, "unknown variant 'tiny' of family 'qwen3_vl'"),
        ({"hidden": 100}, "--hidden 100: heads of family 'qwen3_vl' is 4 at hidden 128"),
        ({"layers": 2}, "3 levels need as many layers, not 2"),
        ({"target": "h200", "run": True}, "generated code cannot be run for 'h200', which is not here"),
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


@pytest.mark.parametrize(
    ("versions", "quoted"),
    [
        (
            {"torch": "2.9.1", "triton": "3.5.1"},
            "torch 2.9.1 with triton 3.5.1 is older than what generates code for a GPU that is not here",
        ),
        (
            {"torch": "2.13.0+cpu"},
            "needs the package triton 3.7: python -m pip install --no-deps 'triton==3.7.*'",
        ),
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


FIELDS = """
    system family revision arm target device dtype tokens capacity profile_tokens layers hidden graph kernel
    kind points symbolic_points reduction rows symbolic_rows bytes ideal_bytes carries_tokens function grid
    candidates kernels largest extern_bytes seconds processor_seconds peak_bytes torch triton schema_version
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """Rows for programs, and the table for people."""
    path: Path = tmp_path_factory.mktemp("kernels") / "rows.jsonl"
    words = ["--family", "granite4_vision", "--layers", "1", "--profile-tokens", "512", "--json", str(path)]
    words += [
        "--revision",
        "granite_full",
        "--compare",
        "granite_sliced",
        "--code",
        str(path.parent / "code"),
    ]
    with redirect_stdout(StringIO()) as shown:
        assert main(["kernels", *words]) == ExitCode.HOLDS
    for revision in ("granite_full", "granite_sliced"):
        file = path.parent / "code" / f"{revision}-cpu-graph0.py"
        assert f"{file}\n" in shown.getvalue()
        assert {name for name in kernels_in(file.read_text()) if name.startswith("cpp_fused_")}
        assert "#include <torch/csrc/inductor/cpp_prefix.h>" in file.read_text()
    return [json.loads(line) for line in path.read_text().splitlines()], shown.getvalue()


@pytest.mark.xdist_group("kernels-cpu")
def test_there_is_a_row_for_each_kernel_and_one_for_each_graph(
    measured: tuple[list[dict[str, Any]], str],
) -> None:
    rows, _ = measured
    assert {tuple(sorted(row)) for row in rows} == {tuple(sorted(FIELDS.split()))}
    for revision in ("granite_full", "granite_sliced"):
        of_revision = [row for row in rows if row["revision"] == revision]
        *of_kernels, graph = of_revision
        generated = [row for row in of_kernels if row["kind"] == "generated"]
        assert (graph["kind"], graph["kernel"], graph["kernels"]) == ("graph", None, len(generated))
        assert graph["points"] == sum(row["points"] for row in generated)
        assert graph["bytes"] == sum(row["bytes"] for row in generated)
        assert graph["largest"] == max(row["points"] for row in generated) == 77 * 256
        assert {row["rows"] for row in of_kernels} == {77}
        assert {row["graph"] for row in of_revision} == {0}
        assert graph["seconds"] > 0
        assert graph["peak_bytes"] > 2**20
    family = "granite4_vision:opaque+payload_first"
    assert {(row["family"], row["target"], row["layers"]) for row in rows} == {(family, "cpu", 1)}


@pytest.mark.xdist_group("kernels-cpu")
def test_two_revisions_are_compared_and_the_rule_of_each_is_printed(
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
        QWEN, "qwen3_vl:opaque", (call,), 1, "2.13.0", "3.7.1", "NVIDIA H200", 2.5, 1.5, 2**30
    )
    Output(None, quiet=False).show(show_measurement(measured))
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


@pytest.mark.parametrize(
    ("target", "torch", "doubted"),
    [("h200", "2.13.0+cpu", False), ("h200", "2.16.0", True), ("cuda", "2.16.0", False)],
)
def test_code_of_a_pair_that_was_never_checked_is_shown_with_that_doubt(
    target: str, torch: str, doubted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    call = GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=(kernel(9856),))
    subject = replace(QWEN, target=target)
    measured = Measurement(subject, "qwen3_vl", (call,), 1, torch, "3.7.1", target, 2.5, 1.5, 2**30)
    Output(None, quiet=False).show(show_measurement(measured))
    output = " ".join(capsys.readouterr().out.split())
    assert (f"torch {torch} with triton 3.7.1 was never checked" in output) is doubted


@pytest.mark.parametrize(("words", "shown"), [([], ["R10 of pr43617"]), (["--execute"], ["interpreted"])])
def test_one_revision_is_shown_by_itself_and_interpreted_on_request(
    words: list[str], shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=(kernel(9856),))
    seen = Measurement(QWEN, "qwen3_vl:opaque", (call,), 1, "2.13.0", "3.7.1", "NVIDIA H200", 2.5, 1.5, 2**30)
    monkeypatch.setattr(kernels, "measure", lambda subjects: [seen for _ in subjects])

    def executed(measured: object) -> Document[ExitCode]:
        assert measured == [seen]
        yield Line("interpreted")
        return ExitCode.BROKEN

    monkeypatch.setattr(command, "_executed", executed)
    monkeypatch.setattr(command, "_subject", lambda _args, revision: replace(QWEN, revision=revision))
    code = main([*KERNELS, "--target", "h200", *words])
    assert code == (ExitCode.BROKEN if words else ExitCode.HOLDS)
    output = capsys.readouterr().out
    assert all(part in output for part in shown)
    assert ("fused_add" in output) is not bool(words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--code", "file"], "cannot write to 'file': File exists"),
        (["--code", "there", "--payload-cost"], "brings its own decoders and sizes: leave --code"),
    ],
)
def test_code_that_cannot_be_written_is_refused_before_anything_is_compiled(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernels, "measure", lambda _: pytest.fail("it was compiled"))
    (tmp_path / "file").touch()
    assert main(["kernels", *words]) == ExitCode.USAGE
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


@pytest.mark.skipif(bool(why_not()), reason="no triton that generates code for an H200")
@pytest.mark.parametrize("words", by_day([["--execute"], []]))
@pytest.mark.slow  # 10 s
def test_code_for_a_gpu_has_the_source_of_every_kernel(words: list[str], tmp_path: Path) -> None:
    sizes = ["--capacity", "16", "--tokens", "5", "--layers", "3"]
    assert main(["kernels", "--target", "h200", *sizes, *words, "--quiet", "--code", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    assert file.name == "pr43617-h200-graph0.py"
    text = file.read_text()
    generated = {name for name in kernels_in(text) if name.startswith("triton_")}
    assert generated
    assert text.count("@triton.jit") >= len(generated)


OTHER = replace(QWEN, revision="pr49397")


SLICE = kernel(1024, kernel="fused_slice", symbolic_points="8192")


def with_kernels(*kernels: Kernel) -> Measurement:
    call = GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=kernels)
    return Measurement(QWEN, "qwen3_vl:opaque", (call,), 1, "2.13.0", None, "cpu", 1.0, 0.5, 2**30)


def compared(one: Measurement, other: Measurement, capsys: pytest.CaptureFixture[str]) -> list[str]:
    Output(None, quiet=False).show(show_comparison([one, replace(other, subject=OTHER)]))
    return capsys.readouterr().out.splitlines()


def test_kernels_that_differ_are_printed_once_with_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    one = with_kernels(kernel(9856), kernel(9856), kernel(256, kernel="equal"), SLICE)
    other = with_kernels(kernel(1280), kernel(1280), kernel(256, kernel="equal"))
    lines = compared(one, other, capsys)
    assert "1 kernels are equal, 3 differ" in lines
    rows = [line.split() for line in lines if line.endswith(("fused_add", "fused_slice"))]
    assert rows[0] == ["2", "9,856", "1,280", "77", "10", "39,424", "5,120", "7.7x", "fused_add"]
    # It has no other side, and so no ratio to it.
    assert rows[1] == ["1", "1,024", "-", "8", "-", "4,096", "-", "fused_slice"]
    assert lines[-1] == "took 2.0 s (1.0 s of processor time), 1.0 GiB at most"


def test_equal_kernels_make_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = compared(with_kernels(kernel(256)), with_kernels(kernel(256)), capsys)
    assert "1 kernels are equal, 0 differ" in lines
    assert not [line for line in lines if line.startswith("times")]


def test_a_rule_is_printed_with_its_figure_where_it_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    Output(None, quiet=False).show(
        show_judgement(QWEN, Judgement(Rule.WORK, Verdict.FAIL, 8192, 77, "rows", "a slice"))
    )
    Output(None, quiet=False).show(
        show_judgement(QWEN, Judgement(Rule.WORK, Verdict.SKIP, detail="no kernel"))
    )
    broken, skipped = capsys.readouterr().out.splitlines()
    assert broken.startswith("R10 of pr43617: ")
    assert broken.endswith(", 8,192 rows against 77; a slice")
    assert skipped.endswith("; no kernel")
    assert "against" not in skipped


MISBEHAVING = "cases.selftest.workers.misbehaving"


SUBJECT = Subject("qwen3_vl", "reference", tokens=1, capacity=4, profile_tokens=4)


def kind_of(name: str) -> type[HarnessError]:
    return HarnessError if name == "refuse_always" else MachineError


def misbehave(monkeypatch: pytest.MonkeyPatch, remote: str, name: str) -> None:
    """Put a function that misbehaves in place of the one that `remote` names."""
    misbehaving = replace(getattr(kernels, remote), target=f"{MISBEHAVING}:{name}")
    monkeypatch.setattr(kernels, remote, misbehaving)


@pytest.mark.parametrize("name", ALWAYS)
def test_kernels_are_not_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, "_MEASURE", name)
    monkeypatch.setattr(kernels, "_SUBJECT_TIMEOUT_S", 0.5 if name == "hang_always" else 60.0)
    with pytest.raises(HarnessError, match=f"measuring kernels for target 'cpu': {ALWAYS[name]}") as caught:
        kernels.measure([SUBJECT])
    assert type(caught.value) is kind_of(name)


def test_an_error_of_ours_goes_on_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kernels, "_MEASURE", replace(kernels._MEASURE, target=f"{MISBEHAVING}:refuse_as_a_user")
    )
    with pytest.raises(UsageError, match="^unknown name 'x'$"):
        kernels.measure([SUBJECT])

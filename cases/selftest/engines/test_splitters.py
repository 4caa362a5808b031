"""R9 under an engine's own splitter: the parts of all ranks are the whole payload, padded or not."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_splitters import (
    BRIDGE,
    MBRIDGE,
    PARALLEL,
    PARALLEL_FILE,
    PATCH_FILE,
    SPLIT_FILE,
    megatron_files,
    swift_files,
)
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit.classes import judge_class, plan_splits
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.bind import DefinedClass
from deepstack_harness.engines.classes import define_class
from deepstack_harness.engines.known import engine_of, find_classes, open_source
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.play.source_work import observe_split

R9 = Rule.SHARDING
OFTEN_EQUAL = SPLIT_FILE.replace(
    "mine = slice(first[tp_rank], first[tp_rank + 1])",
    "wrong = (tp_rank + 1) % tp_size\n    mine = slice(first[wrong], first[wrong + 1])",
)
"""Each rank is given its neighbour's rows, which fit wherever both have as many."""
WHOLE = SPLIT_FILE.replace("[rows[mine] for rows in deepstack_visual_embeds]", "deepstack_visual_embeds")
IMPORTS = "        from swift.utils import no_such\n"
SHARES = SPLIT_FILE.replace(
    "first = _first_rows(visual_pos_masks, tp_size)",
    "count = len(deepstack_visual_embeds[0])\n"
    "    first = [rank * count // tp_size for rank in range(tp_size + 1)]",
)
"""Rows are split evenly, the mask by tokens."""


def found_in(root: Path, files: Mapping[str, str]) -> DefinedClass:
    """Return the only splitter of a source, defined here: these files are ours."""
    source = open_source(str(write(root, files)))
    (cut,) = find_classes(source)
    return define_class(source, cut)


def judged(found: DefinedClass) -> list[JudgedCase]:
    """Return every case of a splitter, judged by R9."""
    assert found.splits, found.refusals
    return [
        judge_case(planned, observe_split(planned.case, found.splits), (R9,))
        for planned in plan_splits(found.buffer)
    ]


def broken(cases: list[JudgedCase]) -> list[str]:
    """Return `RANKS STEPS` of each case that breaks R9."""
    return [f"{judged.case.arm.ranks} {judged.case.trace}" for judged in cases if R9 in judged.broken]


@pytest.mark.parametrize(
    "files",
    [swift_files(), megatron_files(), megatron_files(member=MBRIDGE)],
    ids=["ms-swift", "megatron-bridge", "mbridge"],
)
def test_a_right_splitter_passes_r9_in_every_case(tmp_path: Path, files: Mapping[str, str]) -> None:
    cases = judged(found_in(tmp_path, files))
    assert {verdict for case in cases for verdict in case.verdicts} == {(R9, Verdict.PASS)}
    assert len({judged.case.id for judged in cases}) == len(cases) == 15


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OFTEN_EQUAL, "rank 0 of 2 was given 24 wrong rows over 3 levels, first row 0 of level 0"),
        (WHOLE, "RuntimeError: rank 0 of 2: The size of tensor a (8)"),
        (SHARES, "RuntimeError: rank 0 of 2: "),
        (SPLIT_FILE.replace("or visual_pos_masks is None", ""), "AttributeError: rank 0 of 2: "),
    ],
    ids=["neighbour", "whole", "shares", "text"],
)
def test_a_wrong_splitter_breaks_r9(tmp_path: Path, text: str, message: str) -> None:
    cases = judged(found_in(tmp_path, megatron_files(text)))
    judgement, *_ = next(judged.judgements for judged in cases if R9 in judged.broken)
    assert message in judgement.detail


def test_rows_split_evenly_are_right_where_all_tokens_are_visual(tmp_path: Path) -> None:
    assert not any("set 16;" in name for name in broken(judged(found_in(tmp_path, megatron_files(SHARES)))))


@pytest.mark.parametrize(
    ("files", "cases"),
    [
        (swift_files(parallel=PARALLEL_FILE.replace("self._mine(dense)[mask]", "mm_embeds")), 15),
        (swift_files(parallel=PARALLEL_FILE.replace("-rows.shape[1] % self.world_size", "0")), 3),
        (swift_files(patch=PATCH_FILE.replace("if visual_pos_masks is None:", "if False:")), 3),
    ],
    ids=["mask alone", "unpadded", "no mask"],
)
def test_a_wrong_patch_breaks_r9(tmp_path: Path, files: Mapping[str, str], cases: int) -> None:
    assert len(broken(judged(found_in(tmp_path, files)))) == cases


def test_packages_are_recognised_by_their_folders(tmp_path: Path) -> None:
    sources = (swift_files(), megatron_files(), megatron_files(member=MBRIDGE))
    for name, files in zip(("ms-swift", "megatron-bridge", "mbridge"), sources, strict=True):
        assert engine_of(open_source(str(write(tmp_path / name, files)))).package.name == name


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            swift_files(parallel=PARALLEL_FILE.replace("mm_tokens", "rows")),
            f"{PARALLEL}:6: class SequenceParallel has no pad_and_split_mm_tokens",
        ),
        (
            swift_files(parallel=PARALLEL_FILE.replace("self.world_size", "self.ranks")),
            "has no attribute 'ranks'",
        ),
        (
            megatron_files(SPLIT_FILE.replace("torch.tensor(counts)", "PackedSeqParams(counts)")),
            "utils.PackedSeqParams is not there and is read",
        ),
        (
            swift_files(parallel=PARALLEL_FILE.replace("class SequenceParallel", "class Parallel")),
            " has no class SequenceParallel in swift/sequence_parallel or swift/trainers",
        ),
        (
            swift_files(patch=PATCH_FILE.replace("as ranks\n", f"as ranks\n{IMPORTS}", 1)),
            "swift.utils.no_such is not there and is read",
        ),
    ],
    ids=["method", "attribute", "import", "class", "inner import"],
)
def test_what_moved_is_named(tmp_path: Path, files: Mapping[str, str], message: str) -> None:
    (refusal,) = found_in(tmp_path, files).refusals
    assert message in str(refusal)


@pytest.mark.slow  # 3 s
def test_a_command_judges_splitters_next_to_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = write(tmp_path / "wrong", megatron_files(OFTEN_EQUAL))
    right = write(tmp_path / "right", swift_files())
    assert main(["audit", "--source", str(wrong), "--source", str(right), "--json", "-"]) == ExitCode.BROKEN
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["rule"] for row in rows} == {"R9"}
    assert [row["verdict"] for row in rows] == ["FAIL", "PASS"]
    assert [row["model_class"] for row in rows] == ["split_deepstack_embs", "_patch_deepstack_process"]
    assert rows[0]["where"].startswith(f"{BRIDGE}:11-")
    assert rows[0]["reach"] == "unknown"


def test_a_splitter_of_another_name_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = megatron_files(SPLIT_FILE.replace("split_deepstack_embs", "split_embs"))
    assert main(["audit", "--source", str(write(tmp_path, files))]) == ExitCode.BROKEN
    assert "split_embs is given 'deepstack_visual_embeds'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_splitter_that_ends_the_process_breaks_r9(tmp_path: Path) -> None:
    text = SPLIT_FILE.replace(
        "first = _first_rows", "import os\n    tp_rank == 1 and os._exit(3)\n    first = _first_rows"
    )
    with SourceWorker(str(write(tmp_path, megatron_files(text)))) as worker:
        (found,) = worker.classes()
        (row,) = judge_class(found, worker).rows
    assert (row.verdict, row.unit) == (Verdict.FAIL, "calls")
    assert "raised exit: " in row.detail


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("release", ["ms-swift==4.6.0", "megatron-bridge==0.3.1"])
def test_released_splitters(release: str) -> None:
    try:
        with SourceWorker(release) as worker:
            (found,) = worker.classes()
            (row,) = judge_class(found, worker).rows
    except MachineError as error:
        pytest.skip(f"the package index does not answer: {error}")
    assert (row.rule, row.verdict) == (R9, Verdict.PASS), row.detail


@pytest.mark.network
@pytest.mark.slow
def test_a_release_without_deepstack_is_reported_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["audit", "--source", "mbridge==0.15.1"])
    output = capsys.readouterr().err
    if code == ExitCode.MACHINE:
        pytest.skip(f"the package index does not answer: {output}")
    assert code == ExitCode.USAGE
    assert "mbridge 0.15.1 has no class with a deepstack buffer" in output

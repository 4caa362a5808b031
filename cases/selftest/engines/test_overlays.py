"""Plugins over vLLM's classes: bound with their patches, judged by every rule, and shared among ranks."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cases.selftest.engines.in_process_worker import InProcessWorker
from cases.selftest.engines.synthetic_plugins import (
    ASKS_CONTEXT,
    CHUNKS,
    FIRST_ROWS,
    OMNI,
    OMNI_PATCHER,
    PADS,
    VL,
    VL_PATCHER,
    WRAP,
    ascend_files,
    over,
    tpu_files,
    vllm_files,
)
from cases.selftest.engines.synthetic_vllm import MODELS, write
from deepstack_harness.audit import classes
from deepstack_harness.audit.audited_source import located
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class, judge_split
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Evidence, Row, Verdict
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.kinds.tpu_inference_model import STAND_INS as TPU_STAND_INS
from deepstack_harness.engines.kinds.tpu_inference_model import PatchedClass
from deepstack_harness.engines.kinds.vllm_ascend_model import CALLS as ASCEND_CALLS
from deepstack_harness.engines.kinds.vllm_ascend_model import STAND_INS as ASCEND_STAND_INS
from deepstack_harness.engines.kinds.vllm_omni import VLLM_OMNI
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import ExitCode, UsageError

Capture = pytest.CaptureFixture[str]


def judged(text: str) -> Iterator[tuple[str, ClassVerdicts]]:
    """Yield every class of a source with its verdicts."""
    with InProcessWorker(text) as worker:
        for found in worker.classes():
            assert found.can_be_judged, found.ways.refusals
            yield found.model_class, located(judge_class(found, worker), worker.source, found)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClassVerdicts]:
    """Both classes under a plugin that packs only the payload of the first."""
    return dict(judged(over(tmp_path_factory.mktemp("tpu"), tpu_files())))


def row_of(verdicts: ClassVerdicts, rule: Rule, regime: Regime) -> Row:
    """Return the row of a rule in one regime."""
    (row,) = (row for row in verdicts.rows if row.rule is rule and row.regime is regime)
    return row


BASE_VL = f"{MODELS}/qwen3_vl.py"


def test_a_payload_that_is_no_argument_is_lost_in_a_compiled_step(patched: dict[str, ClassVerdicts]) -> None:
    row = row_of(patched[OMNI], Rule.BOUNDARY, Regime.CAPTURED)
    assert row.verdict is Verdict.FAIL
    assert "the payload is no argument of the jitted step" in row.detail
    assert row.reach == "default"
    assert row.where is not None
    assert row.where.startswith(f"{OMNI_PATCHER}:")
    assert (Regime.CAPTURED, Rule.BOUNDARY) not in patched[OMNI].effects


def test_a_packed_payload_reaches_the_compiled_step(patched: dict[str, ClassVerdicts]) -> None:
    assert row_of(patched[VL], Rule.BOUNDARY, Regime.CAPTURED).verdict is Verdict.PASS
    assert not patched[VL].broken_in(Regime.CAPTURED)


def test_a_payload_that_nothing_erases_is_reported(patched: dict[str, ClassVerdicts]) -> None:
    assert Rule.CLEAR in patched[OMNI].broken_in(Regime.LIVE)
    assert row_of(patched[OMNI], Rule.CLEAR, Regime.LIVE).reach == "flag: JAX_DISABLE_JIT=1"
    assert Rule.CLEAR in patched[VL].kept


def test_rows_are_those_that_were_set(patched: dict[str, ClassVerdicts]) -> None:
    for verdicts in patched.values():
        row = row_of(verdicts, Rule.BOUNDARY, Regime.LIVE)
        assert (row.value, row.trace) == (21, "cap 16: set 9; get 16")
        assert {Rule.STRUCTURE, Rule.FRESHNESS, Rule.PLACEMENT} <= verdicts.kept
        assert row_of(verdicts, Rule.ADDRESS, Regime.LIVE).verdict is Verdict.SKIP


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """The row of R9 for each way to split a payload."""
    return {
        split: _shared(over(tmp_path_factory.mktemp("ascend"), ascend_files(split), vllm_files(VL)))
        for split in (CHUNKS, FIRST_ROWS)
    }


def _shared(text: str) -> Row:
    with InProcessWorker(text) as worker:
        (found,) = worker.classes()
        verdicts = ClassVerdicts(worker.source.label, found.model_class, (judge_split(found, worker, {}),))
        (row,) = located(verdicts, worker.source, found).rows
        return row


def test_chunks_are_right_only_on_padded_steps(shared: dict[str, Row]) -> None:
    row = shared[CHUNKS]
    assert row.verdict is Verdict.FAIL
    assert row.trace in {"cap 16: set 10; get 10", "cap 16: set 9; get 9"}
    assert row.reach == "latent"
    assert "4 steps padded to a multiple of the ranks kept it" in row.detail
    assert row.where == f"{WRAP}:20-22"


def test_rows_of_another_rank_are_reported(shared: dict[str, Row]) -> None:
    row = shared[FIRST_ROWS]
    assert row.verdict is Verdict.FAIL
    assert row.reach is not None
    assert row.reach.startswith("flag: sequence parallelism")


def test_a_flag_that_moved_is_not_taken_for_one_that_is_off(tmp_path: Path) -> None:
    text = ascend_files()[WRAP].replace("enable_sp()", "shares()") + ASKS_CONTEXT
    (found,) = classes_of(open_source(over(tmp_path, {WRAP: text}, vllm_files(VL))))
    assert found.methods is None
    assert "has no moved here" in found.refusals[-1].text
    for flag in ("flash_comm_v1_enabled", "sp_enabled"):
        files = {WRAP: text.replace("moved", flag)}
        (found,) = classes_of(open_source(over(tmp_path / flag, files, vllm_files(VL))))
        assert found.methods is not None


def test_one_rank_is_given_all_rows(tmp_path: Path) -> None:
    (found,) = classes_of(open_source(over(tmp_path, ascend_files(), vllm_files(VL))))
    assert found.refusals == ()
    assert found.methods is not None
    assert found.forward is not None


def test_a_class_of_the_base_that_no_patch_names_is_left_out(tmp_path: Path) -> None:
    found = classes_of(open_source(over(tmp_path, ascend_files())))
    assert [item.found.model_class for item in found] == [VL]


def test_a_derived_class_is_patched_too(tmp_path: Path) -> None:
    files = vllm_files(VL)
    member = next(name for name in files if name.endswith("qwen3_vl.py"))
    files[member] += f"\n\nclass Derived({VL}):\n    pass\n"
    classes = classes_of(open_source(over(tmp_path, tpu_files(), files)))
    found = {item.found.model_class: item for item in classes}
    assert found["Derived"].methods is not None
    assert found["Derived"].found.methods is found[VL].found.methods
    assert OMNI not in {name for name, item in found.items() if item.methods}


def test_the_source_is_named_after_both(tmp_path: Path) -> None:
    source = open_source(over(tmp_path, tpu_files()))
    assert source.label == f"tpu-inference at {tmp_path}/plugin over vllm at {tmp_path}/base (0.32.0)"
    assert engine_of(source).package.name == "tpu-inference"


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("Dockerfile", "ARG VLLM_TAG=v0.31.0\n"),
        ("PKG-INFO", "Name: vllm-ascend\nRequires-Dist: vllm==0.31.0\n"),
        ("PKG-INFO", "Name: vllm-ascend\nRequires-Dist: vllm (==0.31.0) ; python_version > '3'\n"),
    ],
)
def test_a_pinned_release_is_the_base(member: str, text: str, tmp_path: Path) -> None:
    root = write(tmp_path, {WRAP: ascend_files()[WRAP], member: text})
    assert open_source(str(root)).label == f"vllm-ascend at {root} over vllm 0.31.0"


@pytest.mark.parametrize("text", ["", "ARG VLLM_TAG=main\n", "ARG VLLM_TAG=v0.31.0-dirty junk\n"])
def test_without_a_pin_a_base_is_required(text: str, tmp_path: Path) -> None:
    root = write(tmp_path, {WRAP: ascend_files()[WRAP], "Dockerfile": text})
    with pytest.raises(UsageError, match="pins no version of it: give --base vllm==VERSION"):
        open_source(str(root))


def test_a_path_may_hold_the_word(tmp_path: Path) -> None:
    root = write(tmp_path / "one over two", vllm_files(VL))
    assert open_source(str(root)).package == "vllm"


@pytest.mark.parametrize(
    ("member", "before", "after", "message"),
    [
        (VL_PATCHER, "def apply_qwen3_vl_patches", "def moved", "defines no function apply_qwen3_vl_patches"),
        (VL_PATCHER, "_patched_forward", "moved_forward", "defines no function _patched_forward"),
        (VL_PATCHER, "as_own(v) for", "gone(v) for", "name 'gone' is not defined"),
        (WRAP, "._get_deepstack_input_embeds = ", ".other = ", f"assigns to no method of {VL}"),
    ],
)
def test_a_patch_that_moved_is_not_driven(
    member: str, before: str, after: str, message: str, tmp_path: Path
) -> None:
    files = ascend_files() if member == WRAP else tpu_files()
    assert before in files[member]
    text = over(tmp_path, {**files, member: files[member].replace(before, after)}, vllm_files(VL))
    found, *_ = classes_of(open_source(text))
    assert (found.found.model_class, found.methods, found.forward) == (VL, None, None)
    assert message in found.refusals[-1].text
    assert after.startswith("gone") or member in str(found.refusals[-1])


def test_a_file_that_moved_is_named(tmp_path: Path) -> None:
    files = {"vllm_ascend/patch/moved.py": ascend_files()[WRAP]}
    (found,) = classes_of(open_source(over(tmp_path, files, vllm_files(VL))))
    assert found.methods is None
    assert f"has no {WRAP}" in str(found.refusals[-1])


def test_a_base_without_a_class_is_reported(tmp_path: Path) -> None:
    classes = classes_of(open_source(over(tmp_path, tpu_files(), vllm_files(VL))))
    found = {item.found.model_class: item for item in classes}
    assert found[VL].methods is not None
    assert found[OMNI].methods is None
    assert f"has no class {OMNI} that keeps a deepstack payload" in found[OMNI].refusals[-1].text


def _spoken(arguments: list[str], capsys: Capture) -> str:
    assert main(["audit", *arguments]) == ExitCode.USAGE
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_base_of_the_wrong_kind_is_reported(tmp_path: Path, capsys: Capture) -> None:
    plugin = str(write(tmp_path / "plugin", tpu_files()))
    base = str(write(tmp_path / "base", vllm_files()))
    other = str(write(tmp_path / "other", {"sglang/srt/models/a.py": ""}))
    assert "is a source of sglang: no --source is one" in _spoken(
        ["--source", plugin, "--base", other], capsys
    )
    assert "is a source of vllm: no --source is one" in _spoken(["--source", other, "--base", base], capsys)
    assert "or be compared with" in _spoken(["--source", plugin, "--source", base, "--base", base], capsys)
    assert "changes no classes of another package" in _spoken(["--source", f"{base} over {base}"], capsys)
    assert "changes classes of vLLM, not of sglang" in _spoken(["--source", f"{plugin} over {other}"], capsys)
    assert "names no two sources" in _spoken(["--source", f"{plugin} over "], capsys)


def test_an_empty_base_is_reported(tmp_path: Path, capsys: Capture) -> None:
    empty = {"vllm/model_executor/models/other.py": "deepstack = 0\n"}
    error = _spoken(["--source", over(tmp_path, tpu_files(), empty)], capsys)
    assert "has no class with a deepstack buffer" in error


@pytest.mark.parametrize("command", [["repro", "43602"], ["fuzz", "--examples", "1"]])
def test_other_commands_name_the_one_that_judges(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main([*command, "--source", over(tmp_path, tpu_files())]) == ExitCode.USAGE
    assert "changes classes of vLLM: 'audit --source SOURCE' judges them" in capsys.readouterr().err


def test_both_are_listed_as_driven(capsys: Capture) -> None:
    assert main(["list", "engines"]) == ExitCode.HOLDS
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    for name in ("tpu-inference", "vllm-ascend"):
        assert "a plugin over vLLM's" in lines[name]
        assert "not judged" not in lines[name]


@pytest.mark.parametrize(("argued", "reach"), [(True, "latent"), (False, "unknown")])
def test_an_unequal_split_that_pads_breaks_only_unpadded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argued: bool, reach: str
) -> None:
    if not argued:
        monkeypatch.setattr(classes, "latent_argument", lambda *_: None)
    row = _shared(over(tmp_path, ascend_files(PADS), vllm_files(VL)))
    assert row.reach == reach
    assert row.evidence == (Evidence.READ if argued else None)
    assert "4 steps padded to a multiple of the ranks kept it" in row.detail


@pytest.mark.network
@pytest.mark.slow
def test_released_patches_of_tpu_inference() -> None:
    found = dict(judged_as_far("tpu-inference==0.32.0 over vllm==0.32.0"))
    assert set(found[VL].broken_in(Regime.LIVE)) == {Rule.BOUNDARY, Rule.CAPACITY, Rule.REJECTION}
    assert not found[VL].broken_in(Regime.CAPTURED)
    assert set(found[OMNI].broken_in(Regime.LIVE)) == {
        Rule.BOUNDARY,
        Rule.CAPACITY,
        Rule.CLEAR,
        Rule.REJECTION,
    }
    assert set(found[OMNI].broken_in(Regime.CAPTURED)) == {Rule.BOUNDARY}
    assert not any(verdicts.rules({Verdict.FAIL}) for verdicts in found.values())


@pytest.mark.network
@pytest.mark.slow
def test_the_released_wrap_of_vllm_ascend() -> None:
    found = dict(judged_as_far("vllm-ascend==0.23.0.post1"))
    row = row_of(found[VL], Rule.SHARDING, Regime.LIVE)
    assert row.verdict is Verdict.XFAIL
    assert row.reach == "latent"
    assert not found[VL].rules({Verdict.FAIL})


def judged_as_far(text: str) -> Iterator[tuple[str, ClassVerdicts]]:
    """Yield every class of a source that is not refused, with its verdicts."""
    with SourceWorker(text) as worker:
        for found in worker.classes():
            if found.model_class in {VL, OMNI}:
                yield found.model_class, judge_class(found, worker)


def test_the_context_of_a_step_knows_that_ranks_share_it_under_both_names() -> None:
    context = ASCEND_STAND_INS["_EXTRA_CTX"]
    for ranks in (1, 2):
        with ASCEND_CALLS.as_rank(0, ranks):
            shares = [getattr(context, flag) for flag in ("flash_comm_v1_enabled", "sp_enabled")]
        assert shares == [ranks == 2] * 2


@pytest.mark.parametrize(
    ("applied", "message"),
    [
        ("[][0]", "IndexError: list index out of range"),
        ("_EXTRA_CTX.moved", "self._set_deepstack_input_embeds is not there"),
    ],
)
def test_a_patch_that_cannot_be_applied_is_reported(tmp_path: Path, applied: str, message: str) -> None:
    text = f"{ascend_files()[WRAP]}{ASKS_CONTEXT}\n{VL}._set_deepstack_input_embeds = {applied}\n"
    (found,) = classes_of(open_source(over(tmp_path, {WRAP: text}, vllm_files(VL))))
    assert (found.methods, found.forward) == (None, None)
    assert str(found.refusals[-1]).endswith(message)


@pytest.mark.parametrize(
    ("member", "before", "after", "message"),
    [
        (BASE_VL, "self.deepstack_input_embeds", "self.rows", "keeps no list of rows per level"),
        (VL_PATCHER, "jnp.stack", "jnp.dstack", "type object 'JaxNumpy' has no attribute 'dstack'"),
    ],
)
def test_what_is_not_in_a_patched_class_is_reported(
    member: str, before: str, after: str, message: str, tmp_path: Path
) -> None:
    files = {**tpu_files(), **vllm_files(VL)}
    assert before in files[member]
    files[member] = files[member].replace(before, after)
    plugin = {name: files[name] for name in tpu_files()}
    base = {name: files[name] for name in vllm_files(VL)}
    found, *_ = classes_of(open_source(over(tmp_path, plugin, base)))
    assert (found.found.model_class, found.methods, found.forward) == (VL, None, None)
    assert message in found.refusals[-1].text
    assert BASE_VL in found.refusals[-1].file


def test_a_clear_of_no_rows_leaves_the_payload_and_any_other_erases_it(tmp_path: Path) -> None:
    found, *_ = classes_of(open_source(over(tmp_path, tpu_files(), vllm_files(VL))))
    assert isinstance(found.methods, PatchedClass)
    buffer = found.methods(8, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
    buffer.set(torch.ones(2, 3, 5))
    for tokens, stays in ((0, True), (3, False)):
        buffer.clear(tokens)
        levels = buffer.get(3)
        assert levels is not None
        assert bool(torch.stack(levels).any()) is stays


@pytest.mark.parametrize(
    ("stand_ins", "changes_its_argument"),
    [(VLLM_OMNI.files.parts.stand_ins, True), (TPU_STAND_INS, False)],
    ids=["vllm-omni", "tpu-inference"],
)
def test_visual_rows_are_merged_into_the_marked_rows(
    stand_ins: Mapping[str, Any], changes_its_argument: bool
) -> None:
    """vLLM merges in place; arrays of JAX are values."""
    embeds, visual = torch.zeros(4, 2), torch.ones(2, 2)
    marked = torch.tensor([False, True, False, True])
    merged = stand_ins["_merge_multimodal_embeddings"](embeds, [visual], marked)
    assert merged[:, 0].tolist() == [0, 1, 0, 1]
    assert bool(embeds.any()) is changes_its_argument


def test_no_step_of_vllm_omni_has_audio_between_its_frames() -> None:
    stand_ins: Mapping[str, Any] = VLLM_OMNI.files.parts.stand_ins
    assert stand_ins["check_interleaved_audio_video"](None, 1) is False

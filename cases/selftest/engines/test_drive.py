"""Calls of the classes' own embed_input_ids and forward, over a language model that records."""

import linecache
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cases.by_day import by_day
from cases.released import released
from cases.selftest.engines.bound_forward import bind_forward, forward_of
from cases.selftest.engines.synthetic_vllm import (
    COUNTED,
    GRANITE,
    HELPERS,
    QWEN,
    SCATTERED,
    UTILS,
    line_of,
    write_driven,
)
from cases.selftest.models.sequences import SEQUENCES
from deepstack_harness.catalogue.orders import VLLM_ORDERS, Order, reach_of
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.engines.bound_class import ForwardClass, MethodsClass
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.model_class import ModelClass
from deepstack_harness.engines.stand_ins import ForwardBuffer
from deepstack_harness.errors import StepUnavailable, UsageError
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play

LEVELS, HIDDEN = 3, 8
CPU = torch.device("cpu")
RECORDS_TEXT = COUNTED.replace(
    "            return text\n",
    "            self.deepstack_input_embeds[0][: len(text)] = 5.0\n            return text\n",
)
"""A text-only step leaves a trace in level 0: that shows when one was embedded, and over how many tokens."""


def driven(root: Path, model: str = "qwen3_vl", **files: str) -> ForwardClass:
    """A synthetic class; `qwen=`, `granite=` and `utils=` are other texts for the files."""
    members = {"qwen": QWEN, "granite": GRANITE, "utils": UTILS}
    tree = write_driven(root, {members[name]: text for name, text in files.items()})
    return forward_of(open_source(str(tree)), model)


def made(of: ForwardClass, capacity: int = 16, dtype: torch.dtype = torch.float32) -> ForwardBuffer:
    return of(capacity, HIDDEN, LEVELS, dtype=dtype, device=CPU)


def payload(tokens: int, levels: int = LEVELS) -> Tensor:
    return 1.0 + torch.arange(levels * tokens * HIDDEN, dtype=torch.float32).view(levels, tokens, HIDDEN)


def read(buffer: ForwardBuffer, tokens: int) -> tuple[Tensor, ...]:
    answer = buffer.get(tokens)
    assert answer is not None
    return answer


def case_of(trace: str, of: ForwardClass | MethodsClass) -> Case:
    return Case("qwen3_vl", of.ref, Trace.parse(trace), EAGER)


def observe(model: Model, trace: str, of: ForwardClass | MethodsClass) -> Observation:
    return play(case_of(trace, of), model, of)


def judge(model: Model, trace: str, of: ForwardClass) -> dict[Rule, Judgement]:
    case = case_of(trace, of)
    return {said.rule: said for said in judge_all(ObservedCase(case, play(case, model, of)))}


@pytest.mark.parametrize("model", ["qwen3_vl", "granite4_vision"])
def test_a_visual_step_reaches_the_language_model_level_by_level(tmp_path: Path, model: str) -> None:
    buffer = made(driven(tmp_path, model))
    buffer.set(payload(9))
    levels = read(buffer, 12)
    assert [level.shape for level in levels] == [(12, HIDDEN)] * LEVELS
    assert torch.equal(torch.stack(levels)[:, :9], payload(9))
    assert not torch.stack(levels)[:, 9:].any()


@pytest.mark.parametrize("model", ["qwen3_vl", "granite4_vision"])
def test_the_class_clears_in_its_forward_and_the_answer_has_what_was_shown(
    tmp_path: Path, model: str
) -> None:
    buffer = made(driven(tmp_path, model))
    buffer.set(payload(9))
    shown = torch.stack(read(buffer, 9)).clone()
    buffer.clear(9)
    assert shown.any()
    assert not torch.stack(read(buffer, 16)).any()


def test_answers_lie_at_one_address_as_long_as_the_storage_of_the_class_does(tmp_path: Path) -> None:
    buffer = made(driven(tmp_path))
    before = [level.data_ptr() for level in read(buffer, 16)]
    buffer.set(payload(9))
    assert [level.data_ptr() for level in read(buffer, 9)] == before
    buffer.set(payload(20))
    assert {level.data_ptr() for level in read(buffer, 20)}.isdisjoint(before)
    assert buffer.capacity == 20


def test_placement_is_the_ambient_one(tmp_path: Path) -> None:
    buffer = made(driven(tmp_path), dtype=torch.bfloat16)
    assert {level.dtype for level in read(buffer, 4)} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("trace", "marked"),
    [
        ("cap 16: forward 8", [8]),
        ("cap 16: profile 8", [0]),
        ("cap 16: get 8", [0]),
        ("cap 16: set 3; forward 8", [0]),
        ("cap 16: set 3; forward 8; forward 4", [0, 4]),
        ("cap 16: set 3; get 4; clear 4; get 4; clear 4; forward 8; profile 8", [0, 0, 8, 0]),
        ("cap 16: set 0; get 4", [1]),
    ],
)
def test_a_step_without_visual_tokens_embeds_text_and_a_profile_run_does_not(
    tmp_path: Path, qwen: Model, trace: str, marked: list[int]
) -> None:
    steps = observe(qwen, trace, driven(tmp_path, qwen=RECORDS_TEXT)).steps
    answers = [facts.answer for facts in steps if facts.answer]
    unknown = [sum(run.rows for run in answer.rows[0] if run.payload is None) for answer in answers]
    assert unknown == marked


def test_the_text_only_step_that_forgets_its_rows_is_caught_and_the_owner_named(
    tmp_path: Path, qwen: Model
) -> None:
    trace = "cap 16: set 9 request=a; set 0 request=b; forward 16; forward 16; forward 16"
    judgement = judge(qwen, trace, driven(tmp_path, "granite4_vision"))[Rule.FRESHNESS]
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 81)  # 9 rows of 3 levels, three times
    assert "payload 1 (request a, replaced at step 2)" in judgement.detail


def test_in_the_order_of_the_scheduler_nothing_is_broken(tmp_path: Path, qwen: Model) -> None:
    trace = "cap 16: profile 16; set 9; forward 16; forward 16; set 3; forward 4; forward 1"
    for model in ("qwen3_vl", "granite4_vision"):
        said = judge(qwen, trace, driven(tmp_path, model))
        assert {Verdict.FAIL, Verdict.ERROR}.isdisjoint(judgement.verdict for judgement in said.values())
        assert said[Rule.CLEAR].verdict is Verdict.PASS


def test_two_micro_batches_leave_rows_that_the_next_step_reads(tmp_path: Path, qwen: Model) -> None:
    trace = "cap 16: set 8; get 4; clear 4; get 4; clear 4; forward 8"
    judgement = judge(qwen, trace, driven(tmp_path))[Rule.CLEAR]
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 12)


def test_what_the_class_raises_is_a_fact_with_its_own_file_and_line(tmp_path: Path, qwen: Model) -> None:
    text = COUNTED.replace(
        "        return IntermediateTensors(",
        "        assert count != 8\n        return IntermediateTensors(",
    )
    (facts,) = observe(qwen, "cap 16: get 8", driven(tmp_path, qwen=text)).steps
    assert facts.raised is not None
    assert (facts.raised.call, facts.raised.type) == ("get", "AssertionError")
    assert facts.raised.where == f"{tmp_path / QWEN}:{line_of(text, 'assert count')}"


def test_what_a_text_only_embedding_raises_is_a_fact_too(tmp_path: Path, qwen: Model) -> None:
    text = COUNTED.replace(
        "            return text\n", "            assert len(text) != 5\n            return text\n"
    )
    (facts,) = observe(qwen, "cap 16: forward 5", driven(tmp_path, qwen=text)).steps
    assert facts.raised is not None
    assert facts.raised.where == f"{tmp_path / QWEN}:{line_of(text, 'assert len')}"


def test_a_clear_of_its_own_and_a_resize_do_not_exist(tmp_path: Path) -> None:
    buffer = made(driven(tmp_path))
    buffer.set(payload(9))
    with pytest.raises(StepUnavailable, match="clears inside its own forward only"):
        buffer.clear(5)
    buffer.get(9)
    with pytest.raises(StepUnavailable, match="clears inside its own forward only"):
        buffer.clear(5)
    with pytest.raises(StepUnavailable, match="never resizes"):
        buffer.resize(20)
    with pytest.raises(StepUnavailable, match="fewer than 0 tokens"):
        buffer.get(-1)


def test_helpers_are_the_sources_own_under_their_own_lines(tmp_path: Path) -> None:
    text = HELPERS.replace("    into[where] =", "    assert len(where) != 7\n    into[where] =")
    buffer = made(driven(tmp_path, utils=text))
    buffer.set(payload(6))
    with pytest.raises(AssertionError) as caught:
        buffer.set(payload(7))
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(tmp_path / UTILS), line_of(text, "assert len(where)"))


def test_tracebacks_quote_model_and_helper_also_inside_a_wheel(tmp_path: Path) -> None:
    tree = write_driven(tmp_path / "tree")
    wheel = tmp_path / "vllm-0.22.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in tree.rglob("*.py"):
            archive.write(path, path.relative_to(tree))
    forward_of(open_source(str(wheel)))
    for member, text, fragment in ((QWEN, COUNTED, "def forward"), (UTILS, HELPERS, "def put_rows")):
        assert fragment in linecache.getline(f"{wheel}/{member}", line_of(text, fragment))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("", "", r"rank_of_everything is not there and is read"),
        (
            "vllm.everything",
            "transformers",
            r"utils\.py:\d+: .* is not there and is ",
        ),
        (
            "return rank_of_everything(rows)",
            "return TABLE[0]\n\n\nTABLE = [1 // 0]",
            r"TABLE is not there and is read",
        ),
    ],
    ids=["file", "package", "definition"],
)
def test_a_helper_that_cannot_be_supplied_is_refused_only_where_it_is_used(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    utils = HELPERS.replace(old, new) if old else HELPERS
    driven(tmp_path, utils=utils)
    text = COUNTED.replace("place(rows,", "synchronise(rows)\n            place(rows,")
    line = line_of(text, "synchronise(rows)")
    with pytest.raises(UsageError, match=rf"qwen3_vl\.py:{line}: .* of its package: .*{why}"):
        driven(tmp_path, qwen=text, utils=utils)


def test_a_helper_that_its_module_passes_on_is_found_where_it_is_defined(tmp_path: Path) -> None:
    passed = "from vllm.more import put_rows, rank_of_everything as synchronise\n"
    tree = write_driven(tmp_path, {UTILS: passed, "vllm/more.py": HELPERS})
    buffer = made(forward_of(open_source(str(tree))))
    buffer.set(payload(4))
    assert torch.equal(torch.stack(read(buffer, 4)), payload(4))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def embed_input_ids", "def embed", r"qwen3_vl\.py:\d+: class Qwen3VL\w+ has no embed_input_ids"),
        ("self.language_model.model(", "self.language_model.run(", r"py:\d+: .* has no attribute 'run'"),
        ("return IntermediateTensors(", "return IntermediateTensors(1, 2, 3, ", r"py:\d+: .* takes .* but 5"),
        ("config.text_config.hidden_size", "config.text_config.width", "has no .*text_config.width"),
        ("self.width = ", "self.wide = ", r"py:\d+: Qwen3VL\w+\.\w+ cannot be run .* no attribute 'width'"),
        ("get_pp_group().is_first_rank", "get_pp_group().size()", r"py:\d+: .*'FirstRank' .* 'size'"),
    ],
)
def test_what_only_the_whole_vllm_has_is_refused_in_a_sentence(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        driven(
            tmp_path,
            qwen=COUNTED.replace(old, new).replace("import get_pp_group().size", "import get_pp_group"),
        )


def test_a_class_that_loses_its_payload_is_judged_for_it(tmp_path: Path, qwen: Model) -> None:
    text = SCATTERED.replace("self.kept = [torch.zeros(rows, width) for _ in self.layers]", "self.kept = []")
    of = driven(tmp_path, "granite4_vision", granite=text)
    judged = judge(qwen, "cap 16: profile 16; set 9; forward 9", of)
    assert {rule for rule, judgement in judged.items() if judgement.verdict is Verdict.FAIL} == {
        Rule.STRUCTURE
    }


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    source = open_source(str(write_driven(tmp_path)))
    with pytest.raises(UsageError, match="unknown model 'llava'; known are qwen3_vl, "):
        methods_of(source, "llava")


def test_a_class_that_has_its_methods_from_another_file_is_driven_with_its_own_init(tmp_path: Path) -> None:
    text = """\
from .qwen3_vl import Qwen3VLForConditionalGeneration


class Larger(Qwen3VLForConditionalGeneration):
    def __init__(self, *, vllm_config, prefix="model"):
        super(Qwen3VLForConditionalGeneration, self).__init__()
        self.levels, self.width, self.filled = 3, 8, 0
        self.deepstack_input_embeds = [torch.zeros(5, 8) for _ in range(3)]


import torch
"""
    member = QWEN.replace("qwen3_vl", "larger")
    tree = write_driven(tmp_path, {member: text})
    of = bind_forward(open_source(str(tree)), ModelClass(member, "Larger", since="1.0"))
    buffer = made(of)
    buffer.set(payload(4))
    assert (of.model_class, buffer.capacity) == ("Larger", 5)
    assert torch.equal(torch.stack(read(buffer, 4)), payload(4))


DBO = "flag: --enable-dbo (V1 runner)"
SP = "flag: --compilation-config.pass_config.enable_sp and a budget that is no multiple of the ranks"
RELEASES = ["0.19.1", "0.22.1", "0.20.0", "0.23.0", "0.33.0"]
_ANSWERING_NONE = ("0.20.0", "0.22.1")


def gets(model: Model, trace: str, of: ForwardClass | MethodsClass) -> list[object]:
    """Rows and their owners of every get, or what it raised and where."""
    facts = observe(model, trace, of).steps
    steps = zip(Trace.parse(trace), facts, strict=True)
    return [
        (facts.answer and (facts.answer.structure, facts.answer.rows), facts.raised)
        for step, facts in steps
        if step.op is Op.GET
    ]


@pytest.mark.network
@pytest.mark.parametrize("model", VLLM.by_methods)
@pytest.mark.parametrize("release", by_day(reversed(RELEASES)))
def test_a_released_class_in_its_own_order_agrees_with_its_methods(
    qwen: Model, release: str, model: str
) -> None:
    source = released(release)
    own_order, methods = forward_of(source, model), methods_of(source, model)
    assert own_order.known.lines.items() >= methods.known.lines.items()
    for name in ("S1", "S2", "S3", "S10"):
        trace = SEQUENCES[name].trace
        assert gets(qwen, trace, own_order) == gets(qwen, trace, methods), name


@pytest.mark.network
@pytest.mark.parametrize("release", by_day(["0.20.0", "0.20.1"]))
def test_0_20_0_raises_from_its_own_line_on_a_padded_step(qwen: Model, release: str) -> None:
    of = forward_of(released(release))
    *_, facts = observe(qwen, "cap 16: set 9; forward 16", of).steps
    assert facts.raised is not None
    assert (facts.raised.type, facts.raised.call) == ("ValueError", "get")
    name, _, line = facts.raised.where.rpartition(":")
    assert name == of.filename
    lines = of.known.lines
    assert lines["_get_deepstack_input_embeds"] < int(line) < lines["_set_deepstack_input_embeds"]


@pytest.mark.network
@pytest.mark.parametrize("release", by_day(reversed(RELEASES), lambda release: release in _ANSWERING_NONE))
def test_the_profile_run_gets_none_in_0_20_0_and_0_22_1(qwen: Model, release: str) -> None:
    (facts,) = observe(qwen, "cap 16: profile 16", forward_of(released(release))).steps
    assert facts.answer is not None
    assert (facts.answer.structure == "none") == (release in _ANSWERING_NONE)


@pytest.mark.network
@pytest.mark.parametrize("release", by_day(["0.33.0", "0.20.2", "0.21.0"]))
def test_granites_text_only_step_leaves_its_rows_to_every_step_after_it(qwen: Model, release: str) -> None:
    of = forward_of(released(release), "granite4_vision")
    trace = "cap 16: set 9 request=a; set 0 request=b; forward 16; forward 16; forward 16"
    judgement = judge(qwen, trace, of)[Rule.FRESHNESS]
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 81)
    assert "payload 1 (request a, replaced at step 2)" in judgement.detail


@pytest.mark.network
@pytest.mark.parametrize(("release", "rows"), [("0.20.0", 16), ("0.33.0", 9)])
def test_granite_passes_the_whole_buffer_before_0_21_0(release: str, rows: int) -> None:
    buffer = made(forward_of(released(release), "granite4_vision"))
    buffer.set(payload(9))
    assert [len(level) for level in read(buffer, 9)] == [rows] * LEVELS


@pytest.mark.network
@pytest.mark.parametrize(
    ("release", "model", "reaches"),
    by_day(
        [
            ("0.33.0", "qwen3_vl", {"R3": "latent", "R4": "latent", "R5": DBO}),
            ("0.19.1", "qwen3_vl", {"R3": "latent", "R4": SP, "R5": DBO}),
            ("0.20.0", "qwen3_vl", {"R1": "default", "R2": "default"}),
            ("0.22.1", "qwen3_vl", {"R1": "default", "R3": "latent", "R4": SP}),
            ("0.33.0", "granite4_vision", {"R3": "latent", "R4": "latent"}),
        ],
        lambda row: row[1],
    ),
)
def test_what_the_engine_reaches(qwen: Model, release: str, model: str, reaches: dict[str, str]) -> None:
    source = released(release)
    of = forward_of(source, model)
    broken: dict[Rule, list[Order]] = {}
    for order in VLLM_ORDERS.live:
        for rule, judgement in judge(qwen, str(order.trace), of).items():
            if judgement.verdict is Verdict.FAIL:
                broken.setdefault(rule, []).append(order)
    assert {str(rule): reach_of(orders, source.version) for rule, orders in broken.items()} == reaches


def test_options_of_the_base_class_are_taken(tmp_path: Path) -> None:
    """`handle_oov_mm_token` of vLLM 0.17.1: refused by our base class, it looked like a fault of theirs."""
    options = "is_multimodal=is_multimodal, handle_oov_mm_token=True)"
    text = COUNTED.replace("main, is_multimodal=is_multimodal)", f"main, {options}")
    assert options in text
    buffer = made(driven(tmp_path, qwen=text))
    buffer.set(payload(9))
    assert torch.equal(torch.stack(read(buffer, 9)), payload(9))


def test_the_language_model_may_be_requested(tmp_path: Path) -> None:
    text = COUNTED.replace("self.language_model.model(", "self.get_language_model().model(")
    buffer = made(driven(tmp_path, qwen=text))
    buffer.set(payload(9))
    assert torch.equal(torch.stack(read(buffer, 9)), payload(9))

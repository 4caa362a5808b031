"""Engines whose payload is an argument, called in this process, and FULL graphs that are emulated."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from cases.selftest.engines.synthetic_sglang import (
    MODEL,
    MODEL_FILE,
    RUNNER,
    RUNNER_FILE,
    SLOTS,
    WRITER_FILE,
    sglang_files,
    with_slot,
)
from cases.selftest.engines.synthetic_tensorrt import RIGHT, tensorrt_files
from cases.selftest.engines.synthetic_vllm import write
from cases.selftest.engines.test_marked_engines import FILES, LMDEPLOY, TRANSFORMERS
from cases.selftest.play.playing import case_of
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.compile.torch_compat.modes import OpRecorder
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.bind import (
    ArgumentBuffer,
    ArgumentClass,
    ArgumentEngine,
    DefinedClass,
    ReplayedArgument,
    ReplayedBuffer,
    ReplayedClass,
)
from deepstack_harness.engines.classes import classes_of, methods_of
from deepstack_harness.engines.known import open_alone, open_source
from deepstack_harness.errors import Reason, SourceError, StepUnavailable, UsageError
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play

LEVELS, HIDDEN = 3, 5
CPU = torch.device("cpu")


def marked(member: str) -> Mapping[str, str]:
    """Return the files of a source with one text model that is given marks."""
    package = member.partition("/")[0]
    return {f"{package}/__init__.py": "", f"{package}/pytorch/__init__.py": "", member: FILES[member]}


UNDRIVEN = sglang_files(runner=RUNNER_FILE.replace("_execute_body_capture", "_execute_elsewhere"))
SOURCES = {
    "sglang": UNDRIVEN,
    "transformers": marked(TRANSFORMERS),
    "lmdeploy": marked(LMDEPLOY),
    "tensorrt": tensorrt_files(RIGHT),
}
ENGINES = pytest.mark.parametrize("files", SOURCES.values(), ids=SOURCES)


def found_in(root: Path, files: Mapping[str, str]) -> DefinedClass:
    """Return the only class of a source, defined here."""
    (found,) = classes_of(open_alone(str(write(root, files))))
    return found


def class_in(root: Path, files: Mapping[str, str]) -> ArgumentClass:
    """Return the only class of a source, which must not be refused."""
    found = found_in(root, files)
    assert isinstance(found.methods, ArgumentClass), found.refusals
    return found.methods


def made(of: ArgumentClass) -> ArgumentBuffer:
    return of(16, HIDDEN, LEVELS, dtype=torch.float32, device=CPU)


def rows(buffer: ArgumentBuffer, tokens: int) -> torch.Tensor:
    return torch.stack(buffer.get(tokens))


def broken(model: Model, trace: str, name: str) -> dict[Rule, float | None]:
    case = case_of(trace, name)
    found = judge_all(ObservedCase(case, play(case, model, ReplayedClass(buffer_named(name)))))
    return {judgement.rule: judgement.value for judgement in found if judgement.verdict is Verdict.FAIL}


@ENGINES
def test_a_payload_is_shown_until_a_text_step_is_set(tmp_path: Path, files: Mapping[str, str]) -> None:
    buffer = made(class_in(tmp_path, files))
    payload = 1.0 + torch.arange(LEVELS * 3 * HIDDEN).view(LEVELS, 3, HIDDEN)
    buffer.set(payload)
    shown = rows(buffer, 8)
    assert torch.equal(shown[:, :3], payload)
    assert not shown[:, 3:].any()
    buffer.set(payload[:, :0])
    assert rows(buffer, 8).shape == (LEVELS, 8, HIDDEN)
    assert not rows(buffer, 8).any()


def captured_and_replayed(engine: ArgumentEngine) -> None:
    """Capture and replay a graph of four tokens; SGLang's engine captures none without a runner."""
    engine.capture(4)
    engine.replay(4, 4, None)


@ENGINES
def test_graphs_that_are_not_driven_cannot_be_requested(tmp_path: Path, files: Mapping[str, str]) -> None:
    of = class_in(tmp_path, files)
    assert isinstance(of.parts.runner, Reason)
    engine: ArgumentEngine = of.make(of.parts, 16, HIDDEN, LEVELS, dtype=torch.float32, device=CPU)
    with pytest.raises(StepUnavailable, match=re.escape(str(of.parts.runner))):
        captured_and_replayed(engine)
    with pytest.raises(StepUnavailable, match=re.escape(str(of.parts.runner))):
        engine.replay(4, 4, torch.ones(LEVELS, 3, HIDDEN))


def test_an_argument_has_no_storage_to_resize(tmp_path: Path) -> None:
    with pytest.raises(StepUnavailable, match="there is no storage to resize"):
        made(class_in(tmp_path, sglang_files())).resize(20)


def test_a_step_above_the_largest_graph_runs_eagerly(tmp_path: Path) -> None:
    buffer = made(class_in(tmp_path, sglang_files()).under_graphs())
    assert isinstance(buffer, ReplayedArgument)
    for size in (4, 8):
        buffer.begin_step(size, profile=True)
        buffer.get(size)
    buffer.set(torch.ones(LEVELS, 3, HIDDEN))
    assert not rows(buffer, 8).any()  # the graph has no slot for the payload
    assert rows(buffer, 9)[:, :3].all()


def test_without_the_file_of_slots_the_payload_has_none(tmp_path: Path) -> None:
    files = {name: text for name, text in sglang_files().items() if name != SLOTS}
    graphs = found_in(tmp_path, files).graphs
    assert graphs.replays
    assert graphs.lost.startswith("input_deepstack_embeds has no static slot")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("config.hidden_size", "config.no_such_size", r"\.__init__ cannot be run .* has no config\.no_such_"),
        ("start(forward_batch)", "start(forward_batch.no_such)", "harness has no forward_batch.no_such"),
    ],
)
def test_what_is_not_in_the_text_model_is_named(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    text = MODEL_FILE.replace(f"self.width = {before}", f"self.width = {after}").replace(before, after)
    found = found_in(tmp_path, sglang_files(model=text))
    assert found.methods is None
    line = text[: text.index("no_such")].count("\n") + 1
    with pytest.raises(UsageError, match=rf"{MODEL}:{line}: Qwen3LLMModel.*{message}"):
        raise SourceError(found.refusals[-1])


def test_graphs_with_something_missing_are_not_driven(tmp_path: Path) -> None:
    text = RUNNER_FILE.replace("slot.zero_()", "slot.zero_(self.model_runner.no_such_part)")
    graphs = found_in(tmp_path, sglang_files(runner=text)).graphs
    assert not graphs.replays
    assert graphs.no_graphs is not None
    assert "the harness has no model_runner.no_such_part" in graphs.no_graphs.text


def test_what_releases_call_around_the_payload_is_supplied(tmp_path: Path) -> None:
    """Each call is in a release from 0.5.4 to 0.5.23; its result must not change a step."""
    model = MODEL_FILE.replace(
        "        stream.start(forward_batch)\n",
        "        stream.start(forward_batch)\n"
        "        late = AuxHiddenStateList()\n"
        "        late.capture(hidden)\n"
        "        assert late == [hidden] and get_exec().deterministic.rl_on_policy_target is None\n"
        "        hidden = stream.complete_output(hidden, forward_batch)\n",
    ).replace(
        "get_exec\n", "get_exec\nfrom sglang.srt.layers.aux_hidden_states import AuxHiddenStateList\n", 1
    )
    writer = WRITER_FILE.replace(
        "        mine =",
        "        assert all(item.padding_values() == [item.pad_value] for item in items)\n        mine =",
    )
    files = dict(with_slot())
    runner = files[RUNNER].replace(
        "        slot.zero_()\n",
        "        assert self.buffer_registry.has_slot(name) and not self.buffer_registry.has_slot('no')\n"
        "        assert self._capture_pp_proxy_tensors(tokens) is None and self._uses_eager_prefill_tail()\n"
        "        self._prepare_forward_metadata_for_replay(rows, tokens)\n"
        "        slot.zero_()\n",
    )
    files |= sglang_files(model=model, writer=writer, runner=runner, slots=files[SLOTS])
    found = found_in(tmp_path, files)
    assert (found.graphs.replays, found.graphs.lost) == (True, "")
    assert isinstance(found.methods, ArgumentClass)
    buffer = made(found.methods.under_graphs())
    assert isinstance(buffer, ReplayedArgument)
    buffer.begin_step(8, profile=True)
    buffer.get(8)
    buffer.set(torch.ones(LEVELS, 3, HIDDEN))
    assert rows(buffer, 8)[:, :, 0].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]] * LEVELS


def test_a_buffer_cannot_be_requested_of_an_argument(tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path, sglang_files())))
    with pytest.raises(UsageError, match="has no get, set and clear to call, its payload is an argument"):
        methods_of(source)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # The counter is 0 at capture, so the clear records nothing: the payload stays.
        ("pr43617", {Rule.CLEAR: 36}),
        ("pr49397", {Rule.CLEAR: 36}),
        # Without a counter the zeroing is recorded.
        ("original", {}),
        ("reference", {}),
    ],
)
def test_a_text_only_replay_after_a_visual_one(qwen: Model, name: str, expected: dict[Rule, float]) -> None:
    assert broken(qwen, "cap 16: profile 16; set 12; forward 16; forward 16", name) == expected


def test_none_at_capture_is_none_for_ever(qwen: Model) -> None:
    assert Rule.STRUCTURE in broken(qwen, "cap 16: profile 16; set 12; forward 16", "pr40932")


def test_a_replay_reads_the_storage_it_was_captured_with() -> None:
    buffer = ReplayedBuffer(buffer_named("pr43617")(4, 8, 1, dtype=torch.float32, device=CPU))
    buffer.get(4)
    buffer.set(torch.ones(1, 4, 8))
    assert _first(buffer, 4) == 1
    buffer.set(torch.full((1, 9, 8), 2.0))  # grows: new storage, that the graph has never seen
    assert _first(buffer, 4) == 1


def test_a_resize_runs_outside_of_the_graphs() -> None:
    buffer = ReplayedBuffer(buffer_named("pr43617")(4, 8, 1, dtype=torch.float32, device=CPU))
    for tokens in (9, 15):
        buffer.resize(tokens)
        assert buffer.capacity >= tokens


def _first(buffer: ReplayedBuffer, tokens: int) -> float:
    answer = buffer.get(tokens)
    assert answer is not None
    return answer[0][0, 0].item()


def test_each_count_is_captured_on_its_own() -> None:
    buffer = ReplayedBuffer(buffer_named("original")(8, 8, 1, dtype=torch.float32, device=CPU))
    buffer.set(torch.ones(1, 8, 8))
    buffer.clear(4)
    buffer.set(torch.ones(1, 8, 8))
    buffer.clear(4)
    answer = buffer.get(8)
    assert answer is not None
    assert answer[0][:, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_replay_repeats_operations_on_their_own_tensors() -> None:
    source, written = torch.ones(3), torch.zeros(3)
    with OpRecorder() as recorder:
        doubled = source[:2] * 2  # a view, and a result
        written[:2].copy_(doubled)  # a write through a view
    source.fill_(5)
    recorder.replay()
    assert doubled.tolist() == [10, 10]
    assert written.tolist() == [10, 10, 0]

"""A bound class as a `Buffer`: placement, level order, surroundings, replacements, where a get returned."""

import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch

from cases.selftest.engines.bound_forward import forward_of
from cases.selftest.engines.synthetic_vllm import (
    GET,
    HEADER,
    HOLDS_A_BUFFER,
    INIT,
    QWEN,
    ModelFile,
    Vllm,
    line_of,
    write,
)
from deepstack_harness.engines.bind import split_levels
from deepstack_harness.engines.bound_class import MethodsBuffer, MethodsClass, rehearsing
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.stand_ins import IntermediateTensors, StorageCopies, Surroundings
from deepstack_harness.errors import StepUnavailable, UsageError

CPU = torch.device("cpu")
META = torch.device("meta")
RESIZE = """\
def _resize_deepstack_input_embeds(self, num_tokens):
    self.deepstack_input_embeds = empty_levels(self.levels, num_tokens, self.config.text_config.hidden_size)
"""


def bound(tmp_path: Path, file: ModelFile | None = None) -> MethodsClass:
    return methods_of(open_source(str(Vllm(qwen=str(file or ModelFile())).tree(tmp_path))))


def made(of: MethodsClass, capacity: int = 16) -> MethodsBuffer:
    return of(capacity, 8, 3, dtype=torch.float32, device=CPU)


def test_who_it_is(tmp_path: Path) -> None:
    of = bound(tmp_path)
    assert of.known.source.label == f"vllm at {tmp_path} (0.22.1)"
    assert of.model_class == "Qwen3VLForConditionalGeneration"
    assert of.filename == str(tmp_path / QWEN)


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown model 'llava'; known are qwen3_vl, qwen3_omni_moe_thinker"):
        methods_of(open_source(str(Vllm().tree(tmp_path))), "llava")


@pytest.mark.parametrize("device", [CPU, META], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_the_allocation_follows_the_ambient_placement(
    tmp_path: Path, dtype: torch.dtype, device: torch.device
) -> None:
    file = replace(ModelFile(), get=GET.replace("if self.filled == 0:", "if self.filled < 0:"))
    levels = bound(tmp_path, file)(16, 8, 3, dtype=dtype, device=device).get(4)
    assert levels is not None
    assert [(level.shape, level.dtype, level.device) for level in levels] == [((4, 8), dtype, device)] * 3
    assert torch.get_default_dtype() is torch.float32
    assert torch.empty(0).device == CPU


def test_the_ambient_placement_is_restored_when_the_allocation_raises(tmp_path: Path) -> None:
    of = bound(tmp_path)
    with pytest.raises(UsageError, match=f"{QWEN}:.*__init__ cannot be run without the rest of "):
        of(-1, 8, 3, dtype=torch.float64, device=META)
    assert torch.get_default_dtype() is torch.float32
    assert torch.empty(0).device == CPU


def test_capacity_is_what_there_is_room_for_now(tmp_path: Path) -> None:
    buffer = made(bound(tmp_path, replace(ModelFile(), more=RESIZE)))
    assert buffer.capacity == 16
    buffer.resize(24)
    assert buffer.capacity == 24


HELD = {
    "by its capacity": "self.capacity = rows\n        self.payload = None",
    "by its levels": "self.levels = [torch.zeros(rows, width)] * levels",
    "by one tensor": "self.rows = torch.zeros(levels, rows, width)",
    "by a registered buffer": (
        "super().__init__()\n        self.register_buffer('rows', torch.zeros(levels, rows, width))"
    ),
}


@pytest.mark.parametrize("init", HELD.values(), ids=HELD)
def test_rows_may_be_in_an_object_of_another_class(init: str, tmp_path: Path) -> None:
    base = "nn.Module" if "super" in init else "object"
    buffer = f"""
class Buffer({base}):
    def __init__(self, rows, width, levels, *, dtype, device):
        {init}

    def get(self, tokens):
        return None

    set = clear = resize = get
"""
    copied = {QWEN: f"from torch import nn\n{buffer}\n{HOLDS_A_BUFFER}"}
    of = methods_of(open_source(str(write(tmp_path, copied))))
    assert made(of).capacity == 16
    assert forward_of(of.known.source)(16, 8, 3, dtype=torch.float32, device=CPU).capacity == 16


def test_a_buffer_without_levels_has_no_room(tmp_path: Path) -> None:
    assert bound(tmp_path)(16, 8, 0, dtype=torch.float32, device=CPU).capacity == 0


def test_a_release_that_cannot_resize_is_reported_as_that(tmp_path: Path) -> None:
    with pytest.raises(StepUnavailable, match="Qwen3VLForConditionalGeneration has no method that resizes"):
        made(bound(tmp_path)).resize(24)


def test_no_release_announces_that_storage_moves(tmp_path: Path) -> None:
    assert not hasattr(made(bound(tmp_path)), "generation")


def test_instances_share_nothing(tmp_path: Path) -> None:
    of = bound(tmp_path)
    one, other = made(of), made(of)
    one.set(torch.ones(3, 4, 8))
    assert one.get(4) is not None
    assert other.get(4) is None


def test_levels_are_ordered_by_their_names(tmp_path: Path) -> None:
    get = GET.replace(
        "itertools.islice(itertools.count(FIRST_LEVEL), self.levels)", "reversed(range(self.levels))"
    )
    buffer = made(bound(tmp_path, replace(ModelFile(), get=get)))
    buffer.set(torch.arange(3.0).view(3, 1, 1).expand(3, 4, 8))
    levels = buffer.get(4)
    assert levels is not None
    assert [level.min().item() for level in levels] == [level.max().item() for level in levels] == [0, 1, 2]


WRONG_ANSWERS = {
    "other names": (
        "{name: rows for name, rows in zip('ab', self.deepstack_input_embeds)}",
        "the names a, b",
    ),
    "from one": (
        "{f'deepstack_input_embeds_{i}': r for i, r in enumerate(self.deepstack_input_embeds, 1)}",
        "the names deepstack_input_embeds_1, deepstack_input_embeds_2",
    ),
    "a tuple": ("tuple(self.deepstack_input_embeds)", "a tuple"),
}


@pytest.mark.parametrize(("answer", "found"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
def test_an_answer_without_level_names_is_refused_and_quoted(tmp_path: Path, answer: str, found: str) -> None:
    file = replace(
        ModelFile(), get=f"def _get_deepstack_input_embeds(self, num_tokens):\n    return {answer}\n"
    )
    line = line_of(str(file), "def _get_")
    with pytest.raises(UsageError, match=f"{QWEN}:{line}: _get_.* returns {found} instead of .*_0, .*_1, "):
        bound(tmp_path, file)


def test_fewer_levels_than_the_model_has_are_passed_on(tmp_path: Path) -> None:
    get = GET.replace("self.levels)", "1)")
    buffer = made(bound(tmp_path, replace(ModelFile(), get=get)))
    buffer.set(torch.ones(3, 4, 8))
    levels = buffer.get(4)
    assert levels is not None
    assert len(levels) == 1


def test_where_a_get_returned(tmp_path: Path) -> None:
    buffer, text = made(bound(tmp_path)), str(ModelFile())
    assert buffer.where_returned(4) == f"{tmp_path / QWEN}:{line_of(text, 'return None')}"
    buffer.set(torch.ones(3, 4, 8))
    assert buffer.where_returned(4) == f"{tmp_path / QWEN}:{line_of(text, 'return IntermediateTensors(')}"


def test_watching_a_get_leaves_the_trace_function_of_others_in_place(tmp_path: Path) -> None:
    file = replace(ModelFile(), get=GET.replace("return None", "raise ValueError('empty')"))
    buffer = made(bound(tmp_path, file))

    def others(frame: FrameType, event: str, argument: object) -> None:
        """Trace as a debugger would."""

    before = sys.gettrace()
    sys.settrace(others)
    try:
        with pytest.raises(ValueError, match="empty"):
            buffer.where_returned(4)
        assert sys.gettrace() is others
    finally:
        sys.settrace(before)


def meta_tower() -> AbstractContextManager[object]:
    return META


def test_a_skipped_tower_puts_what_is_made_in_its_context_there(tmp_path: Path) -> None:
    skipped = replace(bound(tmp_path), surroundings=Surroundings(tower=meta_tower, vision=False))
    buffer = made(skipped)
    assert not buffer.vision
    buffer.set(torch.ones(3, 4, 8, device=META))
    levels = buffer.get(4)
    assert levels is not None
    assert {level.device for level in levels} == {META}
    assert made(bound(tmp_path)).vision


SKIPS = {
    "marked": ("not isinstance(self.visual, StageMissingLayer)", True),
    "none": ("self.visual is not None", True),
    "unasked": ("True", False),
}


@pytest.mark.parametrize(("asks", "notices"), SKIPS.values(), ids=SKIPS)
def test_a_skipped_tower_is_what_the_release_has_in_its_place(
    tmp_path: Path, asks: str, notices: bool
) -> None:
    header = HEADER + "\nfrom .utils import StageMissingLayer\n"
    file = replace(ModelFile(), header=header, init=INIT.replace("if self.levels:", f"if {asks}:"))
    of = bound(tmp_path, file)
    assert made(of).capacity == 16
    assert made(replace(of, surroundings=Surroundings(vision=False))).capacity == (0 if notices else 16)


def test_the_towers_placement_can_be_requested(tmp_path: Path) -> None:
    header = HEADER.replace(
        "torch.zeros(rows, width)", "torch.zeros(rows, width, dtype=dtype, device=device)"
    )
    header = header.replace("(levels, rows, width)", "(levels, rows, width, dtype, device)")
    init = INIT.replace(
        "text_config.hidden_size)", "text_config.hidden_size, self.visual.dtype, self.visual.device)"
    )
    of = bound(tmp_path, replace(ModelFile(), header=header, init=init))
    buffer = of(16, 8, 3, dtype=torch.float64, device=CPU)
    buffer.set(torch.ones(3, 4, 8))
    levels = buffer.get(4)
    assert levels is not None
    assert levels[0].dtype is torch.float64


def test_named_tensors_are_looked_up_sliced_and_replaced_by_name() -> None:
    """Use named tensors in each way that those of vllm/sequence.py can be used."""
    first, second = torch.ones(4, 2), torch.zeros(4, 2)
    named = IntermediateTensors({"a": first})
    named["b"] = second
    assert named["a"] is first
    assert len(named) == 2
    cut = named[1:3]
    assert isinstance(cut, IntermediateTensors)
    assert [(name, rows.tolist()) for name, rows in cut.items()] == [
        ("a", first[1:3].tolist()),
        ("b", second[1:3].tolist()),
    ]


def test_a_tensor_without_storage_needs_no_copy() -> None:
    shown = torch.empty(3, 2, device="meta")
    assert StorageCopies().copy(shown) is shown


@pytest.mark.parametrize(
    ("dirty", "message"),
    [(0, "adds 2 rows before the first layer"), (3, "adds 2 rows after layer 2, where no level belongs")],
)
def test_rows_that_belong_to_no_level_are_reported(dirty: int, message: str) -> None:
    """Give rows of two levels, which belong after layers 0 and 1, and rows elsewhere."""
    given = [torch.zeros(3, 2) for _ in range(4)]
    assert len(split_levels(tuple(given), 2)) == 2
    given[dirty][1:, 0] = 5
    with pytest.raises(RuntimeError, match=message):
        split_levels(tuple(given), 2)


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
def test_a_rehearsal_swallows_an_exit_of_the_code_and_never_ctrl_c(ends: type[BaseException]) -> None:
    came = False
    try:
        with rehearsing(lambda error: UsageError(str(error))):
            raise ends
    except KeyboardInterrupt:
        came = True
    assert came == (ends is KeyboardInterrupt)

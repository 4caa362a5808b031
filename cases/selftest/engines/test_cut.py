"""What of a model file runs: the methods and what they need, and never a guess."""

import ast
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cases.selftest.engines.synthetic_vllm import GET, HEADER, INIT, QWEN, ModelFile, Vllm, line_of
from deepstack_harness.engines.bound_class import MethodsClass
from deepstack_harness.engines.class_facts import slice_init
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.syntax import Function, writes
from deepstack_harness.errors import UsageError


def bound(tmp_path: Path, file: ModelFile) -> MethodsClass:
    return methods_of(open_source(str(Vllm(qwen=str(file)).tree(tmp_path))))


def levels(of: MethodsClass, tokens: int = 3) -> torch.Tensor:
    buffer = of(16, 8, 2, dtype=torch.float32, device=torch.device("cpu"))
    buffer.set(torch.ones(2, tokens, 8))
    answer = buffer.get(tokens)
    assert answer is not None
    return torch.stack(answer)


def test_methods_and_their_helpers_are_cut_with_their_lines(tmp_path: Path) -> None:
    text = str(ModelFile())
    names = [
        "_get_deepstack_input_embeds",
        "_rows",
        "_set_deepstack_input_embeds",
        "_clear_deepstack_input_embeds",
    ]
    lines = bound(tmp_path, ModelFile()).known.lines
    assert lines == {name: line_of(text, f"def {name}(") for name in names}


ALLOCATIONS = {
    "in a loop": """\
        levels = []
        for level in range(self.levels):
            if level < 0:
                continue
            levels.append(torch.zeros(rows, width))
        self.deepstack_input_embeds = levels
    """,
    "in a comprehension": """\
        each = NoSuchThing(config)
        self.deepstack_input_embeds = [torch.zeros(rows, width + 0 * each) for each in range(self.levels)]
    """,
    "by a method": """\
        self._allocate(rows, width)
    """,
    "under a name made at run time": """\
        setattr(self, "deepstack_" + "input_embeds", empty_levels(self.levels, rows, width))
    """,
    "under a literal name": """\
        setattr(self, "deepstack_input_embeds", empty_levels(self.levels, rows, width))
    """,
    "from a setting that was changed under its name": """\
        setattr(config.text_config, "hidden_size", 2 * config.text_config.hidden_size)
        self.deepstack_input_embeds = empty_levels(self.levels, rows, config.text_config.hidden_size // 2)
    """,
    "as one registered tensor": """\
        self.register_buffer("deepstack_input_embeds", torch.zeros(self.levels, rows, width))
    """,
    "as one tensor registered under a name made at run time": """\
        self.register_buffer(f"deepstack_{'input'}_embeds", torch.zeros(self.levels, rows, width))
    """,
    "asked for by name alone": """\
        self.room = rows
        self.deepstack_input_embeds = empty_levels(self.levels, getattr(self, "room", 0), width)
    """,
    "after a deletion": """\
        sizes = [0, rows, width]
        del sizes[0]
        self.deepstack_input_embeds = None
        del self.deepstack_input_embeds
        if not hasattr(self, "deepstack_input_embeds"):
            self.deepstack_input_embeds = empty_levels(self.levels, *sizes)
    """,
    "in one of two branches": """\
        if width > 4096:
            raise ValueError("too wide")
        elif self.visual is None:
            self.deepstack_input_embeds = None
        else:
            self.deepstack_input_embeds = empty_levels(self.levels, rows, width)
    """,
    "in a try": """\
        try:
            rows = int(rows)
        except TypeError:
            raise
        else:
            self.deepstack_input_embeds = empty_levels(self.levels, rows, width)
        finally:
            report(rows)
    """,
    "in a match": """\
        match self.levels:
            case 0:
                report("none")
            case count:
                self.deepstack_input_embeds = empty_levels(count, rows, width)
    """,
    "after an early return": """\
        self.deepstack_input_embeds = empty_levels(self.levels, rows, width)
        if not self.levels:
            return
        if self.levels == 2:
            return
        self.deepstack_input_embeds = None
    """,
    "after a change in place": """\
        sizes = [width]
        sizes[0] = rows
        sizes += [width]
        report.total = sizes
        self.deepstack_input_embeds = [torch.zeros(*sizes) for _ in range(self.levels)]
    """,
    "by a function of its own": """\
        def level():
            return torch.zeros(rows, width)

        self.deepstack_input_embeds = [level() for _ in range(self.levels)]
    """,
    "in a with that names something": """\
        with torch.no_grad() as nothing, self._mark_language_model(vllm_config):
            report(self)
            self.deepstack_input_embeds = nothing or empty_levels(self.levels, rows, width)
    """,
    "beside a call on a literal": """\
        "rows: {}".format(report)
        self.deepstack_input_embeds = empty_levels(self.levels, rows, width)
    """,
    "with what the module is told to import": """\
        import math

        rows = math.ceil(rows)
        self.deepstack_input_embeds = empty_levels(self.levels, rows, width)
    """,
}
ALLOCATE = """\
def _allocate(self, rows, width):
    self._really_allocate(rows, width)

def _really_allocate(self, rows, width):
    self.deepstack_input_embeds = empty_levels(self.levels, rows, width)
"""


@pytest.mark.parametrize("allocation", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_the_allocation_is_found_wherever_it_stands(tmp_path: Path, allocation: str) -> None:
    head = """\
        def __init__(self, *, vllm_config, prefix=""):
            super().__init__()
            config = vllm_config.model_config.hf_config
            config.architectures = vllm_config.nothing_of_ours
            setattr(config, "attention", NoSuchThing)
            setattr(config, NoSuchName, NoSuchThing)
            self.tokenizer = NoSuchTokenizer(config)
            self.prepare(config)
            self.levels = len(config.vision_config.deepstack_visual_indexes)
            self.filled, self.other = 0, 1
            rows = vllm_config.scheduler_config.max_num_batched_tokens
            width = config.text_config.hidden_size
            assert report(self.other)
    """
    init = textwrap.dedent(head) + textwrap.indent(textwrap.dedent(allocation), "    ")
    file = replace(
        ModelFile(), init=init, more=f"{ALLOCATE}\ndef prepare(self, config):\n    self.more = NoSuchThing\n"
    )
    assert levels(bound(tmp_path, file)).all()


def test_a_cut_loop_still_has_its_break() -> None:
    init = ast.parse(
        "def __init__(self):\n"
        "    while True:\n"
        "        self.kept = 1\n"
        "        self.dropped = 2\n"
        "        break\n"
        "    for each in self.dropped:\n"
        "        break\n"
    ).body[0]
    assert isinstance(init, Function)
    kept = ast.unparse(slice_init(init, {"self.kept"}, set(), writes))
    assert kept == "def __init__(self):\n    while True:\n        self.kept = 1\n        break"


def test_class_attributes_properties_and_bases_of_the_same_file_come_along(tmp_path: Path) -> None:
    header = HEADER + textwrap.dedent("""

        class Shared:
            STEP: int = 1

            @property
            def shown(self):
                return self.deepstack_input_embeds

            def _rows(self, level, count):
                return self.shown[level][: count * self.STEP]
    """)
    get = GET[: GET.index("def _rows")]
    file = replace(
        ModelFile(), header=header, get=get, class_name="Qwen3VLForConditionalGeneration(Shared, nn.Module)"
    )
    assert levels(bound(tmp_path, file)).all()


def test_module_level_names_are_brought_in_order(tmp_path: Path) -> None:
    header = HEADER + textwrap.dedent("""
        from vllm.logger import init_logger
        import math, vllm.envs
        import torch.nn.functional as F

        logger = init_logger(__name__)
        WIDTHS: dict[str, int] = {"one": 1}
        WIDTHS["two"] = 2
        SIZES = [1]
        SIZES += [2]
        SIZES.append(3)
        if torch.__name__:
            def smallest():
                return min(SIZES)
        LARGEST = max(SIZES)


        def never():
            WIDTHS["three"] = NoSuchThing
    """)
    used = ["logger.info_once('x')", "1 / (LARGEST == 3)", "smallest()", "WIDTHS['two']", "math.pi", "F.relu"]
    line = "; ".join(used)
    assert levels(bound(tmp_path, replace(in_get(line), header=header))).all()


def test_the_nearest_name_of_several_wins(tmp_path: Path) -> None:
    more = "def _get_more_deepstack_input_embeds(self, num_tokens):\n    return NoSuchThing\n"
    assert levels(bound(tmp_path, replace(ModelFile(), get=more + GET))).all()


def test_a_renamed_method_is_found(tmp_path: Path) -> None:
    get = GET.replace("_get_deepstack_input_embeds", "_get_padded_deepstack_input_embeds_of_step")
    found = bound(tmp_path, replace(ModelFile(), get=get))
    assert levels(found).all()
    assert "_get_padded_deepstack_input_embeds_of_step" in found.known.lines


def in_get(line: str) -> ModelFile:
    return replace(ModelFile(), get=GET.replace("if self.filled == 0:", f"{line}\n    if self.filled == 0:"))


def in_init(line: str) -> ModelFile:
    return replace(ModelFile(), init=INIT.replace("self.filled = 0", f"self.filled = {line}"))


REFUSED: dict[str, tuple[ModelFile, str, str]] = {
    "import": (
        in_get("rank_of_everything(1)"),
        "rank_of_everything(1)",
        r"\.rank_of_everything is not there and is read",
    ),
    "unknown": (in_get("get_context()"), "get_context()", "name 'get_context' is not defined"),
    "star": (
        replace(in_get("TABLE[0]"), header=f"{HEADER}\nfrom vllm.tables import *\nTABLE.append(1)\n"),
        "TABLE[0]",
        "name 'TABLE' is not defined",
    ),
    "inner import": (
        in_get("import vllm.envs; vllm.envs.RANK"),
        "import vllm.envs",
        r"vllm\.envs is not there and is read",
    ),
    "relative import": (
        in_get("from . import envs; envs.RANK"),
        "from . import envs",
        r"envs\.RANK is not there and is read",
    ),
    "attribute": (
        in_get("self.graph_pool.reset()"),
        "self.graph_pool.reset()",
        "cannot be run without .*: .* has no attribute 'graph_pool'",
    ),
    "attribute of a stand-in": (
        in_get("getattr(self.visual, 'blocks' + '')"),
        "getattr(self.visual",
        "cannot be run without .*VisionTower.* has no attribute 'blocks'",
    ),
    "setting": (
        in_init("vllm_config.parallel_config.rank"),
        "vllm_config.parallel_config.rank",
        r"__init__ cannot be run without .*: the harness has no vllm_config\.parallel_config",
    ),
    "init raises": (
        in_init("1 // 0"),
        "1 // 0",
        "__init__ cannot be run without .*: .*by zero",
    ),
    "init argument": (
        replace(ModelFile(), init=INIT.replace("prefix: str", "quantization, prefix: str")),
        "",
        "__init__ cannot be run without .*: .*'quantization'",
    ),
    "init import": (
        in_init("rank_of_everything(2)"),
        "rank_of_everything(2)",
        r"\.rank_of_everything is not there and is read",
    ),
    "module": (
        replace(in_get("TABLE[0]"), header=f"{HEADER}\nTABLE = [1 // 0]\n"),
        "TABLE[0]",
        r"\.TABLE is not there and is read",
    ),
    "no init": (replace(ModelFile(), init="x = 1"), "", "cannot be run without .*"),
    "no clear": (replace(ModelFile(), clear="x = 1"), "class Qwen", "has no _clear_deepstack_input_embeds;"),
    "no buffer": (
        replace(ModelFile(), get="", set="", clear=""),
        "class Qwen",
        "has no _clear_.*, _get_.*, _set_deepstack_input_embeds; .* has a buffer since vllm 0.11.0",
    ),
    "two gets": (
        replace(
            ModelFile(), get="".join(GET.replace("_get_deepstack", f"_get_{name}_deepstack") for name in "ab")
        ),
        "class Qwen",
        "which of _get_a_deepstack_input_embeds, _get_b_deepstack_input_embeds should get",
    ),
}


@pytest.mark.parametrize(("file", "at", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_supplied_is_refused(tmp_path: Path, file: ModelFile, at: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        bound(tmp_path, file)
    said = str(caught.value)
    assert "\n" not in said
    path = re.escape(str(tmp_path / QWEN))
    assert re.match(f"{path}:{line_of(str(file), at)}: " if at else path, said), said


@pytest.mark.parametrize("other", ["", "{'first': 0}", "[1]", "3", "[torch.zeros(3, 8)]"])
def test_rows_may_have_any_name(tmp_path: Path, other: str) -> None:
    file = ModelFile()
    moved = {
        part: getattr(file, part).replace("self.deepstack_input_embeds", "self.rows_of_levels")
        for part in ("init", "get", "set", "clear")
    }
    if other:
        moved["init"] += f"    self.deepstack_input_embeds = {other}\n"
        moved["clear"] += "    self.deepstack_input_embeds\n"
    made = bound(tmp_path, replace(file, **moved))(16, 8, 2, dtype=torch.float32, device=torch.device("cpu"))
    assert made.capacity == 16


def test_rows_that_are_no_levels_are_refused(tmp_path: Path) -> None:
    file = ModelFile()
    parts = ("init", "get", "set", "clear")
    stored = {
        part: getattr(file, part).replace("self.deepstack_input_embeds", "self.rows[0]") for part in parts
    }
    stored["init"] = stored["init"].replace("self.rows[0] = ", "self.rows = [[]]; self.rows[0] = ")
    with pytest.raises(UsageError, match=r"keeps no rows per level in self\.filled or self\.rows"):
        bound(tmp_path, replace(file, **stored))


def test_a_fault_of_the_buffer_is_not_refused(tmp_path: Path) -> None:
    made = bound(tmp_path, in_get("None.x"))(16, 8, 2, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'x'"):
        made.get(1)

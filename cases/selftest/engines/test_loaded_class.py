"""A class that was made by importing its package is judged as Python makes it, or refused with its place."""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from textwrap import indent

import pytest
from typing_extensions import override

from cases.by_day import by_day
from cases.selftest.engines.in_process_worker import WithoutInputs
from cases.selftest.engines.rebound_classes import (
    CLEAR,
    HIDDEN,
    KEEPS_ROWS,
    MIXINS,
    NAME,
    RIGHT,
    WRONG,
    ZEROES,
    Rebound,
)
from deepstack_harness.audit.audited_source import audit_source
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Verdict
from deepstack_harness.engines.load import unload
from deepstack_harness.errors import Reason

BROKEN_CLEAR = {(Rule.CLEAR, Regime.LIVE), (Rule.CLEAR, Regime.CAPTURED)}
NEGATIVE = (Rule.REJECTION, Regime.LIVE)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Forget what was imported."""
    yield
    unload()


def place(of: Rebound) -> tuple[str, ...]:
    """Return the last part of the source in which a class is bound anew: daily one class of each."""
    parts = (part.name for part in fields(of) if getattr(of, part.name) != getattr(Rebound(), part.name))
    return (*parts, *(["metaclass"] if "metaclass" in of.bases else []))[-1:]


def judged(of: Rebound, root: Path) -> set[tuple[Rule, Regime]] | tuple[Reason, ...]:
    """Return the rules that the class breaks, or the reasons why it was refused."""
    worker = WithoutInputs(str(of.tree(root)))
    (found,) = (item for item in worker.classes() if item.model_class == NAME)
    if not found.can_be_judged:
        return found.ways.refusals
    rows = judge_class(found, worker).rows
    refused = worker.stubs_met(found)
    # The samples accept a clear of a negative count, as released classes do.
    broken = {(row.rule, row.regime) for row in rows if row.verdict in BROKEN} - {NEGATIVE}
    return refused.ways.refusals if refused else broken


@pytest.mark.parametrize("means", by_day(WRONG, lambda means: place(WRONG[means])))
def test_a_clear_that_python_gives_the_objects_is_the_one_that_is_judged(means: str, tmp_path: Path) -> None:
    assert judged(WRONG[means], tmp_path) == BROKEN_CLEAR


@pytest.mark.parametrize("means", by_day(HIDDEN, lambda means: place(HIDDEN[means])))
def test_a_clear_that_may_come_later_refuses_the_class_with_its_place(means: str, tmp_path: Path) -> None:
    result = judged(HIDDEN[means], tmp_path)
    assert result == BROKEN_CLEAR or (isinstance(result, tuple) and all(why.file for why in result))


@pytest.mark.parametrize("means", by_day(RIGHT, count=3))
def test_the_same_means_used_rightly_keep_every_rule(means: str, tmp_path: Path) -> None:
    assert judged(RIGHT[means], tmp_path) == set()


_REPLACING = (
    "def replacing(cls):\n    if FLAGS.active or True:\n        cls.{name} = {name}\n    return cls\n"
)
_ALLOCATING = """\
class Buffers(SupportsNothing):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.levels = len(config.vision_config.deepstack_visual_indexes)
        self.width = config.text_config.hidden_size
        rows = vllm_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = [torch.zeros(rows, self.width) for _ in range(self.levels)]
        self.filled = 0
"""


def _with_init_of_mixin(of: Rebound) -> Rebound:
    """Return the class with what its `__init__` allocates moved to a base in another module."""

    class Moved(Rebound):
        @override
        def __str__(self) -> str:
            text = super().__str__()
            first = text.index("    def __init__")
            last = text.index("        self.visual =")
            init = '    def __init__(self, *, vllm_config, prefix=""):\n'
            init += "        super().__init__(vllm_config=vllm_config)\n"
            return (
                text[:first] + init + text[last:].replace("NoSuchTower(config)", "NoSuchTower(vllm_config)")
            )

    return Moved(
        before="from .mixins import Buffers\n", bases="Buffers", clear=of.clear,
        files={MIXINS: f"import torch\n\nfrom .interfaces import SupportsNothing\n\n\n{_ALLOCATING}"},
    )  # fmt: skip


def _decorated(clear: str) -> Rebound:
    """Return a class whose decorator, of another module, needs a library that is missing."""
    return Rebound(
        before="from .mixins import replacing\n",
        decorators="@replacing\n",
        files={MIXINS: f"from no_such_library import FLAGS\n\n{clear}\n\n{_REPLACING.format(name=CLEAR)}"
               .replace("FLAGS.active or True", "FLAGS is not None")},
    )  # fmt: skip


NOT_IN_TEXT = {
    "another class of the name": (HIDDEN["by another class of the name"], BROKEN_CLEAR),
    "a base that is made by a call": (HIDDEN["by a base that is made by a call"], BROKEN_CLEAR),
    "a name made at run time": (HIDDEN["by a name made at run time in another module"], BROKEN_CLEAR),
    "a decorator over a missing library, wrong": (_decorated(KEEPS_ROWS), BROKEN_CLEAR),
    "a decorator over a missing library, right": (_decorated(ZEROES), set()),
    "an __init__ of a mixin, wrong": (_with_init_of_mixin(Rebound(clear=KEEPS_ROWS)), BROKEN_CLEAR),
    "an __init__ of a mixin, right": (_with_init_of_mixin(Rebound()), set()),
}
"""Classes that syntax does not show, and the rules that each breaks."""


@pytest.mark.parametrize("name", by_day(NOT_IN_TEXT, count=4))
def test_a_class_that_no_reading_of_its_text_shows_is_judged(name: str, tmp_path: Path) -> None:
    of, expected = NOT_IN_TEXT[name]
    assert judged(of, tmp_path) == expected


def test_a_class_that_needs_an_unknown_setting_is_not_imported_for_it(tmp_path: Path) -> None:
    """The import would cost seconds, and the class would be refused for the same reason."""
    of = Rebound(init=f"self.{CLEAR}_count = vllm_config.no_such_setting\nself.levels += self.{CLEAR}_count")
    result = judged(of, tmp_path)
    assert isinstance(result, tuple)
    assert "the harness has no vllm_config.no_such_setting" in result[-1].text
    assert "imported with" not in result[-1].text


_FUSED = "from no_such_library import fused_zero\n"
_CALLS = f"def {CLEAR}(self, count):\n    fused_zero(self.deepstack_input_embeds)\n    self.filled = 0\n"
_GUARD = f"def {CLEAR}(self, count):\n    if fused_zero is not None:\n        pass\n    self.filled = 0\n"
_SWALLOWS = (
    f"def {CLEAR}(self, count):\n    try:\n        fused_zero(self)\n    except Exception:\n"
    + indent(ZEROES.partition("\n")[2], "    ")
)
_LATER = (
    f"def {CLEAR}(self, count):\n    for rows in self.deepstack_input_embeds:\n        rows.zero_()\n"
    "    if count > 8:\n        try:\n            fused_zero(self)\n"
    "        except Exception:\n            pass\n"
    "    self.filled = 0\n"
)


@pytest.mark.parametrize(
    "clear", [_CALLS, _GUARD, _SWALLOWS, _LATER], ids=["calls", "asks", "swallows", "later"]
)
def test_a_method_that_meets_a_stub_refuses_the_class_with_name_file_and_line(
    clear: str, tmp_path: Path
) -> None:
    of = Rebound(before=_FUSED, clear=clear)
    result = judged(of, tmp_path)
    assert isinstance(result, tuple)
    why = result[-1]
    text = str(of).splitlines()
    assert "vllm.model_executor.models.qwen3_vl.fused_zero is not there and is read" in str(why)
    assert why.file.endswith("vllm/model_executor/models/qwen3_vl.py")
    assert why.line is not None
    assert "fused_zero" in text[why.line - 1]


@pytest.mark.parametrize(
    ("clear", "why"),
    [
        (f"fused = zero.kernel\n\n{ZEROES}    x = self.fused is None\n", "self.fused is not there"),
        (ZEROES.replace("count)", "count, fused=zero.kernel)"), f"a value of {CLEAR} is not there"),
    ],
    ids=["attribute of the class", "default of an argument"],
)
def test_a_stub_that_is_a_value_of_the_class_refuses_it(clear: str, why: str, tmp_path: Path) -> None:
    """A method may compare it with None, which no stub can notice."""
    result = judged(Rebound(before="from no_such_library import zero\n", clear=clear), tmp_path)
    assert isinstance(result, tuple)
    assert why in result[-1].text


def test_a_member_after_a_missing_base_is_not_taken_for_the_one_of_the_class(tmp_path: Path) -> None:
    """The missing base may have a clear of its own, which Python would take."""
    base = "class Zeroes(SupportsNothing):\n" + indent(ZEROES, "    ")
    of = Rebound(before=f"from no_such_library import Mixin\n\n{base}\n", bases="Mixin, Zeroes", clear="")
    result = judged(of, tmp_path)
    assert isinstance(result, tuple)
    assert f"{CLEAR} is taken from Zeroes, after no_such_library.Mixin, which is not there" in result[-1].text


def test_an_import_that_replaces_functions_of_torch_is_refused(tmp_path: Path) -> None:
    import torch

    before = torch.equal
    try:
        result = judged(Rebound(before="torch.equal = lambda *_: True\n"), tmp_path)
    finally:
        torch.equal = before
    assert isinstance(result, tuple)
    assert "changes torch.equal" in result[-1].text


def test_a_statement_about_the_class_that_raises_refuses_it(tmp_path: Path) -> None:
    of = Rebound(after=f"NoSuchRegistry.add({NAME})\n")
    result = judged(of, tmp_path)
    assert isinstance(result, tuple)
    assert (
        "a statement about the class raised NameError: name 'NoSuchRegistry' is not defined"
        in result[-1].text
    )


def test_an_audit_imports_in_the_sandbox(tmp_path: Path) -> None:
    of, _ = NOT_IN_TEXT["a decorator over a missing library, wrong"]
    result = audit_source(str(of.tree(tmp_path)), lambda _: None)
    (verdicts,) = result.classes
    broken = {(row.rule, row.regime): row.where for row in verdicts.rows if row.verdict in BROKEN}
    assert broken.keys() - {NEGATIVE} == BROKEN_CLEAR
    assert {place for rule, place in broken.items() if rule != NEGATIVE} == {f"{MIXINS}:3-4"}
    assert not result.account.unjudged
    assert result.loaded == {NAME: "3 modules imported, 2 names missing"}


@pytest.mark.parametrize(
    ("act", "why"),
    by_day(
        [
            ("import os\nos._exit(0)\n", "exited"),
            ("open('/etc/deepstack-was-here', 'w').write('x')\n", ""),
            ("import socket\nsocket.create_connection(('127.0.0.1', 9))\n", ""),
        ]
    ),
)
def test_what_acts_at_import_does_no_harm_and_is_never_green(act: str, why: str, tmp_path: Path) -> None:
    of = replace(_decorated(KEEPS_ROWS), before=f"from .mixins import replacing\n{act}")
    result = audit_source(str(of.tree(tmp_path)), lambda _: None)
    assert not Path("/etc/deepstack-was-here").exists()
    if result.classes:
        (verdicts,) = result.classes
        broken = {(row.rule, row.regime) for row in verdicts.rows if row.verdict in BROKEN}
        ended = {row.verdict for row in verdicts.rows} == {Verdict.ERROR} and why in verdicts.rows[0].detail
        assert broken >= BROKEN_CLEAR or (why and ended)
    else:
        unjudged = next(item for item in result.account.unjudged if item.name == NAME)
        assert why
        assert why in unjudged.why


def test_a_class_that_meets_a_stub_while_it_is_played_is_in_the_account(tmp_path: Path) -> None:
    of = _decorated(_LATER.replace("fused_zero", "FLAGS"))
    result = audit_source(str(of.tree(tmp_path)), lambda _: None)
    assert not result.classes
    unjudged = next(item for item in result.account.unjudged if item.name == NAME)
    assert "FLAGS is not there and is read" in unjudged.why
    assert f"{MIXINS}:" in unjudged.why

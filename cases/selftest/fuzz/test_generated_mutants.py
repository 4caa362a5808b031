"""Generated mutants of the reference: `check` or a hunt catches each, or its survival is justified."""

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.engines.synthetic_whole import WholeClass
from cases.selftest.models.checking import broken_in
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Regime, live_buffer
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.engines.known import open_source
from deepstack_harness.fuzz.faults import Target, Watch
from deepstack_harness.fuzz.hunt import hunt
from deepstack_harness.fuzz.player import InProcessPlayer
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play import work
from tools.generated_mutants import ReleasedClass, changed_lines, generated_mutants

_REFUSES = "every growth raises, which the contract allows, and changes nothing that can be seen"
_ZEROES_MORE = "rows that are zero already, or that end with this call, are zeroed as well"
_FULL_ONLY = "a growth raises unless the buffer is full, and then the rows are the same"
_ONE_MORE = "too large a count while nothing is set: rows that are zero are zeroed or moved"
_ONE_LESS = "a count of -1 while nothing is set: a growth then raises, other rows are zero anyway"
SURVIVORS = {
    "_moved: moved = level.new_zeros(rows, level.size(1)) -> pass": _REFUSES,
    "_moved: 1 -> 2": _REFUSES,
    "_moved: :keep -> :": _FULL_ONLY,
    "_moved: :keep -> :keep + 1": _FULL_ONLY,
    "__init__: self.generation = 0 -> pass": _REFUSES,
    "__init__: 0 -> 1": _ONE_MORE,
    "__init__: 0 -> -1": _ONE_LESS,
    "__init__: 0 -> 1 #2": "generations are counted from 1",
    "__init__: 0 -> -1 #2": "generations are counted from -1",
    "__init__: torch.zeros(capacity, hidden, dtype=dtype, device=device)"
    " -> torch.zeros(capacity, hidden, dtype=dtype)": "the default device is the device of these cases",
    "capacity: 0 -> -1 #2": "all levels have as many rows",
    "set: self._make_room(tokens) -> pass": "the copy raises before it changes a row: no growth by set",
    "set: zip(self._levels, payload, strict=True) -> zip(self._levels, payload)": "_check refuses before",
    "set: tokens:self._tokens_set -> tokens:": _ZEROES_MORE,
    "set: tokens:self._tokens_set -> tokens:self._tokens_set + 1": _ZEROES_MORE,
    "clear: self._tokens_set = 0 -> pass": "rows that are zero are moved by a growth, and count in a resize",
    "clear: 0 -> 1": _ONE_MORE,
    "clear: 0 -> -1": _ONE_LESS,
    "clear: :rows -> :": _ZEROES_MORE,
    "clear: :rows -> :rows + 1": _ZEROES_MORE,
    "resize: if _counted(tokens, 'resize') < self._tokens_set: -> if True:": _REFUSES,
    "resize: self._retired.append(self._levels) -> pass": "old storage of an announced move may be freed",
    "resize: _counted(tokens, 'resize') < self._tokens_set"
    " -> _counted(tokens, 'resize') <= self._tokens_set": "a buffer may refuse a resize",
    "resize: 1 -> 2": "generations are counted in twos",
    "release: self._retired.clear() -> pass": "old storage is kept: how much memory is used is no promise",
    "_check: 0 -> -1": "all levels have the same hidden size",
}
"""Changes that break no promise, with the reason.

The order of equal changes is that of `ast.walk`: `__init__: 0` is the count of tokens first, then the
generation.
"""

EXAMPLES = {"eager": 300, "eager/full": 40}


mutants = cache(lambda: {mutant.name: mutant for mutant in generated_mutants()})
"""The mutants by name; making them takes 2 s."""


class First(Watch):
    """Watch that ends a hunt at its first finding."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_finding(self, finding: object) -> None:
        self.names.add(str(finding))

    def is_done(self) -> bool:
        return bool(self.names)


def caught_by(make: BufferFactory) -> str | None:
    """Return what finds a fault: the traces of `check` in both regimes, else a hunt in both."""
    for regime in (Regime.LIVE, Regime.CAPTURED):
        if broken_in(make, regime, until_first=True):
            return f"check {regime}"
    for arm, examples in EXAMPLES.items():
        buffer = live_buffer(f"generated {arm}")
        work.bind_live(buffer, make)
        target = Target(buffer, ArmSpec.parse(arm))
        if hunt(target, InProcessPlayer(), examples=examples, watch=First()).findings:
            return f"fuzz {arm}"
    return None


def test_there_is_a_mutant_for_each_kind_of_change() -> None:
    changes = " ".join(mutants())
    assert len(mutants()) > 80
    for kind in ("tokens <= 0", "-> :tokens + 1", "-> pass", "if False:", "torch.ones(", "min(_counted("):
        assert kind in changes


@pytest.mark.slow  # 3 s
def test_the_unchanged_reference_is_not_caught() -> None:
    assert broken_in(ReferenceBuffer, Regime.LIVE) == {}


@pytest.mark.parametrize(
    "name",
    by_day(
        ["get: :tokens -> :tokens + 1", "clear: level[:rows].zero_() -> pass", "set: :tokens -> :tokens - 1"],
        count=2,
    ),
)
def test_a_few_are_caught_daily(name: str) -> None:
    assert caught_by(mutants()[name].factory()) == "check live"


def test_every_justified_survivor_exists() -> None:
    assert SURVIVORS.keys() <= mutants().keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_survives_is_justified() -> None:
    survivors = {name for name, mutant in mutants().items() if caught_by(mutant.factory()) is None}
    assert survivors == SURVIVORS.keys()


def test_single_lines_are_changed_in_each_way() -> None:
    tree = ast.parse(
        """
def clear(self, n):
    if n > 0:
        self.seen = n
        for level in range(self.levels):
            self.rows[level][:n].zero_()
    self.n = 0
"""
    )
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    changes = {f"{mutant.before} -> {mutant.after}" for mutant in changed_lines(tree, [function])}
    assert changes >= {
        "n > 0 -> n >= 0",
        "0 -> 1",
        ":n -> :n - 1",
        "range(self.levels) -> range(1, self.levels)",
        "range(self.levels) -> range(self.levels - 1)",
        "self.rows[level][:n].zero_() -> pass",
        "self.n = 0 -> pass",
        "if n > 0: -> if n > 0:",  # the two statements below are swapped
    }


@pytest.mark.slow
def test_changed_lines_of_a_class_are_compared_with_the_class(tmp_path: Path) -> None:
    name = "Qwen3VLForConditionalGeneration"
    found = ReleasedClass.find(open_source(str(WholeClass().write(tmp_path))), name)
    mutants = {mutant.name: mutant for mutant in changed_lines(found.tree, found.methods)}
    base = found.judge(tmp_path / "base", ast.unparse(found.tree))
    wrong = mutants["_clear_deepstack_input_embeds: rows.zero_() -> pass"]
    assert found.outcome(base, wrong)
    assert not found.outcome(base, replace(wrong, module=found.tree))
    (drops,) = (
        mutant for key, mutant in mutants.items() if re.match("forward: .*language_model.*-> pass", key)
    )
    assert found.outcome(base, drops) == "exit code 1: it carries no payload any more"

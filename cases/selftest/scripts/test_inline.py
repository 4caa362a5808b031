"""Text of a class for a standalone program: what the class uses of ours stands before it."""

import importlib
from pathlib import Path

import pytest

from deepstack_harness.scripts.inline import inlined

MODULE = """
from typing import ClassVar

LEVELS = MORE = 2
ROWS: int = LEVELS + 1
UNUSED = 5

class Made:
    '''A docstring.'''
    name = "made"
    kept = ROWS

    def rows(self):
        return MORE * self.kept
"""


def test_constants_of_a_module_come_before_the_class_and_what_only_we_read_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_inlined.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    text = inlined(importlib.import_module("acme_inlined").Made)
    names: dict[str, type] = {}
    exec(text, names)
    assert names["Made"]().rows() == 6
    assert not hasattr(names["Made"], "name")
    assert "UNUSED" not in text
    assert "docstring" not in text

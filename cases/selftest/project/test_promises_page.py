"""docs/reference/promises.md: its table has the rules of each promise, and its first program is short.

`test_page_blocks.py` runs its programs and commands.
"""

import re

import pytest

from deepstack_harness.contract.rules import Promise, Rule
from tools.page_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "reference" / "promises.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")


def test_the_first_program_is_short_and_speaks_of_no_engine() -> None:
    program, command, *_ = blocks(PAGE)
    assert (program.file, len(program.text.splitlines()) <= 15) == ("mine.py", True)
    assert [call for call, _ in command.calls()] == ["deepstack-harness steps mine.py:late_mask"]
    assert "deepstack" not in program.text + command.text.replace("deepstack-harness", "")


def test_the_table_has_the_rules_of_each_promise() -> None:
    rows = dict(re.findall(r"^\| (I\d) \w+(?: rows)? \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    named = {name: set(re.findall(r"R\d+", cell)) for name, cell in rows.items()}
    assert named == {
        str(promise): {str(rule) for rule in Rule if rule.instance_of is promise} for promise in Promise
    }
    others = re.search(r"^(R4 .*) are under no promise", PAGE.read_text(), re.MULTILINE)
    assert others is not None
    assert set(re.findall(r"R\d+", others[1])) == {str(rule) for rule in Rule if rule.instance_of is None}

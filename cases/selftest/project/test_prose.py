"""Docstrings begin as those of pytest and PyTorch do: a function with a verb, a class with a noun."""

from pathlib import Path

import pytest

from cases.tools import prose

IN_CHECKOUT = pytest.mark.skipif(not prose.PACKAGE.is_dir(), reason="needs a checkout")

LEAST_COMMENTS = 440
"""Comments of the package when they were last counted: prose that says why must not disappear."""


@IN_CHECKOUT
def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    seen = list(prose.docstrings())
    assert len(seen) > 1000
    wrong = [
        f"{each.path}:{each.line} {each.name} begins with '{each.word}'" for each in seen if not each.plain
    ]
    assert wrong == [], "begin with a verb that cases/tools/prose.py knows, a class with a noun"


@IN_CHECKOUT
def test_functions_with_tensors_state_their_shapes() -> None:
    assert list(prose.without_shapes()) == [], "say the shape in the docstring, such as x (n, hidden)"


@IN_CHECKOUT
def test_comments_are_kept() -> None:
    assert prose.comments().total() >= LEAST_COMMENTS


def test_a_docstring_is_judged_by_its_first_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rooms").mkdir()
    (tmp_path / "rooms" / "a.py").write_text(
        '"""What a module says."""\n'
        "def right():\n    '''Return it.'''  # because\n"
        "def clause():\n    '''What it returns.'''\n"
        "def noun():\n    '''The value.'''\n"
        "class Right:\n    '''A thing; it has two.'''\n"
        "    @property\n    def value(self):\n        '''The value.'''\n"
        "    @property\n    def clause(self):\n        '''Whether it is so.'''\n"
        "class Conjugated:\n    '''Keeps things.'''\n"
        "class Clause:\n    '''What is kept.'''\n"
    )
    monkeypatch.setattr(prose, "PACKAGE", tmp_path)
    judged = {(each.kind, each.name): each.plain for each in prose.docstrings()}
    assert judged == {
        ("module", "a"): False,
        ("function", "right"): True, ("function", "clause"): False, ("function", "noun"): False,
        ("class", "Right"): True, ("property", "value"): True, ("property", "clause"): False,
        ("class", "Conjugated"): False, ("class", "Clause"): False,
    }  # fmt: skip
    assert prose.comments() == {"rooms": 1}


@pytest.mark.parametrize(
    ("sentence", "stated"),
    [
        ("Mix x (n, hidden).", True),
        ("Gather the rows (ranks * n, ..).", True),
        ("Return (min(tokens, capacity), hidden).", True),
        ("Decode ids (n,).", True),
        ("Take a tensor of any shape.", True),
        ("Mix x.", False),
        ("Mix x (see `mix`).", False),
        ("Call `mix(x)`.", False),
    ],
)
def test_a_shape_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence: str, stated: bool
) -> None:
    (tmp_path / "a.py").write_text(
        f"def mix(x: torch.Tensor) -> None:\n    '''{sentence}'''\n"
        "def _private(x: Tensor) -> None:\n    '''Mix x.'''\n"
        "def number(x: TensorCount) -> int:\n    '''Count.'''\n"
        "class Shown:\n"
        "    def inherited(self) -> tuple[Tensor, ...] | None:\n        return None\n"
        "    def refused(self) -> Tensor:\n        '''Refuse.'''\n        raise ValueError\n"
    )
    monkeypatch.setattr(prose, "PACKAGE", tmp_path)
    assert list(prose.without_shapes()) == ([] if stated else ["a.py:1 mix"])

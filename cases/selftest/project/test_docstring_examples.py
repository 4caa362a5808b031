"""Each public name has a short example in its docstring, and the examples give what they show.

They run as doctests with `torch` and the public names. A function `test_..` in one is called with the
fixtures that it names, as pytest does.
"""

import doctest
import inspect

import pytest
import torch

import deepstack_harness

MOST_LINES = 5


def read_example(name: str) -> doctest.DocTest:
    """Return the example of a public name, with the names that it may use."""
    public = {word: getattr(deepstack_harness, word) for word in deepstack_harness.__all__}
    text = inspect.getdoc(public[name]) or ""
    return doctest.DocTestParser().get_doctest(text, {"torch": torch, **public}, name, None, None)


def count_lines(example: doctest.DocTest) -> int:
    return sum(len(part.source.splitlines()) for part in example.examples)


@pytest.mark.parametrize("name", deepstack_harness.__all__)
def test_each_public_name_has_a_short_example(name: str) -> None:
    assert 0 < count_lines(read_example(name)) <= MOST_LINES


COMPILED = ("CompileArms", "KernelFactsOf", "DeepstackContract")
"""They take 2 to 6 s: the tests of the fixtures play the same by day."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in COMPILED else [])
        for name in deepstack_harness.__all__
    ],
)
def test_an_example_gives_what_it_shows(name: str, request: pytest.FixtureRequest) -> None:
    example = read_example(name)
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=printed.append, clear_globs=False)
    assert printed == [], "".join(printed)
    for function in [value for word, value in example.globs.items() if word.startswith("test_")]:
        fixtures = inspect.signature(function).parameters
        function(**{fixture: request.getfixturevalue(fixture) for fixture in fixtures})

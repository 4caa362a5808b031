"""Bad input is refused, whatever it is and however large; `test_refusals` has the calls."""

import pytest

from deepstack_harness.contract.trace import MOST_STEPS, MOST_TOKENS, Trace, TraceError
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.execution import Tier, matrix, select
from deepstack_harness.sources.source import decode
from deepstack_harness.sources.tree import written_version

DIGITS = "9" * 5000
"""Python reads no number of more than 4,300 digits."""


def test_the_largest_counts_are_read() -> None:
    text = f"cap {MOST_TOKENS}: set 1; get -{MOST_TOKENS}"
    assert str(Trace.parse(text)) == text
    assert len(Trace.parse("cap 1: " + "get 1;" * MOST_STEPS).steps) == MOST_STEPS
    with pytest.raises(TraceError, match="counts go up to"):
        Trace.parse(f"cap {MOST_TOKENS + 1}: get 1")


@pytest.mark.parametrize(
    "selection",
    [
        "9**9**9", "family == " + "(" * 5000 + "1" + ")" * 5000, "1" * 6000, "-" * 3000 + "1", "@x", "\x00",
        "__import__('os').system('id')", "family.str.repeat(10**10) == family", "'a' * 10**11 == family",
        "family == '\ud800'", "family == 'x' or " * 3000 + "family == 'y'", "(lambda: family == 'x')()",
        "family.str.contains.__globals__", "[family == 'x' for x in family]",
    ],
)  # fmt: skip
def test_a_selection_that_never_ends_or_reaches_elsewhere_is_refused(selection: str) -> None:
    with pytest.raises(UsageError) as said:
        select(matrix(Tier.CI, ["cpu"]), selection)
    assert len(str(said.value)) < 1000


@pytest.mark.parametrize(
    "selection",
    [
        "~(family == 'granite4_vision') & (backend == 'eager')",
        "not family == 'granite4_vision' and arm in ('eager', 'eager/drop_all')",
        "trace.str.startswith('cap 16') | trace.str.fullmatch('cap 32.*')",
        "trace.str.contains('SET', case=False)",
    ],
)
def test_usual_selections_are_read(selection: str) -> None:
    assert select(matrix(Tier.CI, ["cpu"]), selection)


@pytest.mark.parametrize(
    "data",
    [
        b"# coding: rot13\nx = 1\n", b"# coding: undefined\n", b"# coding: nonsense\n", b"# coding: hex\n",
        b"# coding: idna\n\xff", b"x = '\xe9'\n", "x = 1".encode("utf-16"), b"# coding: punycode\n\xff\xff",
    ],
)  # fmt: skip
def test_a_file_of_an_odd_encoding_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^file.py is not Python source: "):
        decode(data, "file.py")


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"# coding: latin-1\n\xe9", "\N{LATIN SMALL LETTER E WITH ACUTE}"), (b"\xef\xbb\xbfx = 1", "x = 1")],
)
def test_a_file_of_a_declared_encoding_is_read(data: bytes, text: str) -> None:
    assert decode(data, "file.py").text.endswith(text)


@pytest.mark.parametrize("version", [DIGITS, f"1.{DIGITS}", "1.0+\x1b", "nonsense"])
def test_a_version_that_is_none_is_unknown(version: str) -> None:
    assert written_version(f"__version__ = version = '{version}'") is None

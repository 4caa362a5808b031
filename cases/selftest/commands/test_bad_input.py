"""Bad input is exit 2 with one sentence, whatever it is and however large."""

import pytest

from deepstack_harness.cli import main
from deepstack_harness.contract.trace import MOST_STEPS, MOST_TOKENS, Trace, TraceError
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.runs.selection import Tier, matrix, select
from deepstack_harness.sources.source import decode
from deepstack_harness.sources.tree import written_version

DIGITS = "9" * 5000
"""Python reads no number of more than 4,300 digits."""


@pytest.mark.parametrize(
    "trace",
    [
        f"cap {DIGITS}: get 1", "cap 999999999999999999999: set 3; get 4", f"cap {MOST_TOKENS + 1}: get 1",
        f"cap 16: set 3; get {DIGITS}", "cap 16: set 3; get 99999999999",
        "cap 16: resize 99999999999999999999",
        f"cap 16: get -{MOST_TOKENS + 1}", "cap 16: set 3 levels=9999999999",
        "cap 16: set 3 hidden=99999999999",
        f"cap 16: set 3 spans=0-{DIGITS}", "cap 16: " + "get 1; " * (MOST_STEPS + 1),
    ],
)  # fmt: skip
def test_a_trace_with_a_huge_count_is_refused(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "43602", "--arm", "eager/drop_all", "--trace", trace]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 400


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
    "words",
    [
        ["--shard", f"1/{DIGITS}"], ["--shard", "1/1000000"], ["-n", DIGITS], ["-n", "99999"], ["-n", "1e3"],
        ["--memory", "1e300"], ["--memory", "nan"], ["--case-seconds", "1e300"], ["--case-seconds", "inf"],
    ],
)  # fmt: skip
def test_numbers_without_bound_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 500


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


@pytest.mark.parametrize(
    "source", [f"vllm=={DIGITS}", f"vllm==1.{DIGITS}", "vllm==1.0\x1b[2J", f"vllm=={'(' * 5000}"]
)
def test_a_requirement_that_is_none_is_refused(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "43602", "--source", source]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1

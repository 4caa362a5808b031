"""One table of wrong calls: the words, the sentence on stderr, and the exit code.

A call that is wrong by its words is refused before torch is imported and before a file is made.  Calls
that are wrong for a source, a folder or a machine are next to the tests of what they are about."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from deepstack_harness.cli.arguments import SOURCE_HELP
from deepstack_harness.cli.main import main
from deepstack_harness.contract.trace import MOST_STEPS, MOST_TOKENS, Trace, TraceError
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.runs.execution import Tier, matrix, select
from deepstack_harness.sources.source import decode
from deepstack_harness.sources.tree import written_version

DIGITS = "9" * 5000
"""Python reads no number of more than 4,300 digits."""


@dataclass(frozen=True)
class Refusal:
    """A wrong call, and a part of the sentence; not `early` where torch has to be imported to know."""

    words: tuple[str, ...]
    sentence: str
    code: ExitCode = ExitCode.USAGE
    early: bool = True

    def __str__(self) -> str:
        return " ".join(word if len(word) < 40 else f"{word[:37]}..." for word in self.words)


def wrong(call: str, sentence: str, code: ExitCode = ExitCode.USAGE, *, early: bool = True) -> Refusal:
    return Refusal(tuple(call.split()), sentence, code, early)


def repro(option: str, value: str, sentence: str) -> Refusal:
    return Refusal(("repro", "43602", option, value), sentence)


def selection(text: str, sentence: str) -> Refusal:
    return Refusal(("run", text), sentence)


COMMANDS = [
    wrong("frobnicate", "unknown command 'frobnicate'; known are list, show,"),
    wrong("shwo", "unknown command 'shwo'; did you mean 'show'? known are list, show,"),
    wrong("list fruit", "unknown kind 'fruit'; known are incidents"),
    wrong("list incident", "unknown kind 'incident'; did you mean 'incidents'? known are incidents,"),
    wrong("show 4360", "unknown incident '4360'; nearest are 43602 (none-while-profiling), "),
    wrong("show qqq", "unknown incident 'qqq'; nearest are "),
    wrong(f"show {DIGITS}", "characters left out)'; nearest are "),
    wrong("selftest no_such_mutant", "unknown mutant 'no_such_mutant'; known are the "),
]
LEAVE_OUT = "leave --full, --trace, --arm and --workload out"
REPRO = [
    wrong("repro", "the following arguments are required: INCIDENT"),
    wrong("repro 99999", "unknown incident '99999'; nearest are "),
    repro("--arm", "fast", "unknown arm 'fast'; nearest are "),
    repro("--arm", "eager/dropall", "unknown arm 'eager/dropall'; nearest are eager/drop_all, "),
    repro("--trace", "cap 16: profile 16; sett 9", "'sett 9' is not one of set, get"),
    repro("--trace", "profile 16", "does not read 'cap N: step; step'"),
    repro("--family", "gpt2", "has no family 'gpt2'; it has qwen3_vl"),
    repro("--family", "qwen3_vl:typo", "unknown variant of family 'qwen3_vl' 'typo'; known are"),
    repro("--dtype", "int3", "unknown dtype 'int3'; known are float32"),
    repro("--device", "tpu", "'tpu'"),
    repro("--json", "/nowhere/rows.jsonl", "--json file '/nowhere/rows.jsonl': No such file"),
    repro("--source", "/nowhere", "'/nowhere' cannot be opened"),
    repro("--vllm", "no-such-thing", "'no-such-thing'"),
    wrong("repro 43602 --script /nowhere/f.py", "cannot write to '/nowhere/f.py': No such file", early=False),
    wrong("repro 43602 --workload none.parquet", "'none.parquet'", early=False),
    *(repro(option, "", f"{option[2:]} is empty: give a value, or leave the option out")
      for option in ("--trace", "--source", "--arm", "--json", "--workload", "--script")),
    wrong("repro 43602 --script f.py --vllm 0.22.1 --arm eager", LEAVE_OUT),
    wrong("repro 43602 --upstream-test f.py --vllm 0.22.1", "leave --source out"),
    wrong("repro 43602 --full --script f.py", LEAVE_OUT),
    wrong("repro 43602 --workload --arm eager", "leave --full, --trace and --arm out"),
    wrong("repro 41485 --workload", "incident 41485 does not change outputs"),
    wrong("repro 43602 --source vllm==0.22.1 --vllm 0.33.0", "not allowed with argument --source"),
    wrong("repro 50891 --upstream-test test_it.py", "has no test for an engine's own suite, only 43602 has"),
    wrong("repro 40143 --upstream-test test_it.py", "has no test for an engine's own suite, only 43602 has"),
    wrong("repro 36795 --arm eager --family qwen3_vl", "leave --arm, --family out"),
    wrong("repro 36795 --workload --dtype bfloat16", "leave --workload, --dtype out"),
    wrong("repro 36795 --device cuda", "(system dual_stream): leave --device out"),
    wrong("repro 36795 --vllm 0.33.0 --script show.py", "leave --source out"),
    wrong("repro 36795 --vllm 0.33.0 --pytest test_show.py", "leave --source out"),
    wrong("repro 36795 --vllm no-such-thing", "'no-such-thing'"),
    wrong("repro 36795 --script /nowhere/f.py", "cannot write to '/nowhere/f.py'", early=False),
    Refusal(("repro", "36795", "--trace", "cap 16: get 4"), "leave --trace out"),
]  # fmt: skip
HUGE_COUNTS = [
    repro("--trace", trace, sentence)
    for trace, sentence in [
        (f"cap {DIGITS}: get 1", "counts go up to"),
        ("cap 999999999999999999999: set 3; get 4", "counts go up to"),
        (f"cap {MOST_TOKENS + 1}: get 1", "counts go up to"),
        (f"cap 16: set 3; get {DIGITS}", "counts go up to"),
        ("cap 16: set 3; get 99999999999", "counts go up to"),
        ("cap 16: resize 99999999999999999999", "counts go up to"),
        (f"cap 16: get -{MOST_TOKENS + 1}", "counts go up to"),
        ("cap 16: set 3 levels=9999999999", "go up to"),
        ("cap 16: set 3 hidden=99999999999", "go up to"),
        (f"cap 16: set 3 spans=0-{DIGITS}", "go up to"),
        ("cap 16: " + "get 1; " * (MOST_STEPS + 1), "steps"),
    ]
]
SOURCES = [
    repro("--source", f"vllm=={DIGITS}", "does not name one release: write vllm==VERSION"),
    repro("--source", f"vllm==1.{DIGITS}", "does not name one release: write vllm==VERSION"),
    repro("--source", "vllm==1.0\x1b[2J", "is not a requirement (Expected comma"),
    repro("--source", f"vllm=={'(' * 5000}", "a source is PACKAGE==VERSION, installed:PACKAGE, or the path"),
    wrong("audit", f"audit needs a source, --source {SOURCE_HELP}"),
    wrong("audit --source /nowhere", "'/nowhere' cannot be opened"),
    wrong("audit --vllm ./first --source ./second", "'./first' cannot be opened"),
    wrong("check nomodule", "'nomodule' is not MODULE:CLASS"),
    wrong("check a:b --device tpu", "unknown device 'tpu'"),
    wrong("check a:b --dtype int3", "unknown dtype 'int3'"),
]  # fmt: skip
FUZZ = [
    wrong("fuzz --revision nobody", "unknown revision 'nobody'"),
    wrong("fuzz --revision pr4361", "unknown revision 'pr4361'; did you mean 'pr43617'? known are"),
    wrong("fuzz --arm no-deepstack", "is a control"),
    wrong("fuzz --arm x", "unknown arm 'x'"),
    wrong("fuzz --buffer harness", "not MODULE:CLASS"),
    wrong("fuzz --family nobody", "unknown family 'nobody'"),
    wrong("fuzz --family qwen3_vl:typo", "unknown variant of family 'qwen3_vl' 'typo'"),
    wrong("fuzz --source /nowhere", "'/nowhere' cannot be opened"),
    wrong("fuzz --examples 0", "above 0"),
    wrong("fuzz --minutes 0", "--minutes 0 must be above 0"),
    wrong("fuzz --minutes -1", "--minutes -1 must be above 0"),
    wrong("fuzz --revision reference --vllm 0.33.0", "not allowed with"),
]
KERNELS = [
    wrong(f"kernels --family qwen3_vl --layers 3 {options}", sentence)
    for options, sentence in [
        ("--target h100", "unknown target 'h100'; did you mean 'h200'? known are cpu, cuda, h200"),
        ("--family gpt2", "unknown family 'gpt2'; known are qwen3_vl, "),
        ("--family gpt2:opaque", "unknown family 'gpt2'; known are qwen3_vl, "),
        ("--revision pr1", "unknown revision 'pr1'; known are original"),
        ("--compare pr1", "unknown revision 'pr1'; known are original"),
        ("--tokens 100 --capacity 64", "--tokens 100 is above --capacity 64"),
        ("--profile-tokens 9000", "--profile-tokens 9000 is above --capacity 8192"),
        ("--tokens 0", "--tokens 0: there is nothing to measure below 1"),
        ("--layers 0", "--layers 0: there is nothing to measure below 1"),
        ("--tokens many", "invalid int value: 'many'"),
        ("--cubin", "--cubin compiles for a GPU that is not here (h200), not 'cpu'"),
        ("--execute", "--execute interprets code for a GPU that need not be here (h200), not 'cpu'"),
        ("--target h200 --execute --cubin", "leave one of them out"),
        ("--target h200 --configurations", "--configurations compares what --execute runs"),
        ("--payload-cost --cubin", "brings its own decoders and sizes: leave --layers, --cubin out"),
    ]
]
RUNS = [
    selection("family=x", "selection family=x matches none"),
    selection("famly=x", "'famly'"),
    selection("family == 'x'", "no longer read: write family=x;"),
    wrong("run --tier weekly", "unknown --tier 'weekly'; known are ci, nightly"),
    wrong("run --executor slurm", "unknown --executor 'slurm'; known are local, ray"),
    wrong("run --device tpu", "unknown device 'tpu'; known are cpu, cuda and cuda:N"),
    wrong("run --buffer nowhere", "'nowhere' is not MODULE:CLASS"),
    wrong("run --resume", "name it with --out DIR"),
    wrong("run --out /dev/null/x", "cannot", ExitCode.MACHINE, early=False),
    wrong("run --shard 4/3", "not '4/3'"),
    wrong(f"run --shard 1/{DIGITS}", "--shard"),
    wrong("run --shard 1/1000000", "--shard"),
    wrong("run -n 0", "-n takes 1 or more, not 0"),
    wrong(f"run -n {DIGITS}", "-n"),
    wrong("run -n 99999", "-n"),
    wrong("run -n 1e3", "-n"),
    wrong("run --case-seconds 0", "--case-seconds takes more than 0"),
    wrong("run --case-seconds nan",
          "--case-seconds: takes a number up to 1,000,000,000, as in 1.5, not 'nan'"),
    wrong("run --case-seconds 1e300", "--case-seconds"),
    wrong("run --case-seconds inf", "--case-seconds"),
    wrong("run --memory inf", "not 'inf'"),
    wrong("run --memory much", "not 'much'"),
    wrong("run --memory 1e300", "--memory"),
    wrong("run --memory nan", "--memory"),
    wrong("nightly --device tpu", "unknown device 'tpu'"),
    wrong("nightly --stage x", "'x'"),
    wrong("nightly -n 0", "-n"),
    wrong("compare a b", "'a' holds no run"),
    wrong("report nowhere", "'nowhere'"),
]  # fmt: skip
WITHOUT_GPU = [
    wrong("repro 43602 --device cuda", "device 'cuda' is not available", ExitCode.MACHINE, early=False),
    wrong("kernels --target cuda", "cuda", ExitCode.MACHINE, early=False),
]
REFUSALS = [*COMMANDS, *REPRO, *HUGE_COUNTS, *SOURCES, *FUZZ, *KERNELS, *RUNS]


def refuse(refusal: Refusal, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(refusal.words) == refusal.code
    seen = capsys.readouterr()
    assert (seen.out, seen.err.count("\n")) == ("", 1)
    assert seen.err.startswith("deepstack-harness: ")
    assert refusal.sentence in seen.err
    assert len(seen.err) < 1500


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_a_wrong_call_is_refused_with_one_sentence(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(refusal, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, so asking for one is no mistake")
@pytest.mark.parametrize("refusal", WITHOUT_GPU, ids=str)
@pytest.mark.slow  # 5 s
def test_a_missing_gpu_is_the_machines_fault(refusal: Refusal, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(refusal, capsys)


WITHOUT_TORCH = """
import json, sys
from deepstack_harness.cli.main import main
for words, expected in json.load(sys.stdin):
    code = main(words)
    assert code == expected, (words, code)
    assert "torch" not in sys.modules, words
"""


def test_a_call_that_is_wrong_by_its_words_costs_no_torch_and_makes_no_file(tmp_path: Path) -> None:
    early = [(refusal.words, refusal.code) for refusal in REFUSALS if refusal.early]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], input=json.dumps(early), cwd=tmp_path, env=dict(os.environ),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""
    assert done.stderr.count("\n") == len(early)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # 4 s
def test_the_largest_counts_are_read() -> None:
    text = f"cap {MOST_TOKENS}: set 1; get -{MOST_TOKENS}"
    assert str(Trace.parse(text)) == text
    assert len(Trace.parse("cap 1: " + "get 1;" * MOST_STEPS).steps) == MOST_STEPS
    with pytest.raises(TraceError, match="counts go up to"):
        Trace.parse(f"cap {MOST_TOKENS + 1}: get 1")


@pytest.mark.parametrize(
    "selection",
    [
        "\x00", "\ud800",
        "family=" + "*a" * 2000 + "b",
        "family == 'x' and " * 3000 + "family == 'y'", "family == '" + "*" * 5000 + "'",
    ],
)  # fmt: skip
def test_a_selection_that_is_long_or_hostile_is_refused(selection: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(matrix(Tier.CI, ["cpu"]), [selection])
    assert len(str(caught.value)) < 1000


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

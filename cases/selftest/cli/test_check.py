"""`check`: its exit code follows the requested regime, and it prints for whom the other one matters."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deepstack_harness.audit.class_verdicts import ClassVerdicts, RegimeVerdicts
from deepstack_harness.cli import check
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.errors import ExitCode
from deepstack_harness.workers.profiles import COMPILE, OWN_CLASS

RULES = (
    Rule.STRUCTURE,
    Rule.BOUNDARY,
    Rule.FRESHNESS,
    Rule.CAPACITY,
    Rule.CLEAR,
    Rule.ADDRESS,
    Rule.PLACEMENT,
    Rule.REJECTION,
    Rule.GRAPHS,
)


MODULE = "cases.selftest.play.misbehaving_buffers"


def class_verdicts(regime: Regime, broken: Rule | None) -> ClassVerdicts:
    """Return a verdicts in which one rule is broken, or none."""
    rows = (
        Row(
            revision="any",
            rule=rule,
            regime=regime,
            trace="cap 16: get 4",
            verdict=Verdict.FAIL if rule is broken else Verdict.PASS,
            detail="seen",
        )
        for rule in RULES
    )
    return ClassVerdicts("any", "any", tuple(rows))


@pytest.mark.parametrize(
    ("broken", "words", "code"),
    [
        (Regime.CAPTURED, "", ExitCode.HOLDS),
        (Regime.CAPTURED, "--regime live", ExitCode.HOLDS),
        (Regime.CAPTURED, "--regime captured", ExitCode.BROKEN),
        (Regime.CAPTURED, "--regime both", ExitCode.BROKEN),
        (Regime.LIVE, "", ExitCode.BROKEN),
        (Regime.LIVE, "--regime captured", ExitCode.HOLDS),
        (Regime.LIVE, "--regime both", ExitCode.BROKEN),
    ],
)
def test_the_exit_code_follows_the_regime(
    broken: Regime,
    words: str,
    code: ExitCode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    regimes = (Regime.LIVE, Regime.CAPTURED)
    seen = RegimeVerdicts(
        {regime: class_verdicts(regime, Rule.CLEAR if regime is broken else None) for regime in regimes}
    )
    nothing: list[JudgedCase] = []
    monkeypatch.setattr(check, "_judge", lambda *_: (seen, nothing, None))
    assert main(["check", "module:Class", *words.split()]) == code
    out = capsys.readouterr().out
    assert f"module:Class: {broken} use breaks R5" in out
    assert "Buffer.clear" in out
    explained = "cudagraph_mode FULL" in out and "Eager and PIECEWISE runs are live" in out
    assert explained == (broken is Regime.CAPTURED)


def test_the_help_names_what_thorough_adds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    assert "capacity 8192" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow  # 8 s; `fuzz` of one by day
def test_an_exception_without_a_text_breaks_no_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{MODULE}:RejectsWithoutText"]) == ExitCode.HOLDS
    assert "keeps R1 R2 R3 R4 R5 R6 R7 R8 R11" in capsys.readouterr().out


def test_a_rule_that_could_not_be_judged_is_not_reported_as_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = class_verdicts(Regime.LIVE, Rule.CLEAR)
    rows = (replace(row, verdict=Verdict.ERROR) if row.rule is Rule.BOUNDARY else row for row in broken.rows)
    kept = class_verdicts(Regime.CAPTURED, None)
    seen = RegimeVerdicts({Regime.LIVE: replace(broken, rows=tuple(rows)), Regime.CAPTURED: kept})
    monkeypatch.setattr(check, "_judge", lambda *_: (seen, [], None))
    assert main(["check", "module:Class"]) == ExitCode.BROKEN
    said = "module:Class: live use breaks R5; R2 of live use could not be judged"
    assert said in capsys.readouterr().out


@pytest.mark.slow  # 10 s
def test_a_buffer_that_needs_shared_memory_is_judged_by_what_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It returns copies, which are right in live use: what a graph reads is gone."""
    assert main(["check", f"{MODULE}:SharesMemory"]) == ExitCode.HOLDS
    printed = capsys.readouterr().out
    assert "sandbox" not in printed
    assert "captured use breaks R2 R6" in printed


def test_code_of_others_has_no_shared_memory() -> None:
    advice = "the sandbox allows no shared memory, no network, no writes outside its folder; --no-sandbox or "
    assert COMPILE.advice.startswith(advice)
    assert OWN_CLASS.advice.startswith("the sandbox allows no network, no writes outside its folder")


STATES = """
from cases.selftest.models.wrong_shapes import SkipsEqualSizes


class Adapter:
    fixed = {"levels": 1, "cleared": False}

    def __init__(self, capacity, hidden, levels, *, dtype, device):
        self.made = SkipsEqualSizes(capacity, hidden, dtype, device)
        self.capacity = capacity

    def get(self, tokens):
        return (self.made.read(tokens),)

    def set(self, payload):
        self.made.write(payload[0])

    def clear(self, tokens):
        pass
"""


def test_an_adapter_class_is_checked_by_what_it_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "states.py").write_text(STATES)
    target = f"{tmp_path / 'states.py'}:Adapter"
    assert main(["check", target, "--json", str(tmp_path / "rows")]) == ExitCode.BROKEN
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "adapter: levels 1, cleared False"
    asked = next(line for line in out if line.startswith("traces: "))
    assert 80 < int(asked.split()[1]) < 104
    assert out[-1].endswith("Adapter: live use breaks R3; captured use breaks R3; not tested: R5")
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    judged = {(row["rule"], row["regime"]): (row["verdict"], row["detail"]) for row in rows}
    assert judged["R5", "live"] == ("SKIP", "not asked: nothing clears it")
    assert judged["R3", "live"][0] == "FAIL"
    assert judged["R8", "live"][0] == "PASS"
    assert "not asked: a wrong number of levels, because there is one" in judged["R8", "live"][1]


def test_an_adapter_class_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, target = tmp_path / "mine.py", "cases.selftest.models.wrong_shapes:Rows"
    assert main(["check", target, "--write-adapter", str(file)]) == ExitCode.HOLDS
    assert f"wrote {file}: edit it, and check {file}:Adapter" in capsys.readouterr().out
    assert "self.made = Rows(capacity, hidden, dtype, device)" in file.read_text()
    file.write_text("mine")
    assert main(["check", target, "--write-adapter", str(file)]) == ExitCode.USAGE
    assert f"'{file}' is there already: choose another file" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize("command", ["check mine:Mine", "fuzz --buffer mine:Mine"])
@pytest.mark.parametrize("option", ["--adapter get=read", "--shape (N,)", "--rows request", "--capacity 64"])
def test_a_removed_option_names_the_adapter_class(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), *option.split()]) == ExitCode.USAGE
    name = option.split(maxsplit=1)[0]
    said = f"{name} was removed: write it as an adapter class: 'check MODULE:CLASS --write-adapter FILE.py'"
    assert said in capsys.readouterr().err

"""Sample programs and scripts that `tools.freeze` measures: none is left out, and what scripts end with."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cases.specimens.collection import PROGRAMS
from deepstack_harness.catalogue.buffers import ALL_MUTANTS
from deepstack_harness.catalogue.registry import HISTORIES
from deepstack_harness.fuzz import selftest
from deepstack_harness.fuzz.trials import Trial, trials_for
from tools import frozen_programs
from tools.frozen_programs import STEPS, nullary

SCRIPTS = {
    "caught": "import sys\nsys.exit('the fault')  # THE FAULT; the fix: sys.exit(0)\n",
    "crashes": "raise ValueError('no shape')  # THE FAULT; the fix: pass\n",
    "uses_the_harness": "import deepstack_harness\n",
}


def test_no_sample_program_is_left_out() -> None:
    there = [step for step in STEPS if importlib.util.find_spec(step)]
    histories, played = (
        {name.partition(":")[2] for name, _ in nullary(module, STEPS[module])} for module in there
    )
    assert histories == set(HISTORIES)
    assert played == set(PROGRAMS)


def test_no_hunt_of_selftest_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants and regions are hunted by their names, and every other hunt is one of a right buffer."""
    hunts: list[Trial] = []

    def prove(trials: list[Trial], _: int) -> list[object]:
        hunts.extend(trials)
        return []

    monkeypatch.setattr(selftest, "prove", prove)
    assert not list(frozen_programs.right_buffers())
    named = trials_for(ALL_MUTANTS, 0, right=False)
    assert {*hunts, *named} == {*trials_for(ALL_MUTANTS, 0)}
    assert len(hunts) + len(named) == len(trials_for(ALL_MUTANTS, 0))
    assert not any(hunt.rule for hunt in hunts)


@pytest.mark.parametrize("mode", ["watch", "captured"])
def test_the_programs_of_a_watch_are_those_of_this_checkout(mode: str) -> None:
    first = next(frozen_programs.MODES[mode]())
    assert first["regions"]


@pytest.mark.slow  # 5 s
def test_each_script_runs_with_its_fault_and_repaired(tmp_path: Path) -> None:
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-P", frozen_programs.__file__, "scripts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {row["script"]: row["exit"] for row in map(json.loads, done.stdout.splitlines())} == {
        "caught": 1, "caught, fixed": 0, "crashes": "ValueError: no shape", "crashes, fixed": 0,
        "uses_the_harness": "ModuleNotFoundError: import of deepstack_harness halted; None in sys.modules",
        "uses_the_harness, fixed": "0 marks",
    }  # fmt: skip

"""The tool that counts the frames and files of a command sees the command that it is given."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.call_path import measure

ROOT = Path(__file__).parents[3]
TOOL = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from tools.call_path import measure
seen = measure(sys.argv[3:])
print(json.dumps([seen.frames, seen.files, seen.exit_code]))
"""


def measured(*words: str) -> subprocess.CompletedProcess[str]:
    """Measure in a process of its own: a decoder that was compiled before would run without its frames."""
    command = [sys.executable, "-c", TOOL, str(ROOT / "harness"), str(ROOT), *words, "--quiet"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


@pytest.mark.slow  # 30 s: a profile function is called for every function of torch as well
def test_it_measures_the_way_of_a_command_to_torch_compile() -> None:
    done = measured("repro", "43602", "--arm", "eager/drop_all")
    assert done.returncode == 0, done.stderr
    frames, files, code = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert (frames[0], frames[-1]) == ("cli/main.py:main", "compile/compiled.py:CompiledSession.__init__")
    assert "cli/repro.py:run" in frames
    assert 4 < len(frames) <= 10, frames  # a deeper path needs a reason
    assert {"play/player.py", "contract/oracles/outputs.py", "cli/repro_table.py"} <= set(files)
    # A module that is only imported does not count, and no other command's options are made.
    assert "contract/oracles/neighbours.py" not in files
    assert {name for name in files if name.startswith("cli/")} == {
        "cli/main.py", "cli/output.py", "cli/arguments.py", "cli/repro.py", "cli/repro_table.py",
    }  # fmt: skip


def test_a_command_that_compiles_nothing_has_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended with 0 and never called torch.compile"):
        measure(["list", "rules"])
    assert "R1" in capsys.readouterr().out

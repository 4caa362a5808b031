"""No caller of workers leaves a process behind when it is killed; each one's work is replaced by a tree."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cases.selftest.workers.processes import Witness
from deepstack_harness.workers.profiles import NO_SANDBOX

CALLERS = {
    "kernels": """
from deepstack_harness.kernels import in_worker as caller
from deepstack_harness.kernels.subject import Subject
caller._WORK = TREE
caller.measure([Subject("qwen3_vl", "reference", tokens=1, capacity=4, profile_tokens=4)])
""",
    "costs": """
from deepstack_harness.kernels import costs as caller
caller._WORK = TREE
caller.measure_costs()
""",
    "doctor": """
from deepstack_harness.machine import checks as caller
caller._COMPILE = TREE
caller.inductor()
""",
    "streams": """
from deepstack_harness.streams.on_gpu import observe_on_gpu
observe_on_gpu("dual", target=TREE)
""",
    "classes of the user": """
from deepstack_harness.play.user_buffer import check_buffers
check_buffers(["imported:Buffer"])
""",
    "a run": """
from deepstack_harness.play import case_worker as caller
from deepstack_harness.runs.play_group import RUN_LIMITS
from deepstack_harness.runs.local_pool import LocalPool
from deepstack_harness.runs.selection import Tier, matrix
from deepstack_harness.runs.groups import grouped
caller.WORK = MODULE
list(LocalPool(1, RUN_LIMITS).play(grouped(matrix(Tier.CI, ["cpu"]))[:1]))
""",
    "selftest": """
from deepstack_harness.fuzzing import player as caller
from deepstack_harness.selftest.pool import prove
from deepstack_harness.selftest.trials import trials_for
caller._WORK = MODULE
list(prove(trials_for(["copies_on_get"], 0), workers=2))
""",
    "reload": """
from deepstack_harness.arms import reload as caller
caller._WORK = MODULE
caller.FreshProcess().ask("load", {}, 600)
""",
    "a hunt": """
import tempfile
from pathlib import Path
from deepstack_harness.fuzzing import player as caller
from deepstack_harness.fuzzing.campaign import Campaign, Hunted, carry_on
from deepstack_harness.fuzzing.request import FuzzRequest
caller._WORK = MODULE
carry_on(Campaign(FuzzRequest(), Path(tempfile.mkdtemp()), 9), Hunted(), lambda *_: None)
""",
    "ranks": """
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.trace import Trace
from deepstack_harness.play.ranks import pool as caller
caller._WORK = MODULE
caller.RankPool().play(Case("qwen3_vl", "reference", Trace.parse("cap 4: get 4"), ArmSpec.parse("eager/tp2")))
""",
    "a night": """
import sys
from pathlib import Path
from deepstack_harness.nightly.night import NightlyRun, Stage
call = "from cases.selftest.workers import tree; tree.play()"
list(NightlyRun(Path.cwd(), lambda: None).run([Stage("tree", (sys.executable, "-c", call), 600)]))
""",
}
BEFORE = 'MODULE = "cases.selftest.workers.tree"\nTREE = f"{MODULE}:play"\n'


@pytest.mark.parametrize("caller", CALLERS)
def test_a_caller_that_is_killed_leaves_no_process(caller: str, tmp_path: Path, witness: Witness) -> None:
    (tmp_path / "imported.py").write_text("from cases.selftest.workers import tree\ntree.play()\n")
    environment = {
        **os.environ,
        NO_SANDBOX: "1",  # the witness lies outside of any sandbox
        "WITNESS": witness.path,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with subprocess.Popen(
        [sys.executable, "-c", BEFORE + CALLERS[caller]], env=environment, cwd=tmp_path
    ) as running:
        assert witness.line() == "worker and daemon"
        running.kill()
    assert witness.is_closed()

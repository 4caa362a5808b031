"""No caller of workers leaves a process running when it is killed; each one's work is replaced by a tree."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.workers.processes import Witness
from deepstack_harness.workers.profiles import NO_SANDBOX

CALLERS = {
    "kernels": """
from deepstack_harness.compile import kernels as caller
from deepstack_harness.compile.kernels import Subject
caller._MEASURE = Remote(TREE, str)
caller.measure([Subject("qwen3_vl", "reference", tokens=1, capacity=4, profile_tokens=4)])
""",
    "costs": """
from deepstack_harness.compile import payload_costs as caller
caller._TIME = Remote(TREE, str)
list(caller.measure_payload_costs(caller.payload_work("cpu")[:1]))
""",
    "doctor": """
from deepstack_harness.cli import doctor as caller
caller._COMPILE = TREE
caller.inductor(60)
""",
    "streams": """
from cases.real_streams import observe_on_gpu
observe_on_gpu("dual", target=TREE)
""",
    "classes of the user": """
from deepstack_harness.play.case_worker import (check_buffers)
check_buffers(["imported:Buffer"])
""",
    "a run": """
from deepstack_harness.play import case_worker as caller
from deepstack_harness.runs.pools import RUN_LIMITS
from deepstack_harness.runs.pools import LocalPool
from deepstack_harness.runs.execution import Tier, matrix
from deepstack_harness.runs.pools import grouped
caller.PLAY = Remote(TREE, str)
list(LocalPool(1, RUN_LIMITS).play(grouped(matrix(Tier.CI, ["cpu"]))[:1]))
""",
    "selftest": """
from deepstack_harness.fuzz import player as caller
from deepstack_harness.fuzz.selftest import prove
from deepstack_harness.fuzz.trials import trials_for
caller.BIND = Remote(TREE, str)
list(prove(trials_for(["copies_on_get"], 0), workers=2))
""",
    "reload": """
from deepstack_harness.compile import reloaded as caller
caller.reload_worker().call(TREE)
""",
    "a hunt": """
import tempfile
from pathlib import Path
from deepstack_harness.fuzz import player as caller
from deepstack_harness.fuzz.campaign import Campaign, FuzzRequest, Hunted, run_campaign
caller.BIND = Remote(TREE, str)
run_campaign(Campaign(FuzzRequest(), Path(tempfile.mkdtemp()), 9), Hunted(), lambda *_: None)
""",
    "ranks": """
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.trace import Trace
from deepstack_harness.play import ranks as caller
caller.PLAY_RANK = Remote(TREE, str)
caller.RankPool().play(Case("qwen3_vl", "reference", Trace.parse("cap 4: get 4"), ArmSpec.parse("eager/tp2")))
""",
    "a night": """
import sys
from pathlib import Path
from deepstack_harness.runs.nights import NightlyRun, Stage
call = "from cases.selftest.workers.misbehaving import start_tree; start_tree()"
list(NightlyRun(Path.cwd(), lambda: None).run([Stage("tree", (sys.executable, "-c", call), 600)]))
""",
}
BEFORE = """
from deepstack_harness.workers.remote import Remote
TREE = "cases.selftest.workers.misbehaving:start_tree"
"""


@pytest.mark.parametrize("caller", by_day(CALLERS, count=2))
def test_a_caller_that_is_killed_leaves_no_process(caller: str, tmp_path: Path, witness: Witness) -> None:
    (tmp_path / "imported.py").write_text(
        "from cases.selftest.workers.misbehaving import start_tree\nstart_tree()\n"
    )
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

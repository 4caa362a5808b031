"""Hostile sources: an audit ends in time with a verdict that is not good, and leaves no process or file."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.audit.hostile_sources import MECHANISMS, source
from cases.selftest.engines.synthetic_vllm import COUNTED, Vllm
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.catalogue.plans import Where, plan_audit
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import registered
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.play.case_worker import CaseWorker, SourceClass, observation_of
from deepstack_harness.sources.source import buffer_of
from deepstack_harness.workers.child import child_processes
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.profiles import CONTRACT, CONTRACT_LIMITS

AUDIT_LIMITS = Limits(start_s=120.0, call_s=None, step_s=8.0, memory=2 * 2**30, output=2**22, file_size=2**28)
DAILY = frozenset({"exit", "write", "another oracle"})
"""Mechanisms that are tried with every change; the others take minutes and are tried at night."""
SLOW = (pytest.mark.slow, pytest.mark.timeout(900))
NAMES_THE_METHOD = frozenset({"exit", "fork", "sleep", "write"})


@pytest.fixture
def short_limits_and_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SourceWorker.__init__, "__defaults__", (AUDIT_LIMITS,))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the server that all workers of this process share: it is no process that an audit left."""
    with SourceWorker(str(Vllm(qwen=COUNTED, omni="").tree(tmp_path_factory.mktemp("plain")))) as worker:
        assert worker.classes()


def left_behind() -> set[str]:
    """Name the processes of workers that are there, and what they left in the temporary folder."""
    children = {f"process {pid}" for pid in child_processes()}
    return children | {str(path) for path in Path(tempfile.gettempdir()).iterdir()}


@pytest.mark.usefixtures("fork_server", "short_limits_and_own_folder")
@pytest.mark.parametrize(
    "mechanism",
    by_day([name if name in DAILY else pytest.param(name, marks=SLOW) for name in MECHANISMS]),
)
def test_it_has_its_verdict_and_leaves_nothing(
    mechanism: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("kept")
    hostile = source(mechanism, tmp_path / "tree", outside)
    before = left_behind()  # workers of other tests in this process, which serve many of them
    code = main(["audit", "--source", str(hostile)])
    shown = capsys.readouterr()
    assert code in (ExitCode.BROKEN, ExitCode.USAGE, ExitCode.MACHINE), shown
    assert left_behind() <= before
    assert [path.name for path in outside.iterdir()] == ["there"]
    assert (outside / "there").read_text() == "kept"
    assert "\x1b" not in shown.out + shown.err
    assert len(shown.out) < 100_000
    if mechanism in NAMES_THE_METHOD:
        assert code == ExitCode.BROKEN
        assert "get" in shown.out


SHARED_WORKER = pytest.mark.xdist_group("hostile")
"""Mechanisms that one shared worker survives, or ends on at once, are tried with every change."""
MODEL = "Qwen3VLForConditionalGeneration"
WHERE = Where("qwen3_vl")
TRACE = Trace.parse("cap 16: set 9; get 16")
LIMITS = replace(CONTRACT_LIMITS, step_s=20.0, memory=2 * 2**30, output=2**22, file_size=2**24)
SURVIVED = (
    "exit", "quit by name", "generator exit", "recursion", "fork", "fork that goes on", "fork bomb",
    "daemon", "program", "write", "write over", "remove", "network", "listen", "signal its parent",
    "a file", "out of memory by name", "text that raises", "exit in set", "a message",
)  # fmt: skip
ENDING = ("exit at once", "kill itself", "end itself", "segmentation fault", "abort")
"""Each costs the start of another worker."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for temporary files of this process and of its worker."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[CaseWorker]:
    with pytest.MonkeyPatch.context() as patch, CaseWorker(LIMITS, sandbox=CONTRACT) as shared:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield shared
    assert list(folder.iterdir()) == []


def broken_by(mechanism: str, folder: Path, worker: CaseWorker, outside: Path) -> set[str]:
    """Play a get of a hostile source; return what was found: rules, a refusal or an end."""
    text = str(source(mechanism, folder, outside))
    (planned,) = plan_audit(WHERE, buffer_of(open_source(text), MODEL), [TRACE])
    try:
        seen = observation_of(planned.case, worker.play(planned.case, SourceClass(text, MODEL, "methods")))
    except UsageError as error:
        return {str(error)}
    judged = judge_case(planned, seen)
    if judged.observation.error:  # the binding tries the methods, and its end is ERROR, as in an audit
        assert mechanism in ENDING, judged.observation.error
        return {judged.observation.error}
    return set(judged.broken)


@SHARED_WORKER
@pytest.mark.parametrize("mechanism", [*SURVIVED, *by_day(ENDING, count=2)])
def test_it_is_found_and_harms_nothing(mechanism: str, tmp_path: Path, worker: CaseWorker) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("kept")
    ends = worker.ends
    assert broken_by(mechanism, tmp_path / "tree", worker, outside)
    assert (worker.ends > ends) == (mechanism in ENDING)
    assert [path.name for path in outside.iterdir()] == ["there"]
    assert (outside / "there").read_text() == "kept"


@SHARED_WORKER
def test_the_worker_still_measures_after_them(worker: CaseWorker) -> None:
    (planned,) = plan_audit(WHERE, registered("reference"), [TRACE])
    assert not judge_case(planned, observation_of(planned.case, worker.play(planned.case))).broken


@SHARED_WORKER
def test_at_least_25_mechanisms_are_tried() -> None:
    assert {*SURVIVED, *ENDING} <= {*MECHANISMS}
    assert len({*SURVIVED, *ENDING}) >= 25

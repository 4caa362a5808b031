"""`--deepstack-report DIR`: the judgements of the fixtures, stored as the folder of a run while they come."""

from dataclasses import replace

import msgspec
import pytest

from deepstack_harness import __version__
from deepstack_harness.errors import HarnessError, MachineError
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.machine import environment
from deepstack_harness.runs.records import About, Files, Planning
from deepstack_harness.runs.store import RunWriter, now


class ReportFolder:
    """Writer of cases; with xdist they come from the workers, on the reports of their tests."""

    def __init__(self, config: pytest.Config, folder: str) -> None:
        """Begin the run; `pytest.UsageError` where the folder holds one or cannot be made."""
        self._seen: set[str] = set()
        try:
            files = Files(config.invocation_params.dir / folder)
            self._writer = RunWriter(
                files,
                About(
                    harness=__version__,
                    started=now(),
                    finished=None,
                    command=("pytest", *config.invocation_params.args),
                    selection=None,
                    tier="pytest",
                    shard=None,
                    environment=environment(),
                    planned=Planning(0, 0),
                    plan="pytest",
                ),
                resume=False,
            )
        except HarnessError as error:
            message = str(error).replace(
                "continue with --resume, or choose another --out folder", "name a new folder"
            )
            raise pytest.UsageError(f"--deepstack-report: {message}") from None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the judgements of a test's fixtures, once where a plugin runs tests again."""
        for result in getattr(report, "harness_judged", ()):
            self._append(msgspec.convert(result, CaseResult))

    def pytest_sessionfinish(self) -> None:
        """Record that the run came to its end."""
        part = self._writer.part
        groups = len({case.group for case in part.cases})
        part.about = replace(part.about, planned=Planning(groups, len(part.cases)))
        self._writer.finish()
        self._writer.close()

    def _append(self, result: CaseResult) -> None:
        if result.case.case in self._seen:
            return
        self._seen.add(result.case.case)
        try:
            self._writer.append(result.rows, result.case)
        except MachineError as error:
            pytest.exit(f"--deepstack-report: {error}", returncode=error.exit_code)

"""`--deepstack-report DIR`: what the fixtures judged, as the folder of a run, written as it comes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from deepstack_harness import __version__
from deepstack_harness.errors import HarnessError, MachineError
from deepstack_harness.machine.environment import environment
from deepstack_harness.results.files import Files
from deepstack_harness.results.records import About, CaseRecord, Planning, RunRow
from deepstack_harness.results.write import RunWriter, now


class ReportFolder:
    """Appends cases; with xdist they come from the workers, on the reports of their tests."""

    def __init__(self, config: pytest.Config, folder: str) -> None:
        """Begin the run; `pytest.UsageError` where the folder holds one or cannot be made."""
        self._seen: set[str] = set()
        try:
            files = Files(config.invocation_params.dir / folder)
            self._writer = RunWriter(files, _about(config), resume=False)
        except HarnessError as error:
            told = str(error).replace(
                "go on with --resume, or choose another --out folder", "name a new folder"
            )
            raise pytest.UsageError(f"--deepstack-report: {told}") from None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test's fixtures judged, once where a plugin runs tests again."""
        for one in getattr(report, "harness_judged", ()):
            self._append(one)

    def pytest_sessionfinish(self) -> None:
        """Say that the run came to its end."""
        part = self._writer.part
        groups = len({case.group for case in part.cases})
        part.about = replace(part.about, planned=Planning(groups, len(part.cases)))
        self._writer.finish()
        self._writer.close()

    def _append(self, one: Mapping[str, Any]) -> None:
        case = msgspec.convert(one["case"], CaseRecord)
        if case.case in self._seen:
            return
        self._seen.add(case.case)
        try:
            self._writer.append(msgspec.convert(one["rows"], list[RunRow]), case)
        except MachineError as error:
            pytest.exit(f"--deepstack-report: {error}", returncode=error.exit_code)


def _about(config: pytest.Config) -> About:
    return About(
        harness=__version__, started=now(), finished=None,
        command=("pytest", *config.invocation_params.args), selection=None, tier="pytest", shard=None,
        environment=environment(), planned=Planning(0, 0), plan="pytest",
    )  # fmt: skip

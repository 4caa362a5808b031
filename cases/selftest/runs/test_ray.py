"""A run whose groups Ray spreads, which gives the rows of a run with processes of its own."""

from pathlib import Path

import pytest

from deepstack_harness.cli import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.results import read_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("run")]  # 20 s, and ray is an extra
SELECTION = "family == 'qwen3_vl' and arm == 'eager' and incident == '' and trace.str.contains('resize')"


def test_rows_are_those_of_a_run_with_processes_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    for name, words in (("local", []), ("ray", ["--executor", "ray"])):
        assert main(["run", SELECTION, *words, "--quiet", "--out", str(tmp_path / name)]) == ExitCode.HOLDS
    local, spread = (read_run(tmp_path / name).rows for name in ("local", "ray"))
    columns = ["case", "rule", "verdict", "detail"]
    assert len(local) > 0
    assert sorted(local[columns].itertuples(index=False)) == sorted(spread[columns].itertuples(index=False))

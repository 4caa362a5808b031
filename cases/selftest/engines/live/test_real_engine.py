"""The real vLLM 0.32.0 end to end, where `engine --source vllm==0.32.0` has made its environment."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from deepstack_harness.catalogue.orders import EngineRecording, recordings
from deepstack_harness.cli.main import main
from deepstack_harness.engines.live.environment import made_environment
from deepstack_harness.engines.live.models import MODELS
from deepstack_harness.errors import ExitCode
from deepstack_harness.files import load_file

RELEASE = "0.32.0"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("real engine"),
]


@pytest.fixture(autouse=True)
def environment() -> None:
    if made_environment(Version(RELEASE)) is None:
        pytest.skip(
            f"no environment of vllm {RELEASE}: 'deepstack-harness engine --source vllm=={RELEASE}' makes it"
        )


def played(path: Path, *words: str) -> tuple[int, list[Mapping[str, Any]]]:
    """Run the command; return its exit code and its rows."""
    options = ["--source", f"vllm=={RELEASE}", "--json", str(path), "--quiet", *words]
    code = main(["engine", *options])
    return code, [json.loads(line) for line in path.read_text().splitlines()]


def broken(rows: list[Mapping[str, Any]], arm: str, regime: str) -> set[str]:
    return {
        row["rule"] for row in rows if (row["arm"], row["regime"], row["verdict"]) == (arm, regime, "FAIL")
    }


@pytest.mark.parametrize("family", [name for name in MODELS if name != "moss_audio"])
def test_it_is_free_of_43602_and_reads_a_stale_row_under_replay(tmp_path: Path, family: str) -> None:
    schedules = ["--schedule", "all_at_once", "--schedule", "one_token_chunks"]
    code, rows = played(tmp_path / "rows.jsonl", "--family", family, *schedules)
    assert code == ExitCode.HOLDS
    assert broken(rows, "engine/eager", "live") == broken(rows, "engine/compile", "live") == set()
    assert broken(rows, "engine/eager", "captured") == {"R0", "R5"}
    by_default = [row for row in rows if row["capture"] == "full_and_piecewise" and row["verdict"] == "FAIL"]
    assert {row["reach"] for row in by_default} == {"flag: --max-num-batched-tokens of running decodes + 1"}
    assert {row["evidence"] for row in by_default} == {"emulated"}


def test_a_class_with_an_optional_payload_has_43602_by_default(tmp_path: Path) -> None:
    words = ["--family", "moss_audio", "--schedule", "text_after_image"]
    code, rows = played(tmp_path / "rows.jsonl", *words)
    assert code == ExitCode.BROKEN
    assert broken(rows, "engine/eager", "live") == {"R1"}
    assert broken(rows, "engine/compile", "live") == {"R0", "R1"}
    # With all its guards it recompiles; with zeros in place of None it has one structure.
    assert broken(rows, "engine/compile/guards_kept", "live") == {"R1"}
    assert broken(rows, "engine/compile/zeros", "live") == set()
    values = {
        (row["arm"], row["detail"].partition(" (")[0].partition(":")[0]): row["value"]
        for row in rows
        if row["rule"] == "R0" and "single requests" in row["case"]
    }
    assert values["engine/eager", "with and without payload"] > 1
    assert values["engine/compile", "with and without payload"] == 0
    assert values["engine/compile", "compiled beside eager"] > 1
    assert values["engine/compile/guards_kept", "compiled beside eager"] < 1e-4
    assert values["engine/compile/zeros", "compiled beside eager"] < 1e-4


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_omni_moe_thinker"])
def test_the_methods_of_0_22_1_bring_43602_back(tmp_path: Path, family: str) -> None:
    words = ["--family", family, "--methods", "vllm==0.22.1", "--schedule", "all_at_once"]
    code, rows = played(tmp_path / "rows.jsonl", *words)
    assert code == ExitCode.BROKEN
    # As `repro 43602 --source vllm==0.22.1` has it: R1 uncompiled, R0 too when compiled.
    assert broken(rows, "engine/eager", "live") == {"R1"}
    assert broken(rows, "engine/compile", "live") == {"R0", "R1"}


def test_requests_are_preempted_and_what_decides_is_what_was_recorded(tmp_path: Path) -> None:
    record = tmp_path / "orders.json"
    words = ["--mode", "eager", "--schedule", "cached_and_preempted", "--record", str(record)]
    code, rows = played(tmp_path / "rows.jsonl", "--family", "qwen3_vl", *words)
    assert code == ExitCode.HOLDS
    (detail,) = [
        row["detail"] for row in rows if row["rule"] == "R0" and "cached_and_preempted" in row["case"]
    ]
    assert re.search(
        r"\d+ accepted drafts, 32 cached tokens, \d+ drafted tokens, \d+ preemptions: equal", detail
    )
    (stored,) = recordings("vllm")
    assert load_file(record, EngineRecording, "a recording", 1).deciding == stored.deciding


SERVE = """
import sys
from pathlib import Path
from packaging.version import Version
from deepstack_harness.engines.known import open_alone
from deepstack_harness.engines.live.environment import made_environment
from deepstack_harness.engines.live.models import model_of
from deepstack_harness.engines.live.schedules import SCHEDULES
from deepstack_harness.engines.live.session import EngineSession, StartOrder, methods_text, model_folder

release, family, *source = sys.argv[1:]
home, model = made_environment(Version(release)), model_of(family)
methods = methods_text(open_alone(source[0]), family) if source else {}
with model_folder(home, model) as folder:
    with EngineSession(home, StartOrder(model, folder.path, compiled=True, methods=methods)) as engine:
        engine.serve(SCHEDULES["text_after_image"])
"""


def watched(tmp_path: Path, *words: str) -> tuple[int, list[Mapping[str, Any]]]:
    """Serve with a compiled engine under `watch`; return the exit code and the regions of the model."""
    (tmp_path / "serve.py").write_text(SERVE)
    facts = tmp_path / "facts.jsonl"
    code = main(
        ["watch", "--json", str(facts), "--", sys.executable, str(tmp_path / "serve.py"), RELEASE, *words]
    )
    rows = [json.loads(line) for line in facts.read_text().splitlines()]
    return code, [row for row in rows if row["name"].endswith("Model.forward")]


def test_a_watch_finds_the_dropped_guard_of_each_start(tmp_path: Path) -> None:
    for _ in range(2):
        code, (region,) = watched(tmp_path, "moss_audio")
        assert code == ExitCode.BROKEN
        assert sum(region["dropped"].values()) > 1000
        (guard,) = [guard for guard in region["failed"] if guard["counts"]]
        assert (guard["rule"], guard["then"]) == ("L['deepstack_input_embeds'] is None", "None")
        assert guard["now"].startswith("IntermediateTensors")


def test_a_watch_finds_nothing_in_qwen3_vl_and_the_methods_of_0_22_1(tmp_path: Path) -> None:
    code, (region,) = watched(tmp_path, "qwen3_vl")
    assert (code, [guard for guard in region["failed"] if guard["counts"]]) == (ExitCode.HOLDS, [])
    code, (region,) = watched(tmp_path, "qwen3_vl", "vllm==0.22.1")
    assert code == ExitCode.BROKEN
    assert {guard["rule"] for guard in region["failed"] if guard["counts"]} == {
        "L['deepstack_input_embeds'] is None"
    }

"""Nothing in the package is dead: each definition and each file is used by the package itself."""

from pathlib import Path

import pytest

from cases.tools import unused as tool

# Called by the code of a source, which expects these members of its base classes or of CUDA streams.
OF_FOREIGN_CODE = {
    "binding/forward_buffer.py get_language_model", "binding/forward_buffer.py _embed_text_input_ids",
    "engines/sglang_runner_stand_ins.py get_slot", "engines/sglang_runner_stand_ins.py replay_session",
    "engines/sglang_stand_ins.py complete_output",
    "engines/sglang_stand_ins.py is_modality", "engines/sglang_stand_ins.py add_to_output",
    "engines/vllm_ascend_model.py flash_comm_v1_enabled", "engines/vllm_ascend_model.py sp_enabled",
    "engines/sglang_stand_ins.py get_image_feature", "engines/sglang_stand_ins.py padding_values",
    "binding/stand_ins.py _mark_tower_model", "binding/stand_ins.py _mark_language_model",
    "streams/recorded_device.py wait_event", "streams/recorded_device.py record_event",
}  # fmt: skip
# Called by coverage.py, which is told the module's name.
OF_COVERAGE = {"nightly/count_workers.py coverage_init"}
# Called by the tests of a user, or read by whoever writes a buffer.
PUBLIC = {
    "fuzzing/strategies.py engine_traces", "fuzzing/strategies.py schedules",
    "contract/protocols.py AnnouncesMoves", "contract/protocols.py ReleasesStorage",
    "contract/protocols.py StatesVision", "contract/protocols.py BeginsSteps",
    "contract/protocols.py FollowsTensors", "contract/protocols.py WorksInGraph",
    "contract/protocols.py WrapsSession", "contract/protocols.py KnowsAccesses",
}  # fmt: skip
# Called by cases/ alone, and needed there: baselines of our own suite, the processes that a
# test kills, every class of an untrusted source bound at once (`audit` binds them in a worker), hunts for
# mutants that were generated.
OF_CASES = {
    "kernels/baselines.py file_name", "kernels/baselines.py differences", "play/ranks/pool.py pids",
    "engines/classes.py classes_of", "play/shared_work.py bind_live",
}  # fmt: skip
# Dead for users: no command reaches them. To be wired to a command or deleted; this set may only shrink.
DEAD = {"ranges/scheduling_cost.py observe_costs", "streams/on_gpu.py observe_on_gpu"}


@pytest.mark.skipif(not tool.PACKAGE.is_dir(), reason="needs a checkout")
def test_nothing_is_dead() -> None:
    found = set(tool.unused())
    assert found - OF_FOREIGN_CODE - OF_COVERAGE - PUBLIC - OF_CASES == DEAD


def test_a_dead_function_and_a_dead_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "harness" / "deepstack_harness"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (package / "cli.py").write_text(
        '"""Runs, as never_called does not."""\n'
        "from deepstack_harness import kept\n"
        "kept.of_module()\n"
        "TABLE = {'x': 'deepstack_harness.kept:ByName'}\n"
    )
    (package / "kept.py").write_text(
        "def of_module():\n    return 1\nclass ByName:\n    def never_called(self):\n        '''ByName.'''\n"
    )
    (package / "alone.py").write_text("VALUE = 1\n")
    (package / "__main__.py").write_text("from deepstack_harness import cli\n")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PACKAGE", package)
    assert tool.unused() == ["alone.py", "kept.py never_called"]

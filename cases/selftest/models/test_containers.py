"""What get returns in the containers that engines use: levels in order, or a refusal with a wrapper."""
# ruff: noqa: ANN401  # classes whose get returns anything

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from cases.by_day import by_day
from cases.selftest.models import containers
from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.plans import AUDIT_TRACES, CAPTURE_TRACES, CONTRACT_TRACES
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.models.adapted import check_interface, levels_in
from deepstack_harness.models.reference import ReferenceBuffer

DAILY = (*AUDIT_TRACES, *CONTRACT_TRACES)
MODULE = containers.__name__


def made_of(name: str) -> Any:
    return getattr(containers, name)


@pytest.mark.parametrize("buffer", containers.RIGHT)
@pytest.mark.parametrize("regime", [Regime.LIVE, Regime.CAPTURED])
def test_a_right_buffer_passes_every_rule(buffer: Any, regime: Regime) -> None:
    traces = CAPTURE_TRACES if regime is Regime.CAPTURED else DAILY
    assert broken_in(check_interface(buffer, buffer.__name__), regime, traces) == {}


@pytest.mark.parametrize("buffer", containers.WRONG)
def test_a_wrong_buffer_is_caught_by_its_rule(buffer: Any) -> None:
    rule = Rule(containers.WRONG[buffer])
    regime = Regime.CAPTURED if rule is Rule.ADDRESS else Regime.LIVE
    traces = CAPTURE_TRACES if rule is Rule.ADDRESS else DAILY
    assert rule in broken_in(check_interface(buffer, buffer.__name__), regime, traces, until=rule)


@pytest.mark.parametrize("buffer", containers.REFUSED)
def test_another_container_is_refused_with_the_wrapper_to_write(buffer: Any) -> None:
    with pytest.raises(
        UsageError, match=r"get answers an object of class \w+, in which levels cannot"
    ) as said:
        check_interface(buffer, f"{MODULE}:{buffer.__name__}")
    sentence, _, program = str(said.value).partition("\n\n")
    assert sentence.endswith("Check a wrapper:")
    compile(program, "wrapper", "exec")
    assert f"from {MODULE} import {buffer.__name__}\n" in program


def test_the_wrapper_that_is_written_fits(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as said:
        check_interface(made_of("NamedWithoutTensors"), f"{MODULE}:NamedWithoutTensors")
    file = tmp_path / "wrapper.py"
    program = str(said.value).partition("\n\n")[2]
    file.write_text(program.replace("answer[level]", 'answer[f"deepstack_input_embeds_{level}"]'))
    spec = importlib.util.spec_from_file_location("wrapper", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    buffer = module.Levels(8, 4, 3, dtype=torch.float32, device=torch.device("cpu"))
    assert [tuple(level.shape) for level in buffer.get(5)] == [(5, 4)] * 3


def test_nothing_is_read_without_a_bound() -> None:
    endless = containers.Endless(torch.zeros(1, 2))
    assert len(levels_in(endless) or ()) == 4096
    broken = broken_in(check_interface(made_of("InAnEndlessMapping"), "Endless"), Regime.LIVE, DAILY[:3])
    assert Rule.STRUCTURE in broken


def test_a_tuple_or_list_is_passed_on_as_it_is() -> None:
    assert check_interface(ReferenceBuffer, "reference") is ReferenceBuffer
    plain = made_of("Plain")
    assert check_interface(plain, "plain") is plain


@pytest.mark.parametrize(
    ("name", "code"),
    by_day(
        [("WithoutEnd", ExitCode.USAGE), ("SlicesNamed", ExitCode.HOLDS), ("InSharedMemory", ExitCode.HOLDS)],
    ),
)
def test_the_command_takes_them(name: str, code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{MODULE}:{name}"]) == code
    printed = capsys.readouterr()
    if code is ExitCode.HOLDS:
        assert f"{name}: keeps R1 R2 R3 R4 R5 R6 R7 R8" in printed.out
    else:
        assert "class Levels(WithoutEnd):" in printed.err

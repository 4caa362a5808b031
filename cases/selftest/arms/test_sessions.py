"""Sessions and processes of arms around what they hold: graphs, an artifact, a device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cases.selftest.arms.small_decoders import Doubling
from deepstack_harness.arms import capture as capture_module
from deepstack_harness.arms.capture import CapturedSession, capturing
from deepstack_harness.arms.eager import EagerSession
from deepstack_harness.arms.graph_cpu import CpuGraphs
from deepstack_harness.arms.reload import FreshProcess
from deepstack_harness.arms.reload_worker import LoadedArtifacts
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.protocols import Profile
from deepstack_harness.errors import NotMeasured
from deepstack_harness.torch_compat.modules import take_apart
from deepstack_harness.workers.outcomes import Exited
from deepstack_harness.workers.worker import Worker

pytestmark = pytest.mark.xdist_group("eager")


def test_graphs_do_not_outlive_a_reload() -> None:
    reloaded: list[bool] = []
    inner = SimpleNamespace(reload=lambda: reloaded.append(True))
    session = CapturedSession(ArmSpec.parse("eager/full"), cast(EagerSession, inner), CpuGraphs())
    session._captured[4] = cast(Any, "a graph of 4 tokens")
    session.reload()
    assert (reloaded, session._captured) == ([True], {})


@pytest.mark.parametrize(("capture", "broken"), [("full", False), ("piecewise", True), ("breakable", True)])
def test_graphs_of_a_gpu_are_broken_at_attention_unless_they_are_whole(
    capture: str, monkeypatch: pytest.MonkeyPatch, *, broken: bool
) -> None:
    made: list[tuple[torch.device, bool]] = []

    def graphs(device: torch.device, *, broken_at_attention: bool) -> CpuGraphs:
        made.append((device, broken_at_attention))
        return CpuGraphs()

    monkeypatch.setattr(capture_module, "CudaGraphs", graphs)
    cuda, cpu = (Profile(16, 8, 2, torch.float32, torch.device(name)) for name in ("cuda:1", "cpu"))
    spec, inner = ArmSpec.parse(f"eager/{capture}"), cast(EagerSession, None)
    capturing(spec, inner, cuda)
    assert made == [(cuda.device, broken)]
    capturing(spec, inner, cpu)
    assert len(made) == 1


def test_an_artifact_that_torch_refuses_is_a_fact(tmp_path: Path) -> None:
    loaded = LoadedArtifacts()
    torn = tmp_path / "artifact"
    torn.write_bytes(b"torn")
    result = loaded.load(3, torn, take_apart(Doubling()), threads=torch.get_num_threads())
    assert result.raised is not None
    assert loaded.calls == {}


def test_a_process_that_has_ended_is_not_asked() -> None:
    process = FreshProcess.__new__(FreshProcess)
    process._worker = cast(Worker, SimpleNamespace(ended=Exited(3)))
    assert not process.alive
    with pytest.raises(NotMeasured, match="^the process that had loaded the artifact has ended$"):
        process.ask("call", {}, 1.0)

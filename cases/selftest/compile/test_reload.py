"""What was compiled is saved, loaded by a fresh process, and called with other arguments (vllm 50891)."""

import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from cases.by_day import by_day
from cases.selftest.compile.small_decoders import Doubling, Scaling
from cases.selftest.workers.processes import has_ended
from deepstack_harness.compile import reloaded as reload
from deepstack_harness.compile.compiled import GuardRecorder
from deepstack_harness.compile.reloaded import (
    RaisedElsewhere,
    ReloadedDecoder,
    ReloadResult,
    packed,
    reload_worker,
    unpacked,
)
from deepstack_harness.compile.torch_compat import artifact, dynamo
from deepstack_harness.contract.arm import GuardPolicy
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.errors import NotMeasured, StepUnavailable
from deepstack_harness.play.model import Model
from deepstack_harness.workers.supervised import Supervised

MISBEHAVING = "cases.selftest.workers.misbehaving"
DROP_ALL = GuardPolicy.DROP_ALL
SMALL = Inputs(torch.ones(4, 2), torch.zeros(3, 4, dtype=torch.int64), None)
SAVES_AOT_EAGER = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.13"), reason="torch 2.11 cannot save what aot_eager compiled"
)
BACKENDS = [
    pytest.param("eager", marks=pytest.mark.xdist_group("eager")),
    pytest.param(
        "aot_eager", marks=[SAVES_AOT_EAGER, pytest.mark.slow, pytest.mark.xdist_group("aot_eager")]
    ),
    pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.xdist_group("inductor")]),
]
pytestmark = pytest.mark.xdist_group("eager")


def inputs_of(model: Model, tokens: int, levels: int | None) -> Inputs:
    generator = torch.Generator().manual_seed(tokens)
    rows = [torch.randn(tokens, model.family.hidden, generator=generator) for _ in range(1 + (levels or 0))]
    hidden, *payload = (row.to(model.dtype) for row in rows)
    positions = model.family.positions(tokens, model.device)
    return Inputs(hidden, positions, None if levels is None else tuple(payload))


def options_of(guards: GuardPolicy) -> dict[str, Any]:
    return {"guard_filter_fn": GuardRecorder(guards)}


def reload_model(model: Model, levels: int | None, guards: GuardPolicy, backend: str) -> ReloadedDecoder:
    """Compiled for 16 tokens, marked as a session marks them, saved and loaded."""
    first = inputs_of(model, 16, levels)
    dynamo.mark_dynamic(first.positions, 1)
    for rows in (first.hidden, *(first.payload or ())):
        dynamo.mark_dynamic(rows, 0)
    with torch.no_grad():
        return ReloadedDecoder(model.decoder, first, backend=backend, options=options_of(guards))


def reload_small(decoder: nn.Module | None = None, guards: GuardPolicy = DROP_ALL) -> ReloadedDecoder:
    return ReloadedDecoder(decoder or Doubling(), SMALL, backend="eager", options=options_of(guards))


def call(decoder: ReloadedDecoder, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        return decoder(inputs.hidden, inputs.positions, inputs.payload)


def eager(model: Model, inputs: Inputs, *, payload: bool = True) -> Tensor:
    out: Tensor = model.decoder(inputs.hidden, inputs.positions, inputs.payload if payload else None)
    return out


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


class Reloaded(Protocol):
    def __call__(
        self, levels: int | None, guards: GuardPolicy = DROP_ALL, backend: str = "eager"
    ) -> ReloadedDecoder: ...


@pytest.fixture(scope="module")
def reloaded(qwen: Model) -> Iterator[Reloaded]:
    """Reloads of the tiny Qwen3-VL decoder, each made once."""
    with ExitStack() as closing_all:

        @cache
        def make(
            levels: int | None, guards: GuardPolicy = DROP_ALL, backend: str = "eager"
        ) -> ReloadedDecoder:
            return closing_all.enter_context(closing(reload_model(qwen, levels, guards, backend)))

        yield make


# What the other argument structure does


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_without_a_payload_it_runs_without_one_silently(
    qwen: Model, reloaded: Reloaded, backend: str
) -> None:
    inputs = inputs_of(qwen, 9, 3)
    out = call(reloaded(None, backend=backend), inputs)
    assert distance(out, eager(qwen, inputs)) > 0.1
    assert distance(out, eager(qwen, inputs, payload=False)) < 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_with_a_payload_it_raises_on_none(qwen: Model, reloaded: Reloaded, backend: str) -> None:
    with pytest.raises(RaisedElsewhere, match="'NoneType' object is not subscriptable") as caught:
        call(reloaded(3, backend=backend), inputs_of(qwen, 9, None))
    assert type(caught.value).__name__ == "TypeError"
    # A line of what was compiled, as a compiled call in this process names it.
    assert Path(caught.value.where.rpartition(":")[0]).name == "qwen3_vl.py"


@pytest.mark.slow  # 2 s
def test_saved_with_three_levels_it_raises_on_two(qwen: Model, reloaded: Reloaded) -> None:
    with pytest.raises(RaisedElsewhere, match="tuple index out of range") as caught:
        call(reloaded(3), inputs_of(qwen, 9, 2))
    assert type(caught.value).__name__ == "IndexError"


@pytest.mark.parametrize("tokens", by_day([0, 1, 2, 9, 16, 40]))
def test_the_same_structure_is_right_at_every_size(qwen: Model, reloaded: Reloaded, tokens: int) -> None:
    inputs = inputs_of(qwen, tokens, 3)
    assert torch.equal(call(reloaded(3), inputs), eager(qwen, inputs))


@pytest.mark.slow  # 1 s
def test_operators_of_the_decoder_are_there_before_the_artifact() -> None:
    model = Model.build("qwen3_vl:opaque")
    inputs = inputs_of(model, 9, 3)
    with closing(reload_model(model, 3, DROP_ALL, "eager")) as decoder:
        assert torch.equal(call(decoder, inputs), eager(model, inputs))


@pytest.mark.slow
def test_half_precision_is_as_exact() -> None:
    model = Model.build("qwen3_vl", "bfloat16")
    inputs = inputs_of(model, 9, 3)
    with closing(reload_model(model, 3, DROP_ALL, "eager")) as decoder:
        out = call(decoder, inputs)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, eager(model, inputs))


# Guards


@pytest.mark.slow  # 2 s
def test_saved_guards_refuse_the_other_structure_and_only_that(qwen: Model, reloaded: Reloaded) -> None:
    inputs, decoder = inputs_of(qwen, 9, None), reloaded(None, GuardPolicy.STOCK)
    assert torch.equal(call(decoder, inputs), eager(qwen, inputs))
    with pytest.raises(RaisedElsewhere, match=r"L\['payload'\] is None") as caught:
        call(decoder, inputs_of(qwen, 9, 3))
    assert type(caught.value).__name__ == "RuntimeError"
    assert "\n" not in str(caught.value)  # whoever reads one line sees the reason
    assert not caught.value.where  # torch itself refused


@pytest.mark.parametrize(
    ("guards", "tokens", "dtype"),
    [
        (GuardPolicy.KEEP_TENSOR, 9, torch.float64),
        pytest.param(GuardPolicy.SHAPE_ENV_ONLY, 1, torch.float32, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow  # 2 s
def test_guards_on_tensors_and_shapes_miss_it(
    qwen: Model, reloaded: Reloaded, guards: GuardPolicy, tokens: int, dtype: torch.dtype
) -> None:
    inputs, decoder = inputs_of(qwen, 9, 3), reloaded(None, guards)
    assert distance(call(decoder, inputs), eager(qwen, inputs)) > 0.1
    # They were saved, and are checked: it was compiled for fp32, and for 2 tokens and more.
    other = inputs_of(qwen, tokens, None)
    with pytest.raises(RaisedElsewhere, match="GuardManager check failed"):
        call(decoder, replace(other, hidden=other.hidden.to(dtype)))


def test_a_guard_on_what_did_not_travel_is_no_finding() -> None:
    with pytest.raises(NotMeasured, match=r"refuses its own example inputs: RuntimeError: .*factor"):
        reload_small(Scaling(), GuardPolicy.STOCK)


# Fresh, and nothing mixed up


@pytest.mark.slow  # 2 s
def test_two_artifacts_keep_apart(qwen: Model, reloaded: Reloaded) -> None:
    inputs = inputs_of(qwen, 9, 3)
    for _ in range(2):
        assert torch.equal(call(reloaded(3), inputs), eager(qwen, inputs))
        assert torch.equal(call(reloaded(None), inputs), eager(qwen, inputs, payload=False))


def test_closing_one_artifact_leaves_the_others(qwen: Model, reloaded: Reloaded) -> None:
    inputs, other = inputs_of(qwen, 9, 3), reloaded(3)
    small = reload_small()
    small.close()
    assert torch.equal(call(other, inputs), eager(qwen, inputs))
    with pytest.raises(NotMeasured, match="is closed"):
        call(small, SMALL)
    small.close()


def test_one_process_serves_every_reload() -> None:
    reload_small().close()
    starts = reload_worker().starts
    reload_small().close()
    assert reload_worker().starts == starts


def test_what_the_other_process_compiles_is_counted_since_the_last_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    arguments = (SMALL.hidden, SMALL.positions, SMALL.payload)
    options = options_of(DROP_ALL)
    artifact.save_module(Doubling(), tmp_path / reload._DECODER)
    artifact.save(
        Doubling().forward, arguments, tmp_path / reload._ARTIFACT, backend="eager", options=options
    )
    dynamo.start_counting()
    compiled = torch.compile(lambda hidden, *_: hidden + 1, backend="eager")
    monkeypatch.setattr(reload, "_ARTIFACTS", {0: compiled})
    assert answer_of(0).compiled == 1
    assert reload.load_artifact(1, str(tmp_path), threads=7) == ReloadResult()
    assert answer_of(1).compiled == 0
    assert threads == [7]


def test_an_artifact_that_torch_refuses_is_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "_ARTIFACTS", {})
    artifact.save_module(Doubling(), tmp_path / reload._DECODER)
    (tmp_path / reload._ARTIFACT).write_bytes(b"torn")
    result = reload.load_artifact(3, str(tmp_path), threads=torch.get_num_threads())
    assert result.raised is not None
    assert reload._ARTIFACTS == {}


def test_a_dropped_artifact_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "_ARTIFACTS", {0: lambda *_: None, 1: lambda *_: None})
    reload.drop_artifact(1)
    assert list(reload._ARTIFACTS) == [0]


def answer_of(key: int, *, grad: bool = False) -> ReloadResult:
    hidden = SMALL.hidden.clone().requires_grad_()
    result = reload.call_artifact(key, packed((hidden, SMALL.positions, None)), grad)
    assert result.raised is None
    return result


@pytest.mark.parametrize("grad", [False, True])
def test_gradients_are_recorded_there_as_here(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "_ARTIFACTS", {0: lambda hidden, *_: hidden + 1})
    out = answer_of(0, grad=grad).out
    assert out is not None
    assert unpacked(out).requires_grad is grad


def test_an_answer_that_the_other_process_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(reload_small()) as decoder:
        with monkeypatch.context() as patched:
            answer = ReloadResult(packed(SMALL.hidden), compiled=1)
            patched.setattr(ReloadedDecoder, "_call_worker", lambda *_: answer)
            with pytest.raises(NotMeasured, match="compiled 1 graphs itself"):
                call(decoder, SMALL)
        assert torch.equal(call(decoder, SMALL), SMALL.hidden * 2)


def test_a_decoder_that_nobody_else_can_import_is_refused() -> None:
    class Local(Doubling):
        pass

    with pytest.raises(StepUnavailable, match="Local' cannot be imported"):
        reload_small(Local())


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reload_worker().launch()  # it has its temporary folder already
    sizes: list[int] = []
    save = artifact.save

    def watched(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        sizes.extend(path.stat().st_size for path in tmp_path.rglob("*.artifact"))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(artifact, "save", watched)
    reload_small().close()
    assert sizes[0] > 0
    assert list(tmp_path.iterdir()) == []


# What travels


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([math.nan, -0.0, math.inf, 1e-45, 3.4e38]),
        torch.tensor([0x7FC1, 0x0001, 0x8000, 0x3F80]).to(torch.int16).view(torch.bfloat16),
        torch.tensor([0x7E01, 0x0001, 0x8000, 0x3C00]).to(torch.int16).view(torch.float16),
        torch.tensor([[2**62, -1]]),
        torch.tensor([True, False]),
        torch.tensor(1.5, dtype=torch.float64),
        torch.empty(0, 128),
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(40.0).reshape(5, 8)[1:3, 2:5],
        torch.ones(1, 4).expand(3, 4),
        torch.arange(3).reshape(1, 3).T.contiguous(),
        torch.ones(2, requires_grad=True),
    ],
    ids=lambda tensor: f"{tensor.dtype}{tuple(tensor.shape)}{tensor.stride()}",
)
def test_a_tensor_travels_with_every_bit_and_its_layout(tensor: Tensor) -> None:
    hidden, positions, payload = unpacked(packed((tensor, tensor, (tensor, tensor))))
    for found in (hidden, positions, *payload):
        assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert found.requires_grad == tensor.requires_grad
        assert bits(found) == bits(tensor)


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def test_no_tensor_travels_as_none() -> None:
    hidden, _, payload = unpacked(packed((None, torch.ones(3, 1), None)))
    assert (hidden, payload) == (None, None)


# A child that dies or hangs.  From here on the artifacts above may be gone.


def pid_of_worker() -> int:
    pid = reload_worker().pid
    assert pid is not None
    return pid


@pytest.mark.slow  # 4 s; workers end hangs every day
def test_a_hang_is_ended_and_the_next_reload_works() -> None:
    decoder = reload_small()
    pid = pid_of_worker()
    os.kill(pid, signal.SIGSTOP)
    decoder.timeout_s = 0.5
    with pytest.raises(NotMeasured, match=r"artifact: no answer within 0\.5 s"):
        call(decoder, SMALL)
    assert has_ended(pid)


def test_a_death_is_named_and_the_next_reload_works() -> None:
    decoder = reload_small()
    os.kill(pid_of_worker(), signal.SIGSEGV)
    with pytest.raises(NotMeasured, match=r"artifact: ended by SIGSEGV; it printed: nothing"):
        call(decoder, SMALL)
    with pytest.raises(NotMeasured, match="^the process that had loaded the artifact has ended$"):
        call(decoder, SMALL)
    with closing(reload_small()) as another:
        assert torch.equal(call(another, SMALL), SMALL.hidden * 2)
        with pytest.raises(NotMeasured, match="has ended"):  # another process has no such artifact
            call(decoder, SMALL)
    decoder.close()


def test_a_flood_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = reload_small()
    monkeypatch.setattr(reload, "_CALL", replace(reload._CALL, target=f"{MISBEHAVING}:flood_always"))
    with pytest.raises(NotMeasured, match="artifact: printed [0-9]+ bytes"):
        call(decoder, SMALL)


@pytest.mark.slow
def test_closing_what_has_died_is_no_error() -> None:
    decoder = reload_small()
    os.kill(pid_of_worker(), signal.SIGKILL)
    decoder.close()
    assert not reload_worker().alive


def test_a_bug_of_the_child_is_no_answer() -> None:
    with closing(reload_small()) as decoder:
        decoder._key, key = -1, decoder._key
        with pytest.raises(NotMeasured, match=r"failed: KeyError: -1 \(.*reloaded.py:\d+\)"):
            call(decoder, SMALL)
        decoder._key = key


def test_an_interrupted_call_leaves_no_answer_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = reload_small()
    pid = pid_of_worker()
    interrupts, listen = [KeyboardInterrupt()], Supervised.listen

    def interrupted(self: Supervised, until: float | None) -> bool:
        if interrupts:
            raise interrupts.pop()
        return listen(self, until)

    monkeypatch.setattr(Supervised, "listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(decoder, SMALL)
    assert not reload_worker().alive
    assert has_ended(pid)


@pytest.mark.slow  # by day a supervisor in workers/test_supervised.py
@pytest.mark.parametrize(
    "how",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(reload_worker().pid, signal.SIGSTOP)",
        "os.kill(reload_worker().pid, signal.SIGSTOP); os.kill(os.getpid(), signal.SIGKILL)",
    ],
    ids=["killed", "returning while it hangs", "killed while it hangs"],
)
def test_it_ends_with_us_however_we_end(how: str) -> None:
    # Started, so that it is up, and not busy importing torch, when we end.
    script = f"""
import os, signal
from deepstack_harness.compile.reloaded import reload_worker
reload_worker().start()
print(reload_worker().pid, flush=True)
{how}
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert has_ended(int(ran.stdout))

"""Models of an engine that run uncompiled, in all calls or in some: the exit status, and the reason."""

import os
import sys
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_vllm import COMPILING
from deepstack_harness.cli.main import main
from deepstack_harness.engines.live.watch_plugin import AOT, CACHE
from deepstack_harness.errors import ExitCode

DECODER = """
from vllm.compilation.decorators import support_torch_compile

@support_torch_compile
class Decoder(torch.nn.Module):
    def forward(self, x):
        return x * 3
"""
SERVE = """
import sys, torch
from vllm.plugins import load_general_plugins
from vllm import config, forward_context

load_general_plugins()
DECODER
settings = config.VllmConfig(enforce_eager="eager" in sys.argv, lora="lora" in sys.argv)
model = Decoder(settings.compilation_config)
drop = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
sample = torch.compile(lambda x: x.argmax(), backend="eager", options=drop)
for step in range(6):
    skip = forward_context.ForwardContext("skip" in sys.argv and step < 2 or "all" in sys.argv)
    forward_context.STEP[:] = [skip]
    sample(model(torch.ones(4)))
"""
REGISTERED = SERVE.replace("DECODER", "").replace("from vllm import", DECODER + "from vllm import")
"""A program that defines its model before it starts an engine."""
NOT_COMPILED = "deepstack-harness: the engine's model is not compiled: "


@pytest.mark.parametrize(
    ("program", "words", "code", "printed"),
    [
        (SERVE, "eager", ExitCode.MACHINE, NOT_COMPILED + "mode NONE, because of `self.enforce_eager` ("),
        pytest.param(
            REGISTERED,
            "lora",
            ExitCode.MACHINE,
            NOT_COMPILED + "mode NONE, because of `self.lora` (",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            SERVE,
            "all",
            ExitCode.MACHINE,
            NOT_COMPILED + "skip_compiled, which vLLM sets for this call; ",
            marks=pytest.mark.slow,
        ),
        (
            REGISTERED,
            "skip",
            ExitCode.HOLDS,
            ") ran uncompiled in 2 calls: skip_compiled, which vLLM sets for this call (process ",
        ),
        pytest.param(SERVE, "", ExitCode.HOLDS, "", marks=pytest.mark.slow),
    ],
    ids=["eager", "lora", "all_skipped", "some_skipped", "compiled"],
)
def test_a_model_that_is_not_compiled_is_not_green(
    program: str,
    words: str,
    code: int,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(COMPILING), str(Path(__file__).parents[4])]))
    for name in (CACHE, AOT, "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    (tmp_path / "serve.py").write_text(program.replace("DECODER", DECODER))
    assert main(["watch", "--", sys.executable, str(tmp_path / "serve.py"), words]) == code
    captured = capfd.readouterr()
    if code:
        first = captured.err.splitlines()[0]
        assert first.startswith(printed)
        assert "Decoder.forward" in first
        assert first.endswith(" ran uncompiled in 6 calls")
    else:
        assert printed in captured.out
        assert captured.err == ""
        assert printed or "uncompiled" not in captured.out


RESTORED = """
import torch
from vllm.plugins import load_general_plugins
from vllm import config

load_general_plugins()
from vllm.compilation.decorators import support_torch_compile

@support_torch_compile
class Decoder(torch.nn.Module):
    def forward(self, x, boost=None):
        return x * 3 if boost is None else x * x.shape[0] + boost

model = Decoder(config.VllmConfig().compilation_config)
for tokens, boost in ((4, None), (1, 4.0), (5, 4.0), (6, None)):
    model(torch.ones(tokens), boost=None if boost is None else torch.full((1,), boost))
"""


def test_a_graph_that_a_restored_guard_requires_is_one_for_all_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The engine compiles ahead of time, and marks sizes as dynamic in its first compilation only."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(COMPILING), str(Path(__file__).parents[4])]))
    (tmp_path / "serve.py").write_text(RESTORED)
    assert main(["watch", "--restore", "--", sys.executable, str(tmp_path / "serve.py")]) == ExitCode.BROKEN
    assert "L['boost'] put back: torch compiles again where it fails, and the output is right in all" in (
        " ".join(capfd.readouterr().out.split())
    )

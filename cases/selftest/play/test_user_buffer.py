"""Classes of the user's own are loaded in a worker first: what they do there is said in one sentence."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Never

import pytest
import torch

from deepstack_harness.errors import UsageError
from deepstack_harness.play import user_buffer
from deepstack_harness.play.user_buffer import check_buffers, check_fit, load_buffer
from deepstack_harness.workers.outcomes import RaisedInWorker
from deepstack_harness.workers.profiles import InForce


def test_classes_that_fit_are_not_refused() -> None:
    fits = ["reference:ReferenceBuffer", "qwen:Pr40932Buffer"]
    check_buffers([f"deepstack_harness.revisions.{name}" for name in fits])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import time; time.sleep(600)", "no answer within 0.5 s .* in the import of mine:Buffer"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV in the import of mine"),
        ("while True: print('x' * 2**20)", "printed "),
        ("raise SystemExit(0)", "module 'mine' cannot be imported: SystemExit: 0"),
        ("raise ValueError('no')", "module 'mine' cannot be imported: ValueError: no"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_refused(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_buffer, "_LOADING_S", 0.5 if "sleep" in source else 60.0)
    with pytest.raises(UsageError, match=said):
        check_buffers(["mine:Buffer"])


def test_ctrl_c_while_a_class_is_loaded_or_made_is_no_mistake_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        load_buffer("interrupted:Buffer")

    def interrupted(
        capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Never:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_fit(interrupted, "mine:Buffer")


@pytest.mark.parametrize(
    ("in_force", "said"),
    [
        (InForce(("files",)), "PermissionError: no; it runs in a sandbox, which --no-sandbox turns off$"),
        (InForce(), "PermissionError: no$"),
    ],
)
def test_what_the_sandbox_refuses_is_said_with_the_option_that_turns_it_off(
    in_force: InForce, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RaisedInWorker("UsageError", "deepstack_harness.errors", "PermissionError: no", exit_code=2)
    worker = SimpleNamespace(call=lambda *_: refused, in_force=in_force)
    monkeypatch.setattr(user_buffer, "foreign_worker", lambda *_, **__: nullcontext(worker))
    with pytest.raises(UsageError, match=said):
        check_buffers(["mine:Buffer"])

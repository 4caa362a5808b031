"""Classes of the user's own are loaded in a worker first: what they do there is said in one sentence."""

from pathlib import Path

import pytest

from deepstack_harness.errors import UsageError
from deepstack_harness.play import user_buffer
from deepstack_harness.play.user_buffer import check_buffers


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

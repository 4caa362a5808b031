"""The installer of tox: uv where it is on the path, with pip's settings, and pip where uv fails."""

from pathlib import Path

import pytest

from tools.install import main


@pytest.mark.parametrize(("status", "wanted"), [(0, 0), (3, 2)], ids=["uv", "pip_after_uv"])
def test_uv_is_used_with_the_settings_of_pip_and_pip_where_it_fails(
    status: int,
    wanted: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$UV_FIND_LINKS: $@"\nexit {status}\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_FIND_LINKS", "/first /second")
    assert main(["--no-index", "--no-such-option"]) == wanted
    output = capfd.readouterr()
    assert output.out.startswith("/first,/second: pip install --python ")
    assert ("no such option: --no-such-option" in output.err) == bool(status)

"""Command lines and variables of the installers of environments."""

import sys
from pathlib import Path

import pytest

from deepstack_harness.sources.environments import Installer, find_installer, python_of
from deepstack_harness.sources.pip_settings import PipSettings


@pytest.mark.parametrize("uv", [None, "/usr/bin/uv"])
def test_both_installers_name_the_interpreter_that_they_install_for(
    uv: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: uv if name == "uv" else None)
    found, folder = find_installer(), Path("/engines/a")
    made, installed = list(found.make(folder)), list(found.install(folder, ["torch==2.13.0"]))
    assert found.name == ("uv" if uv else "pip")
    assert made[-1] == str(folder)
    assert sys.executable in made
    assert str(python_of(folder)) in installed
    assert installed[-1] == "torch==2.13.0"


def test_uv_gets_the_settings_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    told = PipSettings(
        index_url="https://one.invalid/simple", find_links=("/wheels", "/more"), no_index=True, cert="/a.pem"
    )
    monkeypatch.setattr("deepstack_harness.sources.pip_settings.read", lambda: told)
    found = {name: value for name, value in Installer("/usr/bin/uv").environment().items() if value}
    assert found == {
        "UV_DEFAULT_INDEX": "https://one.invalid/simple", "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/a.pem", "UV_INDEX_STRATEGY": "unsafe-best-match",
    }  # fmt: skip
    assert "--no-index" in Installer("/usr/bin/uv").install(Path("/made"), ["six"])
    assert Installer(None).environment() == dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"))

"""The program that installs packages: uv where it is there, else pip, from the same indexes."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepstack_harness.sources import pip_settings


@dataclass(frozen=True)
class Installer:
    """Command lines that make an environment and install into it."""

    uv: str | None

    @property
    def name(self) -> str:
        """The program's name."""
        return "uv" if self.uv else "pip"

    def make(self, folder: Path) -> Sequence[str]:
        """Return the command line that makes an empty environment."""
        if self.uv:
            return [self.uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        return [sys.executable, "-m", "venv", str(folder)]

    def install(self, folder: Path, words: Sequence[str]) -> Sequence[str]:
        """Return the command line that installs `words` into an environment."""
        python = str(python_of(folder))
        if self.uv:
            return [self.uv, "pip", "install", "--quiet", "--python", python, *words]
        return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]

    def environment(self) -> Mapping[str, str | None]:
        """Return the variables by which the indexes are known; addresses may carry passwords."""
        return {**clean_environment(), **(_uv_settings() if self.uv else {})}


def clean_environment() -> dict[str, str | None]:
    """Return the variables that would lead another interpreter to our packages, each as None."""
    return dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"))


def find_installer() -> Installer:
    """Return uv where it is on the path, else pip."""
    return Installer(shutil.which("uv"))


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def _uv_settings() -> dict[str, str]:
    """Return pip's settings as uv's variables: uv does not read pip's files."""
    settings = pip_settings.read()
    indexes = " ".join(settings.extra_index_urls)
    wanted = {
        "UV_DEFAULT_INDEX": settings.index_url,
        "UV_INDEX": indexes,
        "UV_FIND_LINKS": " ".join(settings.find_links),
        "UV_NO_INDEX": "1" if settings.no_index else None,
        "UV_INSECURE_HOST": " ".join(settings.trusted_hosts),
        "SSL_CERT_FILE": settings.cert,
        "ALL_PROXY": settings.proxy,
        # pip takes the highest version of all indexes; uv's default is the first index that has the package.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    return {name: value for name, value in wanted.items() if value}

"""What pip is told on this machine: which indexes, and how to reach them.

Asked of pip itself, so that its files, its environment variables and their order
count exactly as they do in an installation
(pip.pypa.io/en/stable/topics/configuration).
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

# In pip's order: a variable of the environment beats the command's section beats [global].
_SECTIONS = (":env:", "install", "global")
_TRUE = {"1", "true", "t", "yes", "y", "on"}


@dataclass(frozen=True)
class PipSettings:
    """The settings that say where packages come from.

    `index_url` is None where nothing is configured, so that pip's default counts;
    paths and addresses are as the user wrote them.
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = None


def read() -> PipSettings:
    """Ask `pip config list`; without pip only the environment's variables count."""
    values = _from_pip() or _from_environment()

    def value(name: str) -> str:
        found = (values.get(f"{section}.{name}", "") for section in _SECTIONS)
        return next(filter(None, found), "")

    return PipSettings(
        index_url=value("index-url") or None,
        extra_index_urls=tuple(value("extra-index-url").split()),
        find_links=tuple(value("find-links").split()),
        no_index=value("no-index").lower() in _TRUE,
        trusted_hosts=tuple(value("trusted-host").split()),
        cert=value("cert") or None,
        proxy=value("proxy") or None,
    )


def _from_pip() -> Mapping[str, str]:
    """Lines `section.name='value'`, the value as a Python literal; empty when pip fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = (line.partition("=") for line in told.stdout.splitlines())
    return {key: str(ast.literal_eval(text)) for key, _, text in lines if text}


def _from_environment() -> Mapping[str, str]:
    named = (
        (name.removeprefix("PIP_"), text) for name, text in os.environ.items() if name.startswith("PIP_")
    )
    return {f":env:.{name.lower().replace('_', '-')}": text for name, text in named}

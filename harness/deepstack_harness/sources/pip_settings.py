"""The indexes that pip is configured with, how to reach them, and the removal of credentials from texts.

The settings come from pip itself, so that its files, its environment variables and their order count exactly
as they do in an installation (pip.pypa.io/en/stable/topics/configuration).
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import unquote

# In pip's order: a variable of the environment beats the command's section beats [global].
_SECTIONS = (":env:", "install", "global")
# Variables by which pip finds its files, and those that are settings themselves.
_READ_BY_PIP = ("PIP_", "XDG_", "HOME", "APPDATA", "VIRTUAL_ENV")
_TRUE = {"1", "true", "t", "yes", "y", "on"}


@dataclass(frozen=True)
class PipSettings:
    """The settings that determine where packages come from.

    `index_url` is None where nothing is configured, so that pip's default counts. Paths and
    addresses are as the user wrote them: they may carry passwords, and are left out of `repr`.
    """

    index_url: str | None = field(default=None, repr=False)
    extra_index_urls: tuple[str, ...] = field(default=(), repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = field(default=None, repr=False)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Everything that may carry credentials."""
        addresses = (self.index_url, *self.extra_index_urls, *self.find_links, self.proxy)
        return tuple(filter(None, addresses))

    def for_uv(self) -> tuple[list[str], dict[str, str]]:
        """Return options and variables by which `uv pip install` does as pip: it does not read pip's files.

        >>> options, variables = PipSettings(find_links=("/a", "/b"), no_index=True).for_uv()
        >>> options, variables["UV_FIND_LINKS"]
        (['--no-index'], '/a,/b')
        """
        wanted = {
            "UV_DEFAULT_INDEX": self.index_url,
            "UV_INDEX": " ".join(self.extra_index_urls),
            "UV_FIND_LINKS": ",".join(self.find_links),
            "UV_INSECURE_HOST": " ".join(self.trusted_hosts),
            "SSL_CERT_FILE": self.cert,
            "ALL_PROXY": self.proxy,
            # pip takes the highest version of all indexes, uv by default the first index with the package.
            "UV_INDEX_STRATEGY": "unsafe-best-match",
        }
        options = ["--no-index"] if self.no_index else []
        return options, {name: value for name, value in wanted.items() if value}


def read() -> PipSettings:
    """Return the output of `pip config list`; without pip only the environment's variables count."""
    read_by_pip = {name: text for name, text in os.environ.items() if name.startswith(_READ_BY_PIP)}
    values = _from_pip(sys.executable, frozenset(read_by_pip.items())) or {
        f":env:.{name.removeprefix('PIP_').lower().replace('_', '-')}": text
        for name, text in os.environ.items()
        if name.startswith("PIP_")
    }

    def value(name: str) -> str:
        texts = (values.get(f"{section}.{name}", "") for section in _SECTIONS)
        return next(filter(None, texts), "")

    return PipSettings(
        index_url=value("index-url") or None,
        extra_index_urls=tuple(value("extra-index-url").split()),
        find_links=tuple(value("find-links").split()),
        no_index=value("no-index").lower() in _TRUE,
        trusted_hosts=tuple(value("trusted-host").split()),
        cert=value("cert") or None,
        proxy=value("proxy") or None,
    )


@cache
def _from_pip(interpreter: str, _environment: frozenset[tuple[str, str]]) -> Mapping[str, str]:
    """Parse lines `section.name='value'`, the value a Python literal; return nothing when pip fails.

    pip is called once for the same variables: it takes 0.3 s, and an audit of releases reads them for each.
    """
    command = [interpreter, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    settings: dict[str, str] = {}
    for key, _, text in (line.partition("=") for line in listing.stdout.splitlines()):
        with suppress(SyntaxError, ValueError):  # no setting; its text may not be shown in a traceback
            settings[key] = str(ast.literal_eval(text))
    return settings


_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"<>]*)")
_HIDDEN = "***"
_SHORTEST = 4  # characters of a password that is hidden wherever it occurs; shorter ones are in every text


class Redactor:
    """Filter that hides user names, passwords and queries of addresses of any scheme, `file` included.

    What is before the last `@` counts as credentials, although a path may have an `@`: an address that is
    shown less well does no harm. A query may be a token, so it is hidden too.
    """

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        """Take the configured addresses, whose credentials are hidden also outside of an address."""
        secrets = {secret for address in addresses for secret in _secrets(address)}
        self._secrets = sorted(secrets, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return `text` without credentials."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _ADDRESS.sub(_without_credentials, text)


def _without_credentials(match: re.Match[str]) -> str:
    address, mark, _ = match["rest"].partition("?")
    _, at, host = address.rpartition("@")
    return f"{match['scheme']}{f'{_HIDDEN}@' if at else ''}{host}{f'?{_HIDDEN}' if mark else ''}"


def _secrets(address: str) -> Iterator[str]:
    user_info, at, _ = address.partition("://")[2].rpartition("@")
    if not at:
        return
    _, _, password = user_info.partition(":")
    for secret in (user_info, password):
        for form in (secret, unquote(secret)):
            if len(form) >= _SHORTEST:
                yield form

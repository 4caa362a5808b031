"""A package index of our own on this machine, over a folder of files."""

import html
import http.server
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BEHIND_PROXY = ("http_proxy", "https_proxy", "all_proxy")


@dataclass
class Served:
    """A package index over a folder of files: what it does, and which requests it got."""

    folder: Path
    ranges: bool = True
    status: int = 200
    url: str = ""
    yanked: frozenset[str] = frozenset()
    python: dict[str, str] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    sent: int = 0


class Handler(http.server.BaseHTTPRequestHandler):
    """The simple index (PEP 503): /simple/PACKAGE/ lists what lies in the folder of that package."""

    served: Served

    def do_GET(self) -> None:
        self.served.asked[self.path] += 1
        path = self.served.folder / self.path.partition("?")[0].removeprefix("/files/")
        if self.served.status != 200:
            self._send(self.served.status, b"no")
        elif self.path.startswith("/simple/"):
            pattern = self.path.split("/")[2].replace("-", "[-_]")  # a wheel's name has underscores
            names = [path.name for path in self.served.folder.glob(f"{pattern}-*")]
            self._send(200, "".join(map(self._link, names)).encode())
        elif path.is_file():
            self._send_file(path.read_bytes())
        else:
            self._send(404, b"no")

    def _link(self, name: str) -> str:
        yanked = ' data-yanked="broken"' if name in self.served.yanked else ""
        python = html.escape(self.served.python.get(name, ""))
        return f'<a href="/files/{name}" data-requires-python="{python}"{yanked}>{name}</a>'

    def _send_file(self, data: bytes) -> None:
        asked = self.headers.get("Range", "")
        if not (self.served.ranges and asked):
            self._send(200, data)
            return
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        self._send(206, data[first : last + 1], ("Content-Range", f"bytes {first}-{last}/{len(data)}"))

    def _send(self, status: int, data: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", "text/html"), ("Content-Length", str(len(data))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.served.sent += len(data)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


def tell_pip_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Take away settings of pip, and proxies, and let the harness store what it reads in `cache`."""
    for name in os.environ:
        if name.startswith("PIP_") or name.lower() in BEHIND_PROXY:
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(cache))


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve a new folder until the end of the block."""
    served = Served(folder)
    folder.mkdir()
    handler = type("Ours", (Handler,), {"served": served})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/simple"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield served
        server.shutdown()
        thread.join()

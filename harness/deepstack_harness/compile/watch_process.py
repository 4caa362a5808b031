"""Watch the dropped guards of a whole program: this process and every Python process that it starts.

`start_in_children` writes a `sitecustomize.py` into a folder of its own and returns the variables that let
each Python process find it. Such a process watches from the end of its first `import torch._dynamo` on, and
appends what it sees to a file of its own, line by line, so that a process that is killed has told what it
saw. `read_processes` reads the files of all processes. Nothing here imports torch.

Not reached: a Python that is started with -I, -E or -S, another interpreter's environment without the
packages that the harness needs, and a process that was forked before torch was imported by its parent (it is
reached where it imports torch itself).
"""

import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER, RANK = "DEEPSTACK_HARNESS_WATCH", "RANK"
"""Names of variables: the folder that findings go to; the rank of a process, as torchrun sets it."""
_TRIGGER = "torch._dynamo"

_SITE = """\
import importlib.machinery, importlib.util, os, sys
_own = os.path.dirname(os.path.abspath(__file__))
sys.path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _own]
_next = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _next is not None and _next.loader is not None:
    _next.loader.exec_module(importlib.util.module_from_spec(_next))
sys.path.insert(0, {packages!r})
try:
    from deepstack_harness.compile.watch_process import install
    install()
except Exception as error:
    print("deepstack-harness: this process is not watched:", error, file=sys.stderr)
finally:
    sys.path.remove({packages!r})
"""


@dataclass
class WatchedProcess:
    """What one process told: its command line, rank, regions by number, and whether it came to its end."""

    pid: int
    command: str
    rank: str = ""
    ended: bool = False
    problem: str = ""
    regions: dict[int, dict[str, Any]] = field(default_factory=dict)


def start_in_children(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a command whose processes are to be watched; `folder` gets their files."""
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    packages = str(Path(__file__).resolve().parents[2])
    (site / "sitecustomize.py").write_text(_SITE.format(packages=packages), "utf-8")
    paths = [str(site), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder)}


def install() -> None:
    """Watch this process from the end of its import of `torch._dynamo` on; does nothing without FOLDER."""
    if os.environ.get(FOLDER):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finder that lets another one find `torch._dynamo`, and starts to watch when it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own specification, with a loader that starts to watch behind it."""
        if fullname != _TRIGGER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_watch(module: ModuleType) -> None:
                load(module)
                # Its own `import torch._dynamo.guards` is done, and a thread may be in the middle of another.
                _start()

            spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec


_OPEN: list[object] = []


def _start() -> None:
    """Watch for the rest of this process."""
    from deepstack_harness.compile.watch_facts import FailedGuard, WatchedRegion
    from deepstack_harness.compile.watched import watch_guards

    numbers: dict[int, int] = {}
    lock = threading.Lock()

    def tell(kind: str, **facts: object) -> None:
        line = json.dumps({"event": kind, **facts}, default=str) + "\n"
        with lock, _file().open("a", encoding="utf-8") as stream:
            stream.write(line)

    def begin() -> None:
        tell("process", pid=os.getpid(), command=" ".join(sys.orig_argv), rank=os.environ.get(RANK, ""))

    def on_change(region: WatchedRegion, guard: FailedGuard | None) -> None:
        number = numbers.setdefault(id(region), len(numbers))
        tell(
            "region", number=number, name=region.name, where=region.where, kept=dict(region.kept),
            dropped=dict(region.dropped), calls=region.calls, problem=region.problem,
            captured=region.captured, unseen=region.unseen,
        )  # fmt: skip
        if guard is not None:
            tell("failed", number=number, guard=_guard_facts(guard))

    def finish() -> None:
        for region in watched.regions:
            on_change(region, None)
            for guard in region.failed.values():
                on_change(region, guard)
        tell("end")

    def begin_again() -> None:
        watched.regions.clear()
        numbers.clear()
        begin()

    begin()
    watching = watch_guards(on_change)
    watched = watching.__enter__()
    _OPEN.append(watching)  # a context that nobody holds is closed
    atexit.register(finish)
    os.register_at_fork(after_in_child=begin_again)


def _guard_facts(guard: Any) -> dict[str, Any]:  # noqa: ANN401  # a FailedGuard, whose module imports torch
    return {
        "source": guard.source, "name": guard.name, "kind": guard.kind, "rule": guard.rule,
        "where": guard.where, "class": guard.guard_class.value, "then": guard.then.beside(guard.now),
        "now": guard.now.beside(guard.then), "first_call": guard.first_call,
        "calls": guard.calls, "counts": guard.counts, "effect": str(guard.effect),
    }  # fmt: skip


def _file() -> Path:
    return Path(os.environ[FOLDER]) / f"process-{os.getpid()}.jsonl"


def read_processes(folder: Path) -> list[WatchedProcess]:
    """Return what each process told, in the order of process ids; a line that was cut off is left out."""
    processes = []
    for path in sorted(folder.glob("process-*.jsonl")):
        process: WatchedProcess | None = None
        for event in _events(path):
            if event["event"] == "process":
                process = WatchedProcess(event["pid"], event["command"], event["rank"])
            elif process is not None:
                _take(process, event)
        if process is not None:
            processes.append(process)
    return processes


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the process died while it wrote this line
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


_REGION = ("name", "where", "kept", "dropped", "calls", "problem", "captured", "unseen")


def _take(process: WatchedProcess, event: Mapping[str, Any]) -> None:
    match event["event"]:
        case "region":
            region = process.regions.setdefault(event["number"], {"failed": {}})
            region |= {name: event[name] for name in _REGION}
        case "failed":
            guard = event["guard"]
            process.regions[event["number"]]["failed"][guard["source"], guard["kind"]] = guard
        case "end":
            process.ended = True


def decisive_guards(processes: Sequence[WatchedProcess]) -> Iterator[tuple[WatchedProcess, Any, Any]]:
    """Yield each failed guard that decides, with its process and its region."""
    for process in processes:
        for region in process.regions.values():
            for guard in region["failed"].values():
                if guard["counts"]:
                    yield process, region, guard


def dropped_by_kind(processes: Sequence[WatchedProcess]) -> Counter[str]:
    """Return how many guards were dropped in all processes, by kind."""
    counts: Counter[str] = Counter()
    for process in processes:
        for region in process.regions.values():
            counts.update(region["dropped"])
    return counts

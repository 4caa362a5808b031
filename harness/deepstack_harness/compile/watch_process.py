"""Watch the dropped guards of a whole program: this process and every Python process that it starts.

`start_in_children` writes a `sitecustomize.py` into a folder of its own and returns the variables that let
each Python process find it. Such a process registers, watches from the end of its first import of
`torch._dynamo` on, and appends its observations to a file of its own, line by line, so that those of a
process that is killed are not lost. `read_processes` reads the files of all processes. Nothing here imports
torch.

Counts of calls are written into a mapped file as well, in every call: they survive SIGKILL.

Not reached: a Python that is started with -I, -E or -S, and another interpreter's environment without the
packages that the harness needs. `Unreached` finds such processes on Linux: they have loaded libtorch, and
have not registered.
"""

import atexit
import importlib
import importlib.abc
import importlib.machinery
import json
import mmap
import os
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from deepstack_harness.compile.watch_facts import OnCall, OnChange, WatchedRegion

FOLDER, RESTORED = "DEEPSTACK_HARNESS_WATCH", "DEEPSTACK_HARNESS_WATCH_RESTORED"
"""Names of variables: the folder that findings go to; a JSON list of the guards that are put back."""
_RANK = "RANK"
"""The variable in which torchrun names the rank of a process."""
_TRIGGER = "torch._dynamo"

_SITE_FOLDER = "site"
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
sys.path.append(_own)  # torch's own children get sys.path as PYTHONPATH, and engines look there for plugins
"""
# Where an engine looks for its plugins, also in an environment that the harness is not installed in.
_PLUGINS = {
    "METADATA": "Metadata-Version: 2.1\nName: deepstack-harness-watch\nVersion: 1\n",
    "entry_points.txt": "[vllm.general_plugins]\n"
    "deepstack_harness = deepstack_harness.engines.live.watch_plugin:watch_vllm\n",
}
_ENGINES = ("vllm",)
"""Engines that a plugin of ours watches: each has a module `plugins`."""


@dataclass
class WatchedProcess:
    """What one Python process reported.

    `compiles` is True once it has loaded Dynamo, `ended` once it came to its end. `problems` are sentences
    on what is not watched in it. `regions` by number are `watch_facts.region_facts`.
    """

    pid: int
    command: str
    rank: str = ""
    compiles: bool = False
    ended: bool = False
    problems: list[str] = field(default_factory=list)
    regions: dict[int, dict[str, Any]] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    """Engines that run in it, each with a sentence on how it is watched."""


def start_in_children(
    folder: Path, environment: Mapping[str, str], restored: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment for a command whose processes are to be watched; `folder` gets their files.

    `restored` are guards that are not dropped although the program drops them (`watched.watch_guards`).
    """
    site = folder / _SITE_FOLDER
    site.mkdir(parents=True, exist_ok=True)
    packages = str(Path(__file__).resolve().parents[2])
    (site / "sitecustomize.py").write_text(_SITE.format(packages=packages), "utf-8")
    plugins = site / "deepstack_harness_watch-1.dist-info"
    plugins.mkdir(parents=True, exist_ok=True)
    for name, text in _PLUGINS.items():
        (plugins / name).write_text(text, "utf-8")
    paths = [str(site), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {"PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder), RESTORED: json.dumps([*restored])}
    return {**environment, **variables}


def reaching(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what reaches a child that is started without our PYTHONPATH; nothing without FOLDER."""
    folder = environment.get(FOLDER)
    return {"PYTHONPATH": str(Path(folder, _SITE_FOLDER))} if folder else {}


def install() -> None:
    """Watch this process from the end of its import of `torch._dynamo` on; does nothing without FOLDER."""
    if os.environ.get(FOLDER):
        _register()
        os.register_at_fork(after_in_child=_register)
        sys.meta_path.insert(0, _AfterImport())


def watch_engine(name: str, prepare: Callable[[], str]) -> None:
    """Watch this process as one of an engine, from now on; for a plugin of it, as often as it is loaded.

    `prepare` lets the engine report what torch does not, and returns a sentence for the report. An exception
    of it is reported, and does not end the engine. Does nothing without FOLDER.
    """
    if not os.environ.get(FOLDER) or name in _LOADED:
        return
    _LOADED.add(name)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path) and not _OPEN:
        install()  # no sitecustomize came to this process
    importlib.import_module(_TRIGGER)
    if not _OPEN:  # it was imported before
        _start()
    try:
        _append_event("engine", name=name, text=prepare())
    except Exception as error:  # noqa: BLE001  # an engine runs on without a watch
        report_problem(f"{name} is not wholly watched: {type(error).__name__}: {error}")


_LOADED: set[str] = set()


def report_problem(text: str) -> None:
    """Report that something of this process is not watched, in a sentence; does nothing without FOLDER."""
    if os.environ.get(FOLDER):
        _append_event("problem", text=text)


def _register() -> None:
    _append_event("python", pid=os.getpid(), command=" ".join(sys.orig_argv), rank=os.environ.get(_RANK, ""))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finder that lets another one find `torch._dynamo`, and starts to watch when it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own specification, with a loader that starts to watch after the import."""
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


@dataclass(frozen=True)
class _Watch:
    """The watch of this process; a context that nobody holds is closed."""

    context: object
    regions: list["WatchedRegion"]
    on_change: "OnChange"
    on_call: "OnCall"


_OPEN: list[_Watch] = []


def report_region(region: "WatchedRegion") -> None:
    """Report a region that torch compiles nothing of, or what changed in it; for a plugin of an engine."""
    for watch in _OPEN:
        if not any(region is known for known in watch.regions):
            watch.regions.append(region)
        watch.on_change(region, None)


def count_call(region: "WatchedRegion") -> None:
    """Count a call of such a region, so that it survives SIGKILL."""
    region.calls += 1
    for watch in _OPEN:
        watch.on_call(region)


def _start() -> None:
    """Watch for the rest of this process."""
    from deepstack_harness.compile.watch_facts import FailedGuard, WatchedRegion, region_facts
    from deepstack_harness.compile.watched import watch_guards
    from deepstack_harness.errors import MachineError

    numbers: dict[int, int] = {}
    counts = _Counts()
    counts.open()

    def on_change(region: WatchedRegion, guard: FailedGuard | None) -> None:
        number = numbers.setdefault(id(region), len(numbers))
        # Layouts of inputs are many: they come with a new region, in growing distances, and at the end.
        facts = region_facts(region, inputs=guard is None)
        _append_event("region", number=number, rank=rank(), facts=facts)

    def on_call(region: WatchedRegion) -> None:
        counts.write(numbers[id(region)], region)

    def finish() -> None:
        for region in watched.regions:
            on_change(region, None)
        for name in _ENGINES:
            if name in _LOADED or f"{name}.plugins" not in sys.modules:
                continue
            # Clients and drivers of an engine import its plugins too, and run no model.
            runners = (module for module in sys.modules if module.startswith(f"{name}.v1.worker."))
            if watched.regions or any(module.endswith("model_runner") for module in runners):
                report_problem(
                    f"{name} did not load the plugin 'deepstack_harness': graphs that are captured, or come "
                    "from its cache, are not watched"
                )
        _append_event("end")

    def begin_in_child() -> None:
        counts.open()
        for region in watched.regions:
            region.start_again()
            on_change(region, None)
        _append_event("compiles")

    def finish_multiprocessing(_: object) -> None:
        from multiprocessing import util

        util.Finalize(None, finish, exitpriority=0)  # such a child ends without atexit

    _append_event("compiles")
    watching = watch_guards(on_change, on_call=on_call, restored=json.loads(os.environ.get(RESTORED, "[]")))
    try:
        watched = watching.__enter__()
    except MachineError as error:  # this torch does not have what a watch needs
        report_problem(str(error))
        return
    _OPEN.append(_Watch(watching, watched.regions, on_change, on_call))
    atexit.register(finish)
    os.register_at_fork(after_in_child=begin_in_child)
    from multiprocessing import util

    util.register_after_fork(watched, finish_multiprocessing)


class _Counts:
    """The calls of this process's regions and of their failed guards, in a file that outlives a SIGKILL.

    A row of unsigned 64-bit numbers for each region: its calls, those in which no input was visible, and
    those of each failed guard in order.
    """

    _REGIONS, _GUARDS = 4096, 200
    """Rows, and guards of a row (`watch_facts.MOST_LISTED`); the file is sparse. What does not fit is in
    the lines of the process, as it was when they were written."""
    _ROW = 8 * (2 + _GUARDS)

    def open(self) -> None:
        """Write into the file of this process from now on; a forked child must not count for its parent."""
        with _path("counts").open("w+b") as file:
            file.truncate(self._REGIONS * self._ROW)
            self._mapped = mmap.mmap(file.fileno(), 0)

    def write(self, number: int, region: "WatchedRegion") -> None:
        """Write the counts of the region of this number; 0.3 microseconds where no guard fails."""
        if number < self._REGIONS:
            counts = [region.calls, region.unseen, *(guard.calls for guard in region.failed.values())]
            struct.pack_into(f"<{len(counts)}Q", self._mapped, number * self._ROW, *counts)

    @classmethod
    def add_to(cls, process: "WatchedProcess", path: Path) -> None:
        """Put the counts of a file into the regions of its process, where they are later ones."""
        with path.open("rb") as file:
            for number, region in process.regions.items():
                if number < cls._REGIONS:
                    file.seek(number * cls._ROW)
                    calls, unseen, *failed = struct.unpack(f"<{2 + cls._GUARDS}Q", file.read(cls._ROW))
                    region["calls"] = max(region["calls"], calls)
                    region["unseen"] = max(region["unseen"], unseen)
                    for guard, count in zip(region["failed"], failed, strict=False):
                        guard["calls"] = max(guard["calls"], count)


def rank() -> str:
    """Return the rank of this process: of its process group, else torchrun's; empty for neither."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_rank())
    return os.environ.get(_RANK, "")


def _append_event(kind: str, **facts: object) -> None:
    """Append one line to the file of this process, in one piece: other threads and deaths cut nothing."""
    line = json.dumps({"event": kind, **facts}, default=str) + "\n"
    file = os.open(_path("process"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _path(kind: str) -> Path:
    """Return the file of this process; `kind` is "process" for its lines, "counts" for its counts."""
    suffix = {"process": ".jsonl", "counts": ".bin"}[kind]
    return Path(os.environ[FOLDER], f"{kind}-{os.getpid()}{suffix}")


def read_processes(folder: Path) -> list[WatchedProcess]:
    """Return what each process reported, in the order of process ids; a line that was cut off is left out."""
    processes = []
    for path in sorted(folder.glob("process-*.jsonl")):
        process: WatchedProcess | None = None
        for line in path.read_text("utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # the process died while it wrote this line
                continue
            if not isinstance(event, dict) or "event" not in event:
                continue
            if event["event"] == "python":
                process = WatchedProcess(event["pid"], event["command"], event["rank"])
            elif process is not None:
                _take(process, event)
        if process is not None:
            counts = folder / f"counts-{process.pid}.bin"
            if counts.exists():
                _Counts.add_to(process, counts)
            processes.append(process)
    return processes


def _take(process: WatchedProcess, event: Mapping[str, Any]) -> None:
    match event["event"]:
        case "region":
            process.rank = event["rank"]
            process.regions.setdefault(event["number"], {}).update(event["facts"])
        case "compiles":
            process.compiles = True
        case "engine":
            process.engines[event["name"]] = event["text"]
        case "problem":
            process.problems.append(event["text"])
        case "end":
            process.ended = True


class Unreached:
    """Processes below this one that were started meanwhile, have loaded libtorch, and are not watched.

    Looks every half second, only on Linux: importing torch takes longer. `found` maps process ids to command
    lines.
    """

    def __init__(self, folder: Path) -> None:
        self.found: dict[int, str] = {}
        self._folder = folder
        self._others: frozenset[int] = frozenset()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Start to look; children that this process has already are none of the program's."""
        self._others = frozenset(_children(os.getpid()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End looking; a process that registered meanwhile was reached."""
        self._ended.set()
        self._thread.join()
        self.found = {pid: name for pid, name in self.found.items() if not self._is_watched(pid)}

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            for pid in _descendants(os.getpid(), self._others):
                self._look_at(pid)

    def _look_at(self, pid: int) -> None:
        # In this order: what has executed a program of its own has no memory of its parent any more.
        if not (pid in self.found or self._is_watched(pid) or self._is_copy(pid)) and _has_torch(pid):
            self.found[pid] = _command_line(pid)

    def _is_copy(self, pid: int) -> bool:
        """Return whether it was forked, has executed nothing yet, and so has the torch of its parent.

        It may be about to become any program. A fork of a watched Python that goes on has registered; the
        child of a parent without torch has loaded its own.
        """
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            flags, parent = int(fields[_FLAGS]), int(fields[_PARENT])
        except (OSError, IndexError, ValueError):  # it has ended
            return False
        return bool(flags & _FORKED_NOT_EXECUTED) and (self._is_watched(parent) or _has_torch(parent))

    def _is_watched(self, pid: int) -> bool:
        return (self._folder / f"process-{pid}.jsonl").exists()


def _descendants(pid: int, others: frozenset[int] = frozenset()) -> Iterator[int]:
    """Yield the processes below one, without those in and below `others`."""
    for child in _children(pid):
        if child not in others:
            yield child
            yield from _descendants(child)


def _children(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            yield from map(int, children.read_text().split())


_PARENT, _FLAGS = 1, 6
"""Fields of /proc/PID/stat after the name of the program (proc_pid_stat(5))."""
_FORKED_NOT_EXECUTED = 0x40
"""PF_FORKNOEXEC of Linux (include/linux/sched.h): set by fork and vfork, cleared by execve."""


def _has_torch(pid: int) -> bool:
    try:
        return "/libtorch" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"


def failed_guards(
    processes: Sequence[WatchedProcess],
) -> Iterator[tuple[WatchedProcess, dict[str, Any], dict[str, Any]]]:
    """Yield each failed guard, with its process and its region."""
    for process in processes:
        for region in process.regions.values():
            for guard in region["failed"]:
                yield process, region, guard


def dropped_by_kind(processes: Sequence[WatchedProcess]) -> Counter[str]:
    """Return how many guards were dropped in all processes, by kind."""
    counts: Counter[str] = Counter()
    for process in processes:
        for region in process.regions.values():
            counts.update(region["dropped"])
    return counts

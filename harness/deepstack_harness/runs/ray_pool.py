"""Play groups on a Ray cluster, or on a Ray that is started on this machine: one Ray task for each group.

A Ray task starts the same workers as the local pool, so a case that crashes or hangs harms no other case.
Ray's processes exchange JSON texts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from deepstack_harness.errors import MachineError, missing_extra
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.pools import Group, play_group
from deepstack_harness.text import first_line_of
from deepstack_harness.workers.limits import Limits

_QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
ADDRESS = "RAY_ADDRESS"
"""Ray's variable for the address of the cluster; without it Ray is started on this machine."""


def play_in_ray(group: str, limits: str) -> Iterator[str]:
    """Play a `Group` in a process of Ray and yield each `CaseResult`; all of them as JSON."""
    with tempfile.TemporaryDirectory(prefix="deepstack-run-", ignore_cleanup_errors=True) as folder:
        parsed = msgspec.json.decode(group, type=Group)
        worker = CaseWorker(Limits(**msgspec.json.decode(limits)))
        for result in play_group(worker, parsed, {"TORCHINDUCTOR_CACHE_DIR": folder}):
            yield msgspec.json.encode(result).decode()


def awake() -> bool:
    """Return True; a result shows that a process of Ray has started."""
    return True


class RayPool:
    """Worker pool that plays each group as a Ray task; on CUDA with a GPU for each rank."""

    def __init__(self, workers: int, limits: Limits) -> None:
        """Take the number of cores, `workers`, of a Ray that is started here; a cluster has its own number.

        Raises `MachineError` where Ray is not installed.
        """
        try:
            import ray
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from None
        self._ray: Any = ray
        self._workers = workers
        self._limits = msgspec.json.encode(asdict(limits)).decode()

    def play(self, groups: Sequence[Group]) -> Generator[CaseResult]:
        """Yield the result of every case; closing the iterator leaves Ray, which ends its processes.

        Cases that were lost with a node are played on another one. Raises `MachineError` where the
        processes of one group are lost again and again.
        """
        with self._connected():
            playing: dict[Any, Group | None] = {self._begin(group): group for group in groups}
            lost = Counter[str]()
            while playing:
                (stream,), _ = self._ray.wait(list(playing), num_returns=1, fetch_local=False)
                try:
                    result = msgspec.json.decode(self._ray.get(next(stream)), type=CaseResult)
                except StopIteration:
                    del playing[stream]
                except self._ray.exceptions.RayTaskError:  # it ran, and our code raised
                    raise
                except self._ray.exceptions.RayError as error:
                    group = playing.pop(stream)
                    if group is None:  # it had played all its cases
                        continue
                    lost[group.name] += 1
                    if lost[group.name] == _MOST_LOST:
                        raise MachineError(
                            f"Ray lost the process that played '{group.name}' {_MOST_LOST} times: "
                            f"{first_line_of(error)}; 'run --resume' plays the cases that are left"
                        ) from None
                    playing[self._begin(group)] = group
                else:
                    group = playing[stream]
                    playing[stream] = group and group.without(frozenset({result.case.case}))
                    yield result

    def _begin(self, group: Group) -> Any:  # noqa: ANN401  # a generator of Ray's
        gpus = group.ranks if group.device.startswith("cuda") else 0
        remote = self._ray.remote(play_in_ray).options(
            num_cpus=1, num_gpus=gpus, num_returns="streaming", max_retries=0, name=group.name
        )
        return remote.remote(msgspec.json.encode(group).decode(), self._limits)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        # Our path includes the caller's folder, from which classes of the user are imported.
        seen = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **_NO_USAGE}}
        with self._started_here() as local:
            self._ray.init(runtime_env=seen, **local, **_QUIET)
            try:
                if local:
                    try:  # where its workers cannot start, Ray itself would wait for them for ever
                        self._ray.get(self._ray.remote(awake).remote(), timeout=_START_S)
                    except self._ray.exceptions.GetTimeoutError:
                        why = _last_line(Path(local["_temp_dir"]) / "session_latest" / "logs" / "raylet.err")
                        raise MachineError(f"Ray started no worker within {_START_S:g} s: {why}") from None
                yield
            finally:
                self._ray.shutdown()

    @contextmanager
    def _started_here(self) -> Iterator[dict[str, Any]]:
        """Yield the options of a Ray that is started on this machine; none where there is a cluster."""
        if os.environ.get(ADDRESS):
            yield {}
            return
        # Not in TMPDIR: Ray's workers refuse a folder inside a virtual environment, where tox puts it,
        # and the paths of Ray's sockets have to be short.
        with tempfile.TemporaryDirectory(prefix="ray-", dir=_SHORT, ignore_cleanup_errors=True) as folder:
            yield {"num_cpus": self._workers, "object_store_memory": 2**27, "_temp_dir": folder}


def _last_line(log: Path) -> str:
    """Return the last line that a crashed worker printed; lines of Ray itself begin with a bracket."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return next(
        (line for line in reversed(lines) if line and not line.startswith("[")), "no reason was printed"
    )


_MOST_LOST = 3
"""Processes of one group that may be lost; what kills its node each time will kill the next one too."""
_SHORT = "/tmp"
_START_S = 120.0
"""Seconds in which a worker of Ray has to start. After them the run ends with exit code 3."""
_NO_USAGE = {"RAY_USAGE_STATS_ENABLED": "0"}

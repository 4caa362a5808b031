"""Save what was compiled, load it in a fresh process, and call it there.

An engine caches compiled artifacts, and a later process loads them under a cache key.  Where the key lacks
the structure of the arguments, an artifact that was made without images serves calls with images
(vllm 50891).  One worker serves every reload of a run.  It imports torch once and compiles no graph; tensors
go to it as JSON (`arms.tensor_json`), and only torch's own artifact lies in a file.
"""

import tempfile
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepstack_harness.arms.reload_worker import ArtifactCall, ArtifactError, ReloadResult
from deepstack_harness.arms.tensor_json import from_json, to_json
from deepstack_harness.contract.protocols import Decoder, Inputs
from deepstack_harness.errors import NotMeasured
from deepstack_harness.torch_compat import artifact
from deepstack_harness.torch_compat.modules import take_apart
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.worker import Worker

LIMIT_S = 120.0
"""Seconds for one answer; loading what Inductor compiled takes about 3 on an idle machine."""
_LIMITS = Limits(start_s=300.0, call_s=LIMIT_S)
_WORK = "deepstack_harness.arms.reload_worker"
_KEYS = count()


class ReloadedDecoder:
    """A `protocols.Decoder` that was compiled here, saved, and runs in a fresh process."""

    def __init__(
        self,
        decoder: Decoder,
        inputs: Inputs,
        *,
        backend: str,
        options: Mapping[str, Any],
        limit_s: float = LIMIT_S,
    ) -> None:
        """Compile ahead of time for `inputs`, with their structure and marked dimensions; save and load.

        `options` are those of torch.compile, `guard_filter_fn` among them; guards that torch cannot save
        are dropped in any case.  Raises `StepUnavailable` where this torch cannot save what `backend`
        compiles, `NotMeasured` where the process ends or gives no answer within `limit_s` seconds or the
        artifact refuses these very `inputs` once it is reloaded, and what torch raises while it compiles or
        loads.
        """
        self._key = next(_KEYS)
        self._closed = False
        self.limit_s = limit_s
        self._process = fresh_process()  # imports torch while we compile
        forward = decoder.forward  # type: ignore[attr-defined]
        parts = take_apart(decoder)  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory(prefix="deepstack-") as folder:
            path = Path(folder) / "decoder.artifact"
            arguments = (inputs.hidden, inputs.positions, inputs.payload)
            artifact.save(forward, arguments, path, backend=backend, options=options)
            self._ask("load", path=str(path), parts=to_json(parts), threads=torch.get_num_threads())
        self._rehearse(inputs)

    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Call the artifact and return (n, h); what it raises is raised here, under the same class name.

        See `deepstack_harness.contract.protocols.Inputs` for the shapes of the arguments.
        """
        asked = ArtifactCall(hidden, positions, payload, torch.is_grad_enabled())
        result = self._ask("call", asked=to_json(asked))
        if result.compiled or result.out is None:
            raise NotMeasured(
                f"the fresh process compiled {result.compiled} graphs itself; it should only load"
            )
        return result.out

    def close(self) -> None:
        """Let the process forget the artifact; it cannot be called any more."""
        if self._process.alive and not self._closed:
            with suppress(NotMeasured):  # the process has ended since
                self._ask("drop")
        self._closed = True

    def _rehearse(self, inputs: Inputs) -> None:
        # A guard that was kept may look at something that did not travel: that is no fault of the artifact.
        try:
            self(inputs.hidden, inputs.positions, inputs.payload)
        except RaisedElsewhere as error:
            self.close()
            raise NotMeasured(
                f"the reloaded artifact refuses its own example inputs: {type(error).__name__}: {error}"
            ) from None

    def _ask(self, function: str, **arguments: object) -> ReloadResult:
        if self._closed:
            raise NotMeasured("this reloaded decoder is closed")
        result = self._process.ask(function, {"key": self._key, **arguments}, self.limit_s)
        if result.raised is not None:
            raise _as_raised(result.raised)
        return result


class FreshProcess:
    """The worker that loads artifacts; it ends with this process."""

    def __init__(self) -> None:
        """Start it without waiting."""
        self._worker = Worker(_LIMITS, preload=_WORK)

    @property
    def alive(self) -> bool:
        """True while it can be asked."""
        return self._worker.ended is None

    @property
    def pid(self) -> int | None:
        """Process id; None before the first answer."""
        return self._worker.pid

    def ask(self, function: str, arguments: Mapping[str, Any], limit_s: float) -> ReloadResult:
        """Call a function of `reload_worker`; raises `NotMeasured` where it fails or the worker ends."""
        if not self.alive:
            raise NotMeasured("the process that had loaded the artifact has ended")
        match self._worker.call(f"{_WORK}:{function}", arguments, seconds=limit_s):
            case Answered(value=value):
                return from_json(value, ReloadResult)
            case RaisedInWorker() as raised:
                raise NotMeasured(f"the process that loads artifacts failed: {raised.as_error}")
            case WorkerEnd() as end:
                printed = end.output.strip() or "nothing"
                raise NotMeasured(
                    f"the process that had loaded the artifact: {end.sentence}; it printed: {printed}"
                )

    def close(self) -> None:
        """End it and everything it started."""
        self._worker.close()


def fresh_process() -> FreshProcess:
    """Return the process that serves this run; start another one where it has ended."""
    if not _started().alive:
        _started().close()
        _started.cache_clear()
    return _started()


@cache
def _started() -> FreshProcess:
    return FreshProcess()


class RaisedElsewhere(Exception):
    """Exception of a loaded artifact; `where` is its `file:line` outside torch, if it has one."""

    where = ""


def _as_raised(error: ArtifactError) -> RaisedElsewhere:
    # On one line: torch spreads the reason of a failed guard over many.
    kind = type(error.name, (RaisedElsewhere,), {"where": error.where})
    raised: RaisedElsewhere = kind(textwrap.shorten(error.message, 400))
    return raised

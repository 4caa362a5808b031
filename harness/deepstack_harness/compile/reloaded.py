"""Save a decoder that was compiled, load it in a fresh process, and call it there.

An engine caches compiled artifacts, and a later process loads them under a cache key. If the key ignores the
structure of the arguments, an artifact that was made without images serves calls with images (vllm 50891).
`ReloadedDecoder` is the half of this process; `load_artifact`, `call_artifact` and `drop_artifact` run in a
warm worker that serves every reload of a run, and compiles no graph. The artifact and the decoder's tensors
go there in files, tensors of a call in its message, all as `torch.save` writes them.
"""

import inspect
import io
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepstack_harness.compile.torch_compat import artifact, dynamo
from deepstack_harness.compile.torch_compat.guards import call_own_guards
from deepstack_harness.compile.torch_compat.structures import map_leaves
from deepstack_harness.contract.protocols import Decoder, Inputs
from deepstack_harness.errors import NotMeasured, text_of
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

dynamo.load()  # here, so that a server that forks workers imports it once

_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class ReloadResult:
    """Result of a load or of a call.

    `out` is the result (n, h) of a call, as `packed` writes it; `compiled` is the number of graphs that the
    process compiled itself since the last load; `raised` is the exception of the artifact: the name of its
    class, its text, and its `file:line` outside torch, or "".
    """

    out: bytes | None = None
    compiled: int = 0
    raised: tuple[str, str, str] | None = None


def packed(value: object) -> bytes:
    """Return tensors, in tuples, as bytes: every bit of a tensor, its strides and `requires_grad`."""
    file = io.BytesIO()

    def unmarked(leaf: object) -> object:
        """Return a tensor without Python attributes: guards refuse a dimension that only now is marked."""
        return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    torch.save(map_leaves(unmarked, value), file)
    return file.getvalue()


def unpacked(content: bytes) -> Any:  # noqa: ANN401  # tensors in tuples
    """Return what `packed` was given."""
    return torch.load(io.BytesIO(content), weights_only=True)


_ARTIFACTS: dict[int, Callable[..., Any]] = {}
"""The functions that this process has loaded, by their keys; in the worker."""


def load_artifact(key: int, folder: str, threads: int) -> ReloadResult:
    """Load the artifact and the decoder of a folder, to be called by `key`, with so many threads."""
    torch.set_num_threads(threads)
    dynamo.start_counting()
    # First, as it imports the decoder's own operators, which the artifact may use.
    decoder = artifact.load_module(Path(folder) / _DECODER)
    try:
        function = artifact.load(Path(folder) / _ARTIFACT)
    except Exception as error:  # noqa: BLE001  # an artifact that torch refuses to load is a fact
        return _raised(error)
    _ARTIFACTS[key] = partial(function, decoder)
    return ReloadResult()


def call_artifact(key: int, inputs: bytes, grad: bool) -> ReloadResult:
    """Call an artifact with packed (hidden, positions, payload).

    Only what the artifact itself raises becomes a result.
    """
    function, arguments = _ARTIFACTS[key], unpacked(inputs)
    try:
        with torch.set_grad_enabled(grad):
            out = function(*arguments)
    except Exception as error:  # noqa: BLE001  # an exception of a compiled call is a fact
        return _raised(error)
    return ReloadResult(packed(out), dynamo.graphs_built())


def drop_artifact(key: int) -> ReloadResult:
    """Forget an artifact."""
    del _ARTIFACTS[key]
    return ReloadResult()


def _raised(error: Exception) -> ReloadResult:
    # Compiled code has the file and line of its source.
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_TORCH) and frame.filename != __file__
    ]
    return ReloadResult(raised=(type(error).__name__, text_of(error), places[-1] if places else ""))


_LOAD = Remote(f"{__name__}:load_artifact", ReloadResult)
_CALL = Remote(f"{__name__}:call_artifact", ReloadResult)
_DROP = Remote(f"{__name__}:drop_artifact", ReloadResult)
_ARTIFACT, _DECODER = "decoder.artifact", "decoder.module"
TIMEOUT_S = 120.0
"""Timeout of one call; loading what Inductor compiled takes about 3 s on an idle machine."""
_LIMITS = Limits(start_s=300.0, call_s=TIMEOUT_S)
_KEYS = count()


@cache
def reload_worker() -> Worker:
    """Return the warm worker that loads the artifacts of this process; it ends with this process."""
    return Worker(_LIMITS, preload=__name__)


class ReloadedDecoder:
    """A `protocols.Decoder` that was compiled here, saved, and runs in a fresh process."""

    def __init__(
        self,
        decoder: Decoder,
        inputs: Inputs,
        *,
        backend: str,
        options: Mapping[str, Any],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Compile ahead of time for `inputs`, with their structure and marked dimensions; save and load.

        `options` are those of torch.compile, `guard_filter_fn` among them; guards that torch cannot save are
        dropped in any case. Raises `StepUnavailable` where this torch cannot save what `backend` compiles,
        `NotMeasured` where the process ends or does not return within `timeout_s` seconds or the artifact
        refuses these very `inputs` once it is reloaded, and what torch raises while it compiles or loads.
        """
        self._key, self._decoder = next(_KEYS), decoder
        self._closed = False
        self.timeout_s = timeout_s
        self._worker = reload_worker()
        self._worker.launch()  # it imports torch while we compile
        self._process = self._worker.starts
        with tempfile.TemporaryDirectory(prefix="deepstack-") as name:
            folder = Path(name)
            arguments = (inputs.hidden, inputs.positions, inputs.payload)
            artifact.save_module(decoder, folder / _DECODER)  # type: ignore[arg-type]
            artifact.save(
                decoder.forward,  # type: ignore[attr-defined]
                arguments, folder / _ARTIFACT, backend=backend, options=options,
            )  # fmt: skip
            self._call_worker(_LOAD, {"folder": name, "threads": torch.get_num_threads()})
        try:
            self(*arguments)
        except RaisedElsewhere as error:
            # A guard may check something that is not in the file: no fault of the artifact.
            self.close()
            raise NotMeasured(
                f"the reloaded artifact refuses its own example inputs: {type(error).__name__}: {error}"
            ) from None

    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Call the artifact and return (n, h); what it raises is raised here, under the same class name.

        See `deepstack_harness.contract.protocols.Inputs` for the shapes of the arguments.
        """
        forward = self._decoder.forward  # type: ignore[attr-defined]
        values = inspect.signature(forward).bind(hidden, positions, payload).arguments
        # The process that loads an artifact has no guards; those of its compilation are here.
        call_own_guards(forward.__code__, {"self": self._decoder, **values})
        inputs = packed((hidden, positions, payload))
        result = self._call_worker(_CALL, {"inputs": inputs, "grad": torch.is_grad_enabled()})
        if result.compiled or result.out is None:
            raise NotMeasured(
                f"the fresh process compiled {result.compiled} graphs itself; it should only load"
            )
        out: Tensor = unpacked(result.out)
        return out

    def close(self) -> None:
        """Let the process forget the artifact; it cannot be called any more."""
        if self._is_loaded and not self._closed:
            with suppress(NotMeasured):  # the process has ended since
                self._call_worker(_DROP, {})
        self._closed = True

    @property
    def _is_loaded(self) -> bool:
        """Return whether the process that loaded the artifact still runs, and was not replaced."""
        return self._worker.alive and self._worker.starts == self._process

    def _call_worker(self, remote: Remote[ReloadResult], arguments: Mapping[str, object]) -> ReloadResult:
        if self._closed:
            raise NotMeasured("this reloaded decoder is closed")
        if not self._is_loaded:
            raise NotMeasured("the process that had loaded the artifact has ended")
        match self._worker.call(remote, {"key": self._key, **arguments}, timeout_s=self.timeout_s):
            case Answered(value=result):
                if result.raised is None:
                    return result
                name, message, where = result.raised
                kind: Callable[[str], RaisedElsewhere] = type(name, (RaisedElsewhere,), {"where": where})
                raise kind(textwrap.shorten(message, 400))  # on one line: torch spreads it over many
            case RaisedInWorker() as raised:
                raise NotMeasured(f"the process that loads artifacts failed: {raised.as_error}")
            case WorkerEnd() as end:
                printed = end.output.strip() or "nothing"
                raise NotMeasured(
                    f"the process that had loaded the artifact: {end.sentence}; it printed: {printed}"
                )


class RaisedElsewhere(Exception):
    """Exception of a loaded artifact; `where` is its `file:line` outside torch, if it has one."""

    where = ""

"""Count the work of a compiled decoder's kernels, at the sizes with which they were really called.

`KernelProbe` reads them from Inductor's scheduler, on any machine. On CUDA, `launched` records the kernels
that were launched on the GPU, from torch's profiler, and `with_grids` adds their grids.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import sympy
import torch
from torch.profiler import ProfilerActivity, profile

from deepstack_harness.compile.torch_compat.inductor import (
    Access,
    Lowered,
    ScannedKernel,
    Symbols,
    Watched,
    cache_hits,
    watch,
)
from deepstack_harness.contract.facts import TOKENS, GraphCall, Kernel, KernelFacts
from deepstack_harness.errors import NotMeasured

_ARGUMENTS = ("hidden", "positions")
"""Arguments of a decoder whose sizes are the step's tokens."""


class KernelProbe:
    """Probe that watches Inductor while a decoder is compiled and called (`protocols.Decoder`).

    `tokens` and `capacity` are the step's rows and the buffer's: where sizes were compiled in, they decide
    which extents are token rows, so they must differ from each other and should from every width of the
    model. Without `run`, code is generated but not run, and each call ends in
    `deepstack_harness.compile.torch_compat.inductor.NotRun`.
    """

    def __init__(
        self, tokens: int, capacity: int, *, run: bool = True, arguments: Sequence[str] = _ARGUMENTS
    ) -> None:
        """Take the sizes of `arguments`, of which the first is shown as `n`, to be tokens."""
        self._tokens = tokens
        self._capacity = capacity
        self._arguments = arguments
        self._watch: AbstractContextManager[Watched] = watch(arguments, run=run)

    def __enter__(self) -> Self:
        """Start watching: what was compiled before stays unseen."""
        self.watched = self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._hits = cache_hits()
        self._watch.__exit__(kind, error, trace)

    def facts(self) -> KernelFacts:
        """Return the kernels of every call; raise `NotMeasured` when some or all of them were not seen."""
        if self._hits:
            raise NotMeasured(
                f"{self._hits} graphs came out of a warm compile cache, so their kernels were not seen"
            )
        if self.watched.unread:
            raise NotMeasured(f"kernels could not be read: {'; '.join(self.watched.unread)}")
        if not self.watched.calls:
            raise NotMeasured(
                f"{len(self.watched.graphs)} graphs were compiled and none called while kernels were watched"
            )
        calls = tuple(self._call(index, symbols) for index, symbols in self.watched.calls)
        return KernelFacts(len(self.watched.graphs), calls)

    def _call(self, index: int, symbols: Symbols) -> GraphCall:
        lowered = self.watched.graphs[index]
        assert lowered is not None, "a graph that could not be read has no calls"
        named = lowered.sizes_of[self._arguments[0]]
        call = _Call(index, lowered, symbols, named, self._tokens, self._capacity).facts()
        if not call.generated or not call.bytes:
            raise NotMeasured(
                f"graph {index} shows {len(call.generated)} generated kernels and {call.bytes} bytes moved"
            )
        return call


class _Call:
    """One call of one graph: expressions and what their symbols stood for."""

    def __init__(
        self,
        number: int,
        lowered: Lowered,
        symbols: Symbols,
        named: Sequence[sympy.Symbol],
        tokens: int,
        capacity: int,
    ) -> None:
        self._number = number
        self._lowered = lowered
        self._symbols = {symbol: sympy.Integer(value) for symbol, value in symbols.items()}
        self._tokens = tokens
        self._capacity = capacity
        # The same call, if nothing had more rows than the step.
        self._ideal = {symbol: sympy.Integer(min(value, tokens)) for symbol, value in symbols.items()}
        tokens_symbol = sympy.Symbol(TOKENS, integer=True, positive=True)
        self._names = dict.fromkeys(named, tokens_symbol)
        self._functions = {
            operation: function for function in lowered.functions for operation in function.operations
        }

    def facts(self) -> GraphCall:
        return GraphCall(
            graph=self._number,
            symbolic=bool(self._lowered.token_symbols),
            symbols={self._text(symbol): int(value) for symbol, value in self._symbols.items()},
            kernels=tuple(map(self._kernel, self._lowered.kernels)),
        )

    def _kernel(self, scanned: ScannedKernel) -> Kernel:
        # Of equal counts the one that reads best.
        rows = max(self._rows(scanned), key=lambda rows: (self._value(rows), -len(str(rows))), default=None)
        inside = scanned.kind != "extern"
        size = scanned.points if inside else rows
        function = next(filter(None, map(self._functions.get, scanned.operations)), None)
        return Kernel(
            graph=self._number,
            kernel=scanned.name,
            kind=scanned.kind,
            points=self._value(scanned.points) if inside else None,
            symbolic_points=self._text(scanned.points) if inside else None,
            reduction=self._value(scanned.reduction) if inside else None,
            symbolic_reduction=self._text(scanned.reduction) if inside else None,
            rows=None if rows is None else self._value(rows),
            symbolic_rows=None if rows is None else self._text(rows),
            bytes=sum(self._bytes(access) for access in scanned.accesses),
            ideal_bytes=sum(self._ideal_bytes(access) for access in scanned.accesses),
            carries_tokens=size is not None and bool(size.free_symbols & self._lowered.token_symbols),
            function=function.name if function else None,
            numels={prefix: self._value(numel) for prefix, numel in function.numels.items()}
            if function
            else {},
        )

    def _rows(self, scanned: ScannedKernel) -> Iterator[sympy.Expr]:
        """Yield, for each buffer that has token rows, the number of rows that the kernel touches."""
        for access in scanned.accesses:
            # Token rows have a symbol (only rows are dynamic), or a known size.
            symbolic = [extent for extent in access.size if extent.free_symbols]
            known = [extent for extent in access.size if extent in {self._capacity, self._tokens}]
            extent = next(iter(symbolic or known), None)
            if extent is not None and access.buffer not in self._lowered.parameters:
                touched = sympy.ceiling(sympy.cancel(access.elements * extent / sympy.Mul(*access.size)))
                yield min(touched, extent, key=self._value)

    def _bytes(self, access: Access) -> int:
        return access.itemsize * min(self._value(access.elements), self._value(sympy.Mul(*access.size)))

    def _ideal_bytes(self, access: Access) -> int:
        if access.buffer in self._lowered.parameters:
            return self._bytes(access)
        # In later dimensions, the capacity is a width that happens to be as large.
        cut = [sympy.Integer(self._tokens)] if access.size[:1] == (self._capacity,) else []
        fits = sympy.Mul(*cut, *access.size[len(cut) :])
        values = (self._value(fits, self._ideal), self._value(access.elements, self._ideal))
        return access.itemsize * min(values)

    def _value(
        self, expression: sympy.Expr, symbols: Mapping[sympy.Symbol, sympy.Integer] | None = None
    ) -> int:
        value = expression.xreplace(symbols or self._symbols)
        if value.free_symbols:
            raise NotMeasured(f"{expression} of graph {self._number} has symbols that no input binds")
        return int(value)

    def _text(self, expression: sympy.Expr) -> str:
        return str(expression.xreplace(self._names))


Launch = tuple[str, tuple[int, int, int]]
"""The name of a kernel that was launched, and its grid in blocks."""


def launched(run: Callable[[], object]) -> list[Launch]:
    """Return the launches of `run` in the order they started.

    Call `run` once before, so that autotuning is over.

    Raises `NotMeasured` where the profiler saw none.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        launches = read_launches(path.read_bytes())
    if not launches:
        raise NotMeasured("the profiler saw no kernel on the GPU")
    return launches


def read_launches(trace: bytes) -> list[Launch]:
    """Read the launches in a trace of `torch.profiler` (Chrome's format: events of category `kernel`)."""
    events = [event for event in json.loads(trace)["traceEvents"] if event.get("cat") == "kernel"]
    events.sort(key=lambda event: event["ts"])
    return [(event["name"], tuple(event["args"]["grid"])) for event in events]


def with_grids(calls: Iterable[GraphCall], launches: Iterable[Launch]) -> tuple[GraphCall, ...]:
    """Return the calls with the grid of each Triton kernel.

    Raises `NotMeasured` where a kernel was not launched, or in another order.
    """
    remaining = iter(launches)
    changed = []
    for call in calls:
        kernels = list(call.kernels)
        for index, kernel in enumerate(kernels):
            if kernel.function is None:
                continue
            # Launches of libraries may come before it; the launches that are skipped belong to them.
            grid = next((grid for name, grid in remaining if name == kernel.function), None)
            if grid is None:
                raise NotMeasured(
                    f"kernel {kernel.function} was generated and not launched, or launched out of order"
                )
            kernels[index] = replace(kernel, grid=grid)
        changed.append(replace(call, kernels=tuple(kernels)))
    return tuple(changed)

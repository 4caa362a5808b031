"""Watch captured CUDA graphs: is each one replayed with what it was captured with?

`torch.cuda.CUDAGraph.replay()` takes no inputs: it reads the addresses that were captured, and all Python
around it is burnt in. So the arguments of the callable around a capture are compared with those of the
callable that replays it: presence, type, value, layout and address, however they are nested, and the
attributes that the captured code names. `around` marks such a callable:

    runner.forward = around(runner.forward)

No Python runs in a replay. So what the code writes in every run, such as a count, is reported too: what the
capture changed although the code had run with equal sizes right before it, as engines warm up. Without such
a run nothing is known of it, because a first run also writes what later ones leave.

Nothing of a graph is changed. A replay outside of every marked callable is counted as one whose inputs were
not visible. Replays of `mode="reduce-overhead"` are left out: torch itself looks at their inputs.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from deepstack_harness.compile.captured_inputs import CapturedCode, Facts, difference, sizes_of
from deepstack_harness.compile.watch_facts import (
    ABSENT,
    MOST_LISTED,
    FailedGuard,
    GuardClass,
    GuardEffect,
    InputFacts,
    OnCall,
    OnChange,
    WatchedRegion,
    WatchedRegions,
)
from deepstack_harness.compile.watch_text import WRITTEN

CAPTURED = "CAPTURED"
"""The kind of an input that differs from that of the capture, in addition to torch's kinds of guards."""
_FIRST_REPLAYS, _SAMPLE = 8, 256
"""Attributes of submodules are read in the first replays and in each 256th, all others in every one."""
_MOST_FINGERPRINTS = 64
"""Of one capture: attributes that are numbers may have many values."""


@dataclass
class _Capture:
    """What a call captured: facts before and after it, None before where no call was visible."""

    region: WatchedRegion
    code: CapturedCode | None = None
    before: Facts | None = None
    after: Facts = field(default_factory=dict)
    fingerprints: set[object] = field(default_factory=set)
    """Those of replays in which nothing differed."""
    state: Facts | None = None
    """All state before the capture, where the code had run with equal sizes right before it."""
    written: dict[str, tuple[InputFacts, InputFacts]] = field(default_factory=dict)
    """What every run writes and the next one may read, before and after the capture; a replay does not."""
    bound: set[str] = field(default_factory=set)
    """Attributes to which every run binds a tensor that it made: a replay writes that of its capture."""

    def end(self, call: "_Call") -> None:
        """Note what the capture left."""
        self.after = call.facts(whole=True)
        now = call.code.state() if self.state is not None else {}
        for name in {**(self.state or {}), **now}:
            pair = (self.state or {}).get(name, ABSENT), now.get(name, ABSENT)
            if not difference(*pair) or (ABSENT in pair and name.rpartition("[")[0] in self.written):
                continue  # as before, or a member of what is longer
            if {facts.kind for facts in pair} == {"tensor"} and not call.code.reads_first(name):
                self.bound.add(name)
            else:
                self.written[name] = pair


@dataclass
class _Call:
    """A call of a marked callable that runs now."""

    code: CapturedCode
    args: Sequence[object]
    kwargs: Mapping[str, object]
    copies: bool = False
    pads: bool = False
    captured: _Capture | None = None
    replayed: _Capture | None = None
    """What it captured, and replayed, so far: the pieces of a broken graph are one capture."""
    made: _Capture | None = None
    """What `make_graphed_callables` captured for it."""

    def facts(self, *, whole: bool) -> dict[str, InputFacts]:
        """Return the facts of all that its graph may have read."""
        return self.code.facts(self.args, self.kwargs, whole=whole)


@dataclass
class _Thread(threading.local):
    """Marked calls that run in this thread, the innermost last, and the capture that it is in."""

    calls: list[_Call] = field(default_factory=list)
    capturing: _Capture | None = None
    making: bool = False


_THREAD = _Thread()
_OPEN: list["_Watch"] = []


def around(
    call: Callable[..., Any], *, code: object = None, name: str = "", copies: bool = False, pads: bool = False
) -> Callable[..., Any]:
    """Return a callable that does what `call` does, and whose arguments are those of the graphs in it.

    The arguments of a call that captures a graph are compared with those of each later call that replays it.
    `code` is what is captured, where it is not `call` itself: its signature names the arguments, and the
    attributes that it reads are compared too. Callables of one `name` are one, such as a method that captures
    and one that replays: the arguments that both have are compared.

    `copies`: it copies its inputs into tensors of its own, so that addresses and strides mean nothing;
    `pads`: into longer ones, so that their shapes mean nothing either.
    """

    @functools.wraps(call)
    def marked(*args: Any, **kwargs: Any) -> object:
        if not _OPEN:
            return call(*args, **kwargs)
        with calling(call if code is None else code, args, kwargs, name=name, copies=copies, pads=pads):
            return call(*args, **kwargs)

    return marked


@contextmanager
def calling(
    code: object, args: Sequence[object], kwargs: Mapping[str, object] | None = None, *, name: str = "",
    copies: bool = False, pads: bool = False,
) -> Iterator[None]:  # fmt: skip
    """Mark a block as a call of `code` with these arguments; see `around`."""
    call = _Call(CapturedCode.of_callable(code, name), args, kwargs or {}, copies, pads)
    capture = _THREAD.capturing
    if capture is not None and capture.before is None:  # nothing was around it: this call is what is captured
        call.captured = capture
        capture.code, capture.before = call.code, call.facts(whole=True)
        capture.state = _OPEN[-1].state_of_rerun(call)
    _THREAD.calls.append(call)
    try:
        yield
    finally:
        _THREAD.calls.remove(call)
        if call.captured is not None:
            call.captured.end(call)
        elif call.replayed is None and _OPEN:
            _OPEN[-1].ran[call.code.key] = sizes_of((call.args, call.kwargs))


@contextmanager
def capturing(graph: object) -> Iterator[None]:
    """Note that a graph is captured in this block; for graphs that are no `torch.cuda.CUDAGraph`."""
    _begin(graph)
    try:
        yield
    finally:
        _THREAD.capturing = None


def replaying(graph: object) -> None:
    """Note that a graph is replayed now; for graphs that are no `torch.cuda.CUDAGraph`."""
    if _OPEN:
        _OPEN[-1].replays(graph)


def _begin(graph: object) -> None:
    if _OPEN:
        _THREAD.capturing = _OPEN[-1].captures(graph)


@contextmanager
def watch_captured(
    watched: WatchedRegions, on_change: OnChange | None = None, on_call: OnCall | None = None
) -> Iterator[None]:
    """Watch the graphs that are captured inside; their regions are added to those of `watched`.

    `on_change` is called with each new region, and with each input that differs for the first time;
    `on_call` after each replay.
    """
    watch = _Watch(watched, on_change, on_call)
    with _events_of_torch() if not _OPEN else nullcontext():
        _OPEN.append(watch)
        try:
            yield
        finally:
            _OPEN.remove(watch)


@contextmanager
def _events_of_torch() -> Iterator[None]:
    """Report captures and replays of torch's graphs, while open."""
    graphs = torch.cuda.CUDAGraph
    make: Callable[..., Any] = torch.cuda.make_graphed_callables
    begin: Callable[..., object] = graphs.capture_begin
    end: Callable[..., object] = graphs.capture_end
    replay: Callable[..., object] = graphs.replay

    def capture_begin(self: object, *args: Any, **kwargs: Any) -> object:
        _begin(self)
        return begin(self, *args, **kwargs)

    def capture_end(self: object) -> object:
        _THREAD.capturing = None
        return end(self)

    def report_and_replay(self: object) -> object:
        frame = inspect.currentframe()
        caller = frame.f_back.f_code.co_filename if frame and frame.f_back else ""
        # Torch itself replays for `mode="reduce-overhead"`, and looks at the inputs.
        if not caller.startswith(f"{torch.__path__[0]}/_inductor"):
            replaying(self)
        return replay(self)

    def make_and_mark(callables: object, sample_args: Any, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
        many = isinstance(callables, tuple)
        samples = sample_args if many else (sample_args,)
        listed = callables if isinstance(callables, tuple) else (callables,)
        codes = [
            (CapturedCode.of_callable(code), sample) for code, sample in zip(listed, samples, strict=True)
        ]
        before = [code.facts(sample, {}, whole=True) for code, sample in codes]
        _THREAD.making = True
        try:
            made = make(callables, sample_args, *args, **kwargs)
        finally:
            _THREAD.making = False
        marked = [
            _marked_graphed(graphed, code, facts)
            for graphed, (code, _), facts in zip(made if many else (made,), codes, before, strict=True)
        ]
        return tuple(marked) if many else marked[0]

    patches: Sequence[tuple[Any, str, Any, Any]] = (
        (graphs, "capture_begin", begin, capture_begin),
        (graphs, "capture_end", end, capture_end),
        (graphs, "replay", replay, report_and_replay),
        (torch.cuda, "make_graphed_callables", make, make_and_mark),
    )
    for owner, name, _, patched in patches:
        setattr(owner, name, patched)
    try:
        yield
    finally:
        for owner, name, original, _ in patches:
            setattr(owner, name, original)


def _marked_graphed(made: Any, code: CapturedCode, facts: Facts) -> Any:  # noqa: ANN401  # function or module
    """Return what `make_graphed_callables` returned, marked: it copies its inputs, of one shape."""
    run = made.forward if isinstance(made, torch.nn.Module) else made
    captured: dict[_Watch, _Capture] = {}

    @functools.wraps(run)
    def marked(*args: Any, **kwargs: Any) -> object:
        if not _OPEN:
            return run(*args, **kwargs)
        watch = _OPEN[-1]
        if watch not in captured:
            captured[watch] = watch.captured_by(code, facts)
        call = _Call(code, args, kwargs, copies=True, made=captured[watch])
        _THREAD.calls.append(call)
        try:
            return run(*args, **kwargs)
        finally:
            _THREAD.calls.remove(call)

    if not isinstance(made, torch.nn.Module):
        return marked
    made.forward = marked
    return made


class _Watch:
    """The graphs of one watch, and what each was captured with."""

    def __init__(self, watched: WatchedRegions, on_change: OnChange | None, on_call: OnCall | None) -> None:
        self._watched, self._on_change, self._on_call = watched, on_change, on_call
        self._captures: WeakKeyDictionary[object, _Capture | None] = WeakKeyDictionary()
        self._regions: dict[object, WatchedRegion] = {}
        self.ran: dict[object, object] = {}
        """The sizes of the last run of each code without a graph."""

    def state_of_rerun(self, call: _Call) -> Facts | None:
        """Return the state before a run that has the sizes of the last one; None where it has others."""
        is_rerun = self.ran.get(call.code.key) == sizes_of((call.args, call.kwargs))
        return call.code.state() if is_rerun else None

    def captures(self, graph: object) -> _Capture | None:
        """Note a capture; return it, None for one of torch itself."""
        if _THREAD.making:
            self._captures[graph] = None
            return None
        call = _THREAD.calls[-1] if _THREAD.calls else None
        if call is None:
            capture = _Capture(self._unseen("CUDA graph"))
        elif call.captured is None:
            capture = call.captured = self.captured_by(call.code, call.facts(whole=True))
            capture.state = self.state_of_rerun(call)
        else:
            capture = call.captured
        self._captures[graph] = capture
        return capture

    def captured_by(self, code: CapturedCode, before: Facts) -> _Capture:
        """Return a new capture of a callable."""
        return _Capture(self._region(code.name, code.where, code.key), code, before)

    def replays(self, graph: object) -> None:
        """Compare a replay with its capture."""
        call = _THREAD.calls[-1] if _THREAD.calls else None
        if graph not in self._captures:
            self._captures[graph] = _Capture(self._unseen("CUDA graph that was captured before"))
        capture = self._captures[graph]
        if capture is None:  # of make_graphed_callables: of gradients where no call is around it
            capture = None if call is None else call.made
        if capture is None or (call is not None and call.replayed is capture):
            return
        region = capture.region
        region.calls += 1
        code = capture.code
        if call is None or code is None or call.code.key != code.key:
            region.unseen += 1
        else:
            call.replayed = capture
            try:
                self._hold(capture, code, call)
            except Exception as error:  # noqa: BLE001  # a watch must not end the program that it watches
                region.problem = f"replay {region.calls}: {type(error).__name__}: {error}"
                if self._on_change is not None:
                    self._on_change(region, None)
        if self._on_call is not None:
            self._on_call(region)

    def _hold(self, capture: _Capture, code: CapturedCode, call: _Call) -> None:
        region, before, after = capture.region, capture.before or {}, capture.after
        for name, pair in capture.written.items():
            self._note(region, name, "effect", pair)
        whole = region.calls <= _FIRST_REPLAYS or region.calls % _SAMPLE == 0
        fingerprint = call.code.fingerprint(call.args, call.kwargs)
        if not whole and fingerprint in capture.fingerprints:
            return
        now = call.facts(whole=whole)
        absent, differs = "", False
        for name in code.names_in_common(call.code, before, now, whole=whole):
            if absent and name.startswith((f"{absent}.", f"{absent}[")):
                continue  # a member of what was not there either
            is_bound = name in capture.bound
            pair = (after if is_bound else before).get(name, ABSENT), now.get(name, ABSENT)
            is_state = code.is_state(name)
            copies, pads = call.copies, call.pads
            if is_state:
                copies = pads = code.stores(name) and not is_bound
            aspect = difference(*pair, copies=copies, pads=pads)
            # What the capture itself left is no change.
            if aspect and not (
                is_state and name in after and not difference(after[name], pair[1], copies=copies, pads=pads)
            ):
                self._note(region, name, aspect, pair)
                differs, absent = True, name if aspect in {"presence", "type"} else absent
        if not differs and len(capture.fingerprints) < _MOST_FINGERPRINTS:
            capture.fingerprints.add(fingerprint)

    def _note(
        self, region: WatchedRegion, name: str, aspect: str, pair: tuple[InputFacts, InputFacts]
    ) -> None:
        key = (name, aspect)
        if key in region.failed:
            region.failed[key].calls += 1
        elif len(region.failed) >= MOST_LISTED:
            region.unlisted += 1
        else:
            kind, rule = CAPTURED, f"the {aspect} of {name} is that of the capture"
            if aspect == "effect":
                kind, rule = WRITTEN, f"the effect on {name} is made by each run of the code"
            guard = FailedGuard(name, kind, rule, "", GuardClass.DECIDES, *pair, region.calls)
            guard.effect = GuardEffect(reason="a captured graph is not run again")
            region.failed[key] = guard
            if self._on_change is not None:
                self._on_change(region, guard)

    def _unseen(self, name: str) -> WatchedRegion:
        """Return the region of a graph around which there is no marked call."""
        frame = inspect.currentframe()
        inside = (__file__, str(torch.__path__[0]))
        while frame is not None and frame.f_code.co_filename.startswith(inside):
            frame = frame.f_back
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        return self._region(name, where, where)

    def _region(self, name: str, where: str, key: object) -> WatchedRegion:
        if key not in self._regions:
            region = WatchedRegion(name, where, {}, {}, calls=0, captured=True)
            self._regions[key] = region
            self._watched.regions.append(region)
            if self._on_change is not None:
                self._on_change(region, None)
        return self._regions[key]

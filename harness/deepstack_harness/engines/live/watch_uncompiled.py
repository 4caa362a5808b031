"""Models of a vLLM that run uncompiled: which classes, in how many calls, and which setting decided it.

A class with `@support_torch_compile` (vllm/compilation/decorators.py) runs its `forward` as it is written

- in each call where `do_not_compile` is set: the mode is NONE, or this class is left out;
- in a call whose forward context has `skip_compiled`, such as those with inputs of an encoder.

Such calls drop no guards. They are a problem where no class of the model is ever called compiled: what is
watched then is not the model. Read in 0.22.1 .. 0.33.0.
"""

import ast
import functools
import json
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from deepstack_harness.compile import watch_process

_MARK = "_deepstack_harness_watched"
_DECISION = "_deepstack_harness_decision"
"""An attribute of vLLM's configuration, which is copied into its processes: why it has this mode."""


def patch_once(
    owner: object,
    name: str,
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
    before: object = None,
) -> None:
    """Replace a function of a class or module, once; `before` is it where the class only inherits it."""
    call: Any = vars(owner).get(name, before)
    if call is not None and not hasattr(call, _MARK):
        patched = functools.wraps(call)(around(call))
        setattr(patched, _MARK, True)
        setattr(owner, name, patched)


def watch_uncompiled() -> None:
    """Count the calls of this process in which a model of vLLM runs uncompiled, from now on."""
    if find_spec("vllm.compilation.decorators") is None:
        return
    decorators, uncompiled = import_module("vllm.compilation.decorators"), _Uncompiled()
    # A program may define and register models of its own before its engine starts.
    for model in import_module("vllm.compilation.wrapper").TorchCompileWithNoGuardsWrapper.__subclasses__():
        patch_once(model, "__call__", uncompiled.counting)
    patch_once(decorators, "_support_torch_compile", uncompiled.decorating)
    config = import_module("vllm.config").CompilationConfig
    patch_once(config, "__setattr__", _noting_decisions, object.__setattr__)
    with suppress(ModuleNotFoundError):  # moved in this release: a model without such a class is not seen
        worker = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
        patch_once(worker, "execute_model", uncompiled.stepping)


class _Uncompiled:
    """The regions of this process that run uncompiled, by class and reason."""

    def __init__(self) -> None:
        self._regions: dict[tuple[type, str], Any] = {}
        self._was_called = self._is_compiled = self._failed = False
        self._restores = bool(json.loads(os.environ.get(watch_process.RESTORED, "[]")))

    def decorating(self, decorate: Callable[..., Any]) -> Callable[..., Any]:
        """Count the calls of each class that is decorated from now on."""

        def decorated(*args: Any, **kwargs: Any) -> object:
            model = decorate(*args, **kwargs)
            patch_once(model, "__call__", self.counting)
            return model

        return decorated

    def counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Count each call of a decorated class, but those that Dynamo traces."""
        from torch import compiler

        def counted(model: Any, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
            if compiler.is_compiling():
                return call(model, *args, **kwargs)
            self._safely(self._note, model)
            with _as_first_call(model) if self._restores else nullcontext():
                return call(model, *args, **kwargs)

        return counted

    def stepping(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Count each step of a worker whose model has no decorated class."""

        def stepped(worker: Any, scheduled: Any, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
            result = execute(worker, scheduled, *args, **kwargs)
            if not self._was_called and scheduled.total_num_scheduled_tokens:
                self._safely(self._note_undecorated, worker.worker)
            return result

        return stepped

    def _safely(self, note: Callable[[Any], None], subject: object) -> None:
        try:
            note(subject)
        except Exception as error:  # noqa: BLE001  # an engine runs on without a watch
            if not self._failed:
                self._failed = True
                watch_process.report_problem(
                    f"calls that run uncompiled are not seen: {type(error).__name__}: {error}"
                )

    def _note_undecorated(self, worker: Any) -> None:  # noqa: ANN401
        model = worker.get_model()
        if getattr(model, "_compiled_call_impl", None) is None:  # else the runner compiled the whole of it
            self._count(type(model), "vLLM compiles no class of it", is_whole=True)

    def _note(self, model: Any) -> None:  # noqa: ANN401
        self._was_called = True
        if model.do_not_compile:
            reason, is_whole = _reason(model.compilation_config)
            self._count(type(model), reason, is_whole=is_whole)
            return
        context = import_module("vllm.forward_context")
        skips = context.is_forward_context_available() and getattr(
            context.get_forward_context(), "skip_compiled", False
        )
        if skips:
            self._count(type(model), "skip_compiled, which vLLM sets for this call", is_whole=False)
        elif not self._is_compiled:
            self._is_compiled = True
            for region in self._regions.values():
                region.problem = ""
                watch_process.report_region(region)

    def _count(self, model: type, reason: str, *, is_whole: bool) -> None:
        region = self._regions.get((model, reason))
        if region is None:
            from deepstack_harness.compile.watch_facts import WatchedRegion

            code = model.forward.__code__  # type: ignore[attr-defined]
            region = WatchedRegion(
                f"{model.__name__}.forward", f"{code.co_filename}:{code.co_firstlineno}", {}, {}, calls=0,
                uncompiled=reason,
            )  # fmt: skip
            if is_whole or not self._is_compiled:
                region.problem = f"the engine's model is not compiled: {reason}"
            self._regions[model, reason] = region
            watch_process.report_region(region)
        watch_process.count_call(region)


@contextmanager
def _as_first_call(model: Any) -> Iterator[None]:  # noqa: ANN401
    """Let a graph that is compiled in this call be one for all sizes, as that of the first call is.

    vLLM marks sizes as dynamic in the first call only: it never compiles again. Without the marks a graph
    that a guard causes is one for the sizes of this call, and other calls with the same inputs use it.
    """
    from deepstack_harness.compile.torch_compat.dynamo import size_oblivious

    model.compiled = False
    with size_oblivious():  # or a call with one token makes a graph for one token
        yield


def _reason(config: Any) -> tuple[str, bool]:  # noqa: ANN401
    """Return why a class with this configuration is not compiled, and whether that holds for all classes."""
    mode = config.mode
    if mode.name == "NONE":
        return f"mode {mode.name}, {vars(config).get(_DECISION, 'as it was configured')}", True
    return f"vLLM leaves this class out (mode {mode.name})", False


def _noting_decisions(assign: Callable[..., None]) -> Callable[..., None]:
    """Note who sets a mode, and under which condition: what does so last has decided."""

    def noting(config: Any, name: str, value: object) -> None:  # noqa: ANN401
        assign(config, name, value)
        if name == "mode":
            vars(config)[_DECISION] = _condition(sys._getframe(1))  # noqa: SLF001  # inspect.stack reads all files

    return noting


def _condition(frame: FrameType) -> str:
    """Return the innermost `if` around the line that a frame runs, as text with its place."""
    path, line = frame.f_code.co_filename, frame.f_lineno
    place = f"{'/'.join(Path(path).parts[-3:])}:{line}"
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:  # not a file
        return f"set at {place}"
    for node in reversed([node for node in ast.walk(tree) if isinstance(node, ast.If)]):
        for negated, block in ((False, node.body), (True, node.orelse)):
            if block and block[0].lineno <= line <= (block[-1].end_lineno or 0):
                test = ast.unparse(node.test)
                return f"because of `{f'not ({test})' if negated else test}` ({place})"
    return f"set at {place}"

"""vLLM's classes as tpu-inference patches them, and the steps in which it calls them.

JAX is not needed: `STAND_INS` has the names of JAX, torchax and vLLM that the patches use.
JAX's arrays are values, so that a conversion is a copy here.  `jax.jit` of a step is a recording for each
shape of its arguments: what is no argument has the value that it had when the step was traced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.compile.graphs import Recordings
from deepstack_harness.engines.bind import (
    ArgumentBuffer,
    ArgumentEngine,
    DefinedClass,
    Rehearsal,
    ReplayedArgument,
)
from deepstack_harness.engines.bound_class import ForwardModels, MethodsBuffer, misses_package, rehearsing
from deepstack_harness.engines.calls import model_of
from deepstack_harness.engines.class_facts import STORAGE
from deepstack_harness.engines.discover import FoundClass
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.load import loaded_of
from deepstack_harness.engines.loaded_class import derive_class
from deepstack_harness.engines.model_class import BY_FORWARD, KnownModel
from deepstack_harness.engines.stand_ins import FORWARD_STAND_INS, TOKEN_IDS, ForwardHost, packed
from deepstack_harness.errors import Reason, SourceError, UsageError, reason_of
from deepstack_harness.sources.source import Source


class Jax:
    """JAX: a jitted function is called as it is."""

    jit = staticmethod(lambda function: function)


class JaxNumpy:
    """Functions of jax.numpy by which levels are packed."""

    concatenate = staticmethod(lambda arrays, axis=0: torch.cat(tuple(arrays), dim=axis))
    stack = staticmethod(lambda arrays, axis=0: torch.stack(tuple(arrays), dim=axis))
    transpose = staticmethod(lambda array, axes: array.permute(axes))


class _Module:
    """A module of vLLM that a patch sets names in.

    None of them is about the payload: they merge embeddings inside of JAX, and turn Triton off.
    """


def _as_value(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor: JAX arrays are values, and a view of one is a new object of torchax."""
    return tensor.clone()


def _merge(inputs_embeds: Tensor, multimodal_embeddings: list[Tensor], is_multimodal: Tensor) -> Tensor:
    """Put rows (N, w) into the marked rows of (n, w) (vllm/model_executor/models/utils.py)."""
    merged = inputs_embeds.clone()
    merged[is_multimodal] = torch.cat(tuple(multimodal_embeddings))
    return merged


STAND_INS: Mapping[str, object] = {
    **FORWARD_STAND_INS,
    "MMEncoderAttention": None,  # only towers use it
    "NestedTensors": None,  # an annotation
    "_apply_pad_sequence_patch": lambda: None,
    "_convert_to_torchax_tensor": _as_value,
    "_merge_multimodal_embeddings": _merge,
    "jax": Jax,
    "jax.numpy": JaxNumpy,
    "jax_view": _as_value,
    "numpy": None,  # only towers use it
    "torch_view": _as_value,
    "vllm.model_executor.models.qwen3_vl": _Module(),
    "vllm.model_executor.models.utils": _Module(),
}
KINDS = (Jax, JaxNumpy)
"""Where an attribute of one of these is missing, the harness is at fault, and not the plugin."""


Patch = Callable[[ForwardHost], None]
"""Sets attributes of a model."""


_NO_ARGUMENT = (
    "the payload is no argument of the jitted step, which is given inputs_embeds of the hidden size"
)


class PatchedBuffer(MethodsBuffer):
    """The get and set that the plugin puts on a model; clear is a step whose embeddings have no payload.

    Nothing else ends a payload: vLLM's own clear, which the forward of that step calls, erases storage that
    the plugin's set never writes.
    """

    def __init__(self, host: ForwardHost, known: KnownModel) -> None:
        """Take `host` after it was patched."""
        verbs = {verb: f"_{verb}_{STORAGE}" for verb in ("get", "set", "clear")}
        patched = replace(known, verbs=verbs, storage=frozenset({STORAGE}))
        super().__init__(host, patched, host.language_model.levels, vision=True)
        self._model = host

    @override
    def clear(self, tokens: int, /) -> None:
        """Run a step of `tokens` embeddings without a payload; see `Buffer.clear`."""
        if tokens <= 0:
            super().clear(tokens)
            return
        embeds = self._model.language_model.embed_input_ids(torch.empty(tokens))
        self._model.forward(None, _positions(embeds), None, embeds)


class JittedSteps(ArgumentEngine):
    """The steps of one model; one with a payload of N = 0 rows has only audio."""

    def __init__(self, host: ForwardHost, levels: int) -> None:
        """Take `host` after it was patched."""
        self._host, self._levels = host, levels
        self._recorder = host.language_model
        self._graphs = Recordings[tuple[int, ...]]()
        self._arguments: dict[tuple[int, ...], Tensor] = {}
        self.written: set[str] = set()
        self.captured: set[str] = set()

    @override
    def check(self, payload: Tensor) -> None:
        """Do nothing: a payload (levels, N, hidden) is written within its own step."""

    @override
    def eager(self, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Run a step of P tokens that is not compiled; return what was added, (P, hidden) per level."""
        embeds = self.embedded(tokens, payload)
        return self._text(tokens) if embeds is None else self._forward(embeds)

    @override
    def capture(self, tokens: int) -> None:
        """Compile the step for P embeddings of the hidden size, as the plugin does before it serves.

        That is `_precompile_backbone_with_inputs_embeds` (runner/compilation_manager.py in 0.32.0).
        """
        self._jitted(self._recorder.embed_input_ids(torch.empty(tokens)))

    @override
    def replay(self, size: int, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Run a compiled step of P tokens, padded to `size`; return what was added, (P, hidden) per level."""
        embeds = self.embedded(size, payload)
        rows = self._text(size) if embeds is None else self._jitted(embeds)
        return tuple(level[:tokens] for level in rows)

    def embedded(self, tokens: int, payload: Tensor | None) -> Tensor | None:
        """Embed a step of P tokens, the first N of them visual -> (P, w); None for a step of text."""
        if payload is None:
            return None
        visual = payload.size(1)
        part = packed(payload) if visual else payload.new_zeros(1, self._recorder.hidden)
        marked = torch.arange(tokens, device=payload.device) < part.size(0)
        token = TOKEN_IDS["image_token_id" if visual else "audio_token_id"]
        ids = torch.where(marked, token, 0)
        return self._host.embed_input_ids(ids, multimodal_embeddings=[part], is_multimodal=marked)

    def _text(self, tokens: int) -> tuple[Tensor, ...]:
        ids = torch.zeros(tokens, dtype=torch.int64, device=self._recorder.device)
        self._host.forward(ids, _positions(ids), None, None)
        return self._taken(tokens)

    def _forward(self, embeds: Tensor) -> tuple[Tensor, ...]:
        self._host.forward(None, _positions(embeds), None, embeds)
        return self._taken(embeds.size(0))

    def _jitted(self, embeds: Tensor) -> tuple[Tensor, ...]:
        shape = tuple(embeds.shape)
        if shape not in self._graphs:
            argument = self._arguments[shape] = embeds.clone()
            self._graphs.record(shape, lambda: self._forward(argument))
        self._arguments[shape].copy_(embeds)
        return tuple(level.clone() for level in self._graphs[shape].replay())

    def _taken(self, tokens: int) -> tuple[Tensor, ...]:
        """Return the levels that the language model was given; zeros (P, hidden) each for None."""
        shown = self._recorder.take()
        none = self._recorder.embed_input_ids(torch.empty(tokens))
        return tuple(none.clone() for _ in range(self._levels)) if shown is None else shown


@dataclass(frozen=True)
class PatchedClass(ForwardModels):
    """A class of which the get and set of the plugin are called."""

    patch: Patch = lambda _: None

    @override
    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> PatchedBuffer:
        """Make a patched model with placeholders (capacity, hidden) for each level."""
        host = self.model(capacity, hidden, levels, dtype=dtype, device=device)
        self.patch(host)
        return PatchedBuffer(host, self.known)

    def rehearse(self) -> None:
        """Call each method once; raise `UsageError` for a class that misses something."""
        with rehearsing(self.refused, _misses):
            buffer = self(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
            if not buffer.capacity:
                raise SourceError(
                    Reason(f"{self.model_class} keeps no list of rows per level", self.filename)
                )
            buffer.set(torch.ones(2, 3, 5))
            buffer.get(3)
            buffer.clear(3)


@dataclass(frozen=True)
class JittedClass(ForwardModels):
    """A class called in whole steps, compiled ones where it `replays`."""

    patch: Patch = lambda _: None
    audio: bool = False
    replays: bool = False

    @override
    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ArgumentBuffer:
        """Make a patched model with placeholders (capacity, hidden) for each level."""
        steps = self.steps(capacity, hidden, levels, dtype=dtype, device=device)
        kind = ReplayedArgument if self.replays else ArgumentBuffer
        return kind(steps, takes_empty=self.audio)

    def under_graphs(self) -> "JittedClass":
        """Return the class with compiled steps."""
        return replace(self, replays=True)

    def steps(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> JittedSteps:
        """Make a patched model and return its steps; raise what calling raises."""
        host = self.model(capacity, hidden, levels, dtype=dtype, device=device)
        self.patch(host)
        return JittedSteps(host, levels)

    def rehearse(self) -> Rehearsal:
        """Run a text step and a visual one, and compile; raise `UsageError` for what misses something."""
        payload = torch.ones(2, 3, 5)
        lost = False
        with rehearsing(self.refused, _misses):
            steps = self.steps(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
            steps.eager(4, None)
            steps.eager(4, payload)
            compiled = self.steps(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
            compiled.capture(4)
            embeds = compiled.embedded(4, payload)
            lost = embeds is not None and embeds.size(1) == payload.size(2)
            compiled.replay(4, 4, payload)
        return Rehearsal(replays=True, lost=_NO_ARGUMENT if lost else "")


class TpuCalls:
    """Definition of vLLM's classes with the plugin's patches, in both ways; see `EngineCalls`."""

    def define(self, source: Source, found: FoundClass, engine: KnownEngine) -> DefinedClass:
        """Define a class of the base, patched, and rehearse its methods and its compiled steps."""
        assert found.patch is not None
        patch, loaded = found.patch.declared, loaded_of(source)
        try:
            known, host = derive_class(loaded, model_of(found, engine), BY_FORWARD, ForwardHost)
            function = loaded.supplied(patch.member, patch.function, STAND_INS)

            def apply(host: ForwardHost) -> None:
                function(host)
                loaded.supply(STAND_INS)  # it puts functions over JAX arrays into vLLM's modules

            methods = PatchedClass(known, host, apply)
            methods.rehearse()
            steps = JittedClass(known, host, apply, audio=patch.audio)
            graphs = steps.rehearse()
        except UsageError as error:
            return DefinedClass(source, found, refusals=(reason_of(error),))
        return DefinedClass(source, found, methods, steps, graphs=graphs)


CALLS = TpuCalls()


def _misses(error: Exception) -> bool:
    return misses_package(error) or getattr(error, "obj", None) in KINDS


def _positions(rows: Tensor) -> Tensor:
    """Return positions (3, P) int64 of P ids (P,) or embeddings (P, w)."""
    return torch.zeros(3, rows.size(0), dtype=torch.int64, device=rows.device)

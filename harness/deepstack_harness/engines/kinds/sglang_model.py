"""Calls of SGLang's parts: a step is written, run and replayed by the engine's own functions."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.engines.argument_parts import ArgumentParts, Hosts
from deepstack_harness.engines.bind import ArgumentEngine, EffectReader, split_levels
from deepstack_harness.engines.calls import ArgumentCalls
from deepstack_harness.engines.kinds.sglang_stand_ins import (
    KINDS,
    REQUEST_FIELDS,
    RUNNER_KINDS,
    RUNNER_STAND_INS,
    TEXT,
    VISUAL,
    LogitsOutput,
    Modality,
    RecordedGraphs,
    Runner,
    ShapeKey,
    TextModel,
    Wrapper,
    does_nothing,
)
from deepstack_harness.engines.stand_ins import FirstRank, Settings, packed
from deepstack_harness.errors import Reason, StepUnavailable

_LEAST_ROWS = 64  # rows of a slot: more tokens than the largest step of any order has


class SglangEngine(ArgumentEngine):
    """One text model of SGLang with its writer and its prefill runner."""

    def __init__(
        self,
        parts: ArgumentParts,
        capacity: int,
        hidden: int,
        levels: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Make all parts; raise `UsageError` for what needs the whole package."""
        self._parts, self._hidden, self._levels = parts, hidden, levels
        self._like = torch.zeros(0, hidden, dtype=dtype, device=device)
        zeros = self._like.new_zeros(2, hidden)
        self._embedding = nn.Embedding.from_pretrained(zeros)  # type: ignore[no-untyped-call]
        self._reader = EffectReader()
        vision = Settings("config.vision_config", deepstack_visual_indexes=list(range(levels)))
        config = Settings("config", hidden_size=hidden, vision_config=vision)
        assert parts.wrapper is not None  # `kinds.sglang` has both
        assert parts.writer is not None
        self._text = self._text_model(config)
        separates = {"deepstack_visual_indexes": list(range(levels)), "num_deepstack_embeddings": levels}
        self._wrapper = _made(parts.wrapper, {"config": config, **separates})
        self._write = parts.writer
        rows = self._zeros(max(capacity, _LEAST_ROWS))
        # Storage (rows, width) of the inputs of captured graphs.
        self._slots = {"input_embeds": rows}
        if parts.found.has_slot:
            self._slots[parts.found.files.argument] = rows.repeat(1, levels)
        self._graphs = RecordedGraphs()
        self._streams: dict[int, tuple[Tensor, ...]] = {}
        self.written: set[str] = set()
        """Names of the arguments of the last eager step that are tensors."""
        self.captured: set[str] = set()
        """Names of the arguments that are tensors, of the text model in a capture or a replayed step."""

    @override
    def check(self, payload: Tensor) -> None:
        """Write a payload (levels, N, hidden); see `ArgumentEngine.check`."""
        self._arguments(payload.size(1), payload)

    @override
    def eager(self, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Run a step with a payload (levels, N, hidden); see `ArgumentEngine.eager`."""
        self._reader.begin()
        arguments = self._arguments(tokens, payload)
        self._run_text(tokens, arguments)
        return self._split_levels(self._reader.take(), tokens)

    @override
    def capture(self, tokens: int) -> None:
        """See `ArgumentEngine.capture`; a runner without a method that captures has nothing to capture."""
        if "get" not in self._parts.runner_verbs:
            return
        runner, batch = self._runner(tokens, tokens, None), self._batch(tokens, static=True)
        self._reader.begin()
        capture = getattr(runner, self._parts.runner_verbs["get"])
        with _watched(self._text, self.captured):
            self._graphs.recorded.record(tokens, lambda: capture(batch, tokens))
        self._streams[tokens] = self._reader.take()

    @override
    def replay(self, size: int, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Replay a step with a payload (levels, N, hidden); see `ArgumentEngine.replay`."""
        runner = self._runner(size, tokens, payload)
        named = {
            "forward_batch": self._batch(tokens), "static_forward_batch": self._batch(size, static=True),
            "static_num_tokens": size, "raw_num_tokens": tokens, "shape_key": ShapeKey(size),
        }  # fmt: skip
        execute = getattr(runner, self._parts.runner_verbs["set"])
        wanted = inspect.signature(execute).parameters
        self._reader.begin()
        with _watched(self._text, self.captured):
            execute(**{name: value for name, value in named.items() if name in wanted})
        # A runner may run the text model itself, for all steps or for some.
        inputs = self._reader.take() or self._streams.get(size)
        if inputs is None:  # neither a graph nor the text model ran
            return (self._zeros(tokens),) * self._levels
        return tuple(level[:tokens] for level in self._split_levels(inputs, size))

    def _text_model(self, config: Settings) -> Any:  # noqa: ANN401  # a class of the engine
        """Make the text model with a layer more than there are levels, which must get nothing."""
        note = self._reader.layer

        def layer(
            _: object,
            hidden: Tensor,
            __: object,
            *residual: Tensor | None,
            post_residual_addition: Tensor | None = None,
            **___: object,
        ) -> object:
            out = note(hidden, *residual, post_residual_addition)
            return (out, torch.zeros_like(out)) if residual else out

        def norm(
            hidden: Tensor, *residual: Tensor | None, post_residual_addition: Tensor | None = None
        ) -> object:
            out = note(hidden, *residual, post_residual_addition)
            return (out, out) if residual else out

        layers = [layer] * (self._levels + 1)
        attributes = {
            "config": config, "embed_tokens": self._embedding, "end_layer": len(layers), "layers": layers,
            "norm": norm,
        }  # fmt: skip
        return _made(self._parts.text, attributes, config=config)

    def _runner(self, size: int, tokens: int, payload: Tensor | None) -> Any:  # noqa: ANN401  # a class of the engine
        """Make the runner around the text model, for a step of P tokens padded to `size`."""
        if isinstance(self._parts.runner, Reason):
            raise StepUnavailable(str(self._parts.runner))
        # As the runner itself looks it up, for models that are given embeddings by position.
        names = list(inspect.signature(self._text.forward).parameters)
        static, recorded = self._batch(size, static=True), self._graphs.recorded
        around = Settings(
            "model_runner", attn_backend=Settings("attn_backend", init_forward_metadata=does_nothing),
            model=self._whole(payload), pp_group=FirstRank(),
            spec_algorithm=Settings("spec_algorithm", is_speculative=bool), tp_group=None,
        )  # fmt: skip
        # As sglang/srt/model_executor/cuda_graph_buffer_registry.py has them.
        slots = {
            name: Settings("slot", buffer=rows, slice_for=lambda _, tokens, rows=rows: rows[:tokens])
            for name, rows in self._slots.items()
        }
        registry = Settings("buffer_registry", has_slot=slots.__contains__, get_slot=slots.__getitem__)
        attributes = {
            "backend": self._graphs, "buffer_registry": registry, "layer_model": self._text,
            "model_runner": around,
            "_static_num_tokens": size, "raw_num_tokens": tokens,
            "_input_embeds_arg_idx": names.index("input_embeds") if "input_embeds" in names else None,
            # The older runners pad a step to the captured size themselves, and run the whole model on it.
            "_is_full_backend": self._parts.runner_verbs["set"] == "_execute_body_capture",
            "load_batch": lambda *_, **__: static, "replay_prepare": lambda *_, **__: static,
            "capture_num_tokens": sorted(recorded) or [size],
            "graphs": recorded, "output_buffers": {key: made.answer for key, made in recorded.items()},
            **{f"static_{name}": torch.zeros(1, dtype=torch.int64) for name in REQUEST_FIELDS},
        }  # fmt: skip
        return _made(self._parts.runner, attributes)

    def _whole(self, payload: Tensor | None) -> SimpleNamespace:
        """Return the model around the text model; it writes a step's payload (levels, N, hidden) first."""

        def forward(input_ids: Tensor, *_: object, **__: object) -> LogitsOutput:
            tokens = input_ids.size(0)
            self._run_text(tokens, self._arguments(tokens, payload))
            return LogitsOutput(self._zeros(1))

        return SimpleNamespace(forward=forward, get_input_embeddings=None)

    def _run_text(self, tokens: int, arguments: Mapping[str, object]) -> object:
        """Run a step's text model, which a runner may have replaced by a replay."""
        batch = self._batch(tokens)
        return self._text(
            input_ids=None, positions=batch.positions, forward_batch=batch, input_embeds=self._zeros(tokens),
            **arguments,
        )  # fmt: skip

    def _arguments(self, tokens: int, payload: Tensor | None) -> Mapping[str, object]:
        """Write the arguments of a step of P tokens; without a payload (levels, N, hidden) there are none."""
        if payload is None:
            return {}
        feature = packed(payload)
        item = Settings(
            "item", feature=feature, offsets=[(0, feature.size(0) - 1)], pad_value=VISUAL,
            is_modality=lambda modality: modality is Modality.IMAGE, padding_values=lambda: [VISUAL],
        )  # fmt: skip
        ids = torch.full((tokens,), TEXT, device=self._like.device)
        ids[: payload.size(1)] = VISUAL
        _, arguments = self._write(
            mm_inputs_list=[SimpleNamespace(mm_items=[item])], extend_prefix_lens=[0],
            extend_seq_lens=[tokens], input_ids=ids, multimodal_model=self._wrapper,
            input_embedding=self._embedding,
            use_deepstack={Modality.IMAGE: True},
        )  # fmt: skip
        self.written = {name for name, value in arguments.items() if isinstance(value, Tensor)}
        return cast("Mapping[str, object]", arguments)

    def _split_levels(self, inputs: tuple[Tensor, ...], tokens: int) -> tuple[Tensor, ...]:
        # Up to 0.5.22 the norm is left out where there are no rows.
        return (self._zeros(0),) * self._levels if tokens == 0 else split_levels(inputs, self._levels)

    def _zeros(self, tokens: int) -> Tensor:
        return self._like.new_zeros(tokens, self._hidden)

    def _batch(self, tokens: int, *, static: bool = False) -> Any:  # noqa: ANN401  # `Settings`
        """Return a batch of one request of P tokens; a static one has the slots of captured graphs."""
        slots = {name: rows[:tokens] for name, rows in self._slots.items()} if static else {}
        places = torch.zeros(tokens, dtype=torch.int64, device=self._like.device)
        return Settings(
            "forward_batch", **{"input_ids": places, "positions": places, "input_embeds": None, **slots},
            attn_tp_sequence_sharded=False, batch_size=1, dp_padding_mode=Settings("mode", is_max_len=bool),
            global_dp_buffer_len=None, global_num_tokens_cpu=None, mm_input_embeds=None,
            **dict.fromkeys(REQUEST_FIELDS, torch.ones(1, dtype=torch.int64)),
        )  # fmt: skip


def _made(kind: Any, attributes: Mapping[str, object], **arguments: object) -> Any:  # noqa: ANN401
    """Make an object of a class that has `attributes` before its `__init__` runs."""
    instance = kind.__new__(kind)
    nn.Module.__init__(instance)
    instance.__dict__.update(attributes)
    wanted = inspect.signature(kind).parameters
    known = {**arguments, "quant_config": None, "prefix": ""}
    if arguments:  # all that the others have is given
        kind.__init__(instance, **{name: value for name, value in known.items() if name in wanted})
    return instance


@contextmanager
def _watched(text: Any, names: set[str]) -> Iterator[None]:  # noqa: ANN401  # a class of the engine
    """Note the names of the tensors that the text model is called with."""
    forward = text.forward

    @wraps(forward)  # the engine reads its signature
    def noted(*args: object, **named: object) -> object:
        arguments = inspect.signature(forward).bind(*args, **named).arguments
        names.update(name for name, value in arguments.items() if isinstance(value, Tensor))
        return forward(*args, **named)

    text.forward = noted
    try:
        yield
    finally:
        text.forward = forward


CALLS = ArgumentCalls(
    SglangEngine, (*KINDS, *RUNNER_KINDS), Hosts(TextModel, Wrapper, Runner, RUNNER_STAND_INS)
)

"""The live ledger: what each step of a running engine read from its payload buffer, and what it should have.

A model class is watched at its own methods (`embed_input_ids`, get, set, clear, `forward`).  The expected
rows are computed from the visual embeddings that the step was given, so that no code of the class is trusted.
Where a step is emulated as the replay of a CUDA graph, the class's Python runs with the state that it had at
capture, and that state is taken back afterwards: a replay repeats kernels, and Python has its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

_SCALARS = (bool, int, float, type(None))

_ATTRIBUTE = "deepstack_input_embeds"
GET, SET, CLEAR = (f"_{verb}_deepstack_input_embeds" for verb in ("get", "set", "clear"))


class LiveLedger:
    """The steps of one schedule, as facts; `calls` are all calls on the buffer, in order."""

    def __init__(self, levels_first: bool) -> None:
        """Take whether a row of visual embeddings has only levels, or main features before them."""
        self._main = not levels_first
        self.zero_payload = False
        """True where the payload is replaced by zeros as it comes from the encoder."""
        self.pending: dict[str, Any] = {}
        """Facts of the runner about the next step: its requests, and what the dispatcher decides."""
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        self.steps: list[dict[str, Any]] = []
        self.calls: list[list[Any]] = []
        self._names = RowNames()
        self._expected: torch.Tensor | None = None
        self._tokens: int | None = None

    def begin(
        self, tokens: int, visual: Sequence[torch.Tensor], mask: torch.Tensor | None, hidden: int
    ) -> Any:  # noqa: ANN401
        """Begin a step of `tokens` rows; return the visual embeddings to go on with, each (rows, width)."""
        self._tokens, self._expected = tokens, None
        if mask is None or not len(visual) or not bool(mask.any()):
            return visual
        skipped = hidden if self._main else 0
        if self.zero_payload:
            visual = [
                torch.cat([rows[:, :skipped], torch.zeros_like(rows[:, skipped:])], 1) for rows in visual
            ]
        packed = torch.cat([rows.detach().float() for rows in visual])[:, skipped:]
        levels = torch.split(packed, hidden, -1)
        self._expected = torch.zeros(len(levels), tokens, hidden)
        for level, part in zip(self._expected, levels, strict=True):
            level[mask.cpu()] = part.cpu()
        return visual

    def read(self, rows: int, levels: Sequence[torch.Tensor] | None) -> None:
        """Note what one step reads: levels of (rows, hidden), or None."""
        spans: list[list[int]] = []
        if self._expected is not None:
            for row in (self._expected != 0).any(2).any(0).nonzero().flatten().tolist():
                if spans and spans[-1][1] == row:
                    spans[-1][1] = row + 1
                else:
                    spans.append([row, row + 1])
        # Named at a read: what another embedding replaced before one is no payload of a step.
        content = self._names.learn(self._expected) if self._expected is not None and spans else None
        self.steps.append({
            **self.pending, "asked": rows, "tokens": self._tokens, "spans": spans, "content": content,
            "answer": self._names.answer(levels),
        })  # fmt: skip
        self._tokens, self._expected = None, None


class RowNames:
    """Rows by their content, named as in `contract.observation.RowRange`: the payload they are of."""

    def __init__(self) -> None:
        """Know no payload."""
        self._known: dict[bytes, tuple[int, int, int]] = {}
        self._payloads = 0

    def learn(self, payload: torch.Tensor) -> list[list[list[int | None]]]:
        """Take the next payload (levels, tokens, hidden); return the names of its rows."""
        self._payloads += 1
        for level, rows in enumerate(payload):
            for number, row in enumerate(_row_bytes(rows)):
                self._known.setdefault(row, (self._payloads, level, number))
        return [self._ranges(level) for level in payload]

    def answer(self, levels: Sequence[torch.Tensor] | None) -> dict[str, Any]:
        """Return levels of (rows, hidden), or None, as the facts of a get."""
        if levels is None:
            return {"structure": "none"}
        return {
            "structure": "tensors", "rows": [self._ranges(level) for level in levels],
            "hidden": [level.shape[1] for level in levels],
            "dtypes": [str(level.dtype).removeprefix("torch.") for level in levels],
            "devices": [str(level.device) for level in levels],
        }  # fmt: skip

    def _ranges(self, level: torch.Tensor) -> list[list[int | None]]:
        """Return rows (rows, hidden) as ranges of one origin, where rows of a payload count up."""
        ranges: list[list[Any]] = []
        for row in _row_bytes(level):
            payload, of_level, number = self._known.get(row, (None, 0, 0)) if row.strip(b"\0") else (0, 0, 0)
            last = ranges[-1] if ranges else [-1, 0, 0, 0]
            if [payload, of_level, number] == [last[0], last[1], last[2] + (last[3] if last[0] else 0)]:
                last[3] += 1
            else:
                ranges.append([payload, of_level, number, 1])
        return ranges


def _row_bytes(level: torch.Tensor) -> list[bytes]:
    """Return each row of (rows, hidden) as bytes in float32, where zeros are equal, and all nan are."""
    plain = level.detach().float().cpu() + 0.0  # -0.0 + 0.0 is 0.0
    return [row.numpy().tobytes() for row in plain.masked_fill(plain.isnan(), torch.nan)]


class ClassWatch:
    """A model class whose calls are noted in a ledger.

    `replayed` returns whether the step that runs is emulated as a replay.
    """

    def __init__(self, model_class: type, ledger: LiveLedger, driven: str, *, zeros: bool = False) -> None:
        """Wrap get, set and clear, or forward, or forward with an attribute (`TinyModel.driven`).

        With `zeros`, a step whose payload attribute is None gets tensors of zeros in its place.
        """
        self._class, self._ledger, self._zeros = model_class, ledger, zeros
        self._captured: dict[str, Any] | None = None
        self.replayed: Callable[[], bool] = bool  # bool() is False
        self._wrap("embed_input_ids", self._embed)
        if driven == "methods":
            for name, wrapper in ((SET, self._set), (GET, self._get), (CLEAR, self._clear)):
                self._wrap(name, wrapper)
        else:
            self._wrap("forward", self._forward if driven == "forward" else self._forward_attribute)

    def capture(self, model: Any) -> None:  # noqa: ANN401
        """Note the state of the class's Python as it is when graphs are captured: nothing is set."""
        self._captured = _state_of(model)

    def clean(self, model: Any) -> None:  # noqa: ANN401
        """Give a model the state it had at capture, with a buffer of zeros."""
        if self._captured is not None:
            _restore(model, self._captured)
        for buffer in buffers_of(model):
            buffer.zero_()

    def _wrap(self, name: str, wrapper: Callable[..., Any]) -> None:
        inner = getattr(self._class, name)

        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            return wrapper(inner, model, *args, **kwargs)

        setattr(self._class, name, watched)

    def _embed(self, inner: Any, model: Any, ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        visual = args[0] if args else kwargs.get("multimodal_embeddings")
        mask = args[1] if len(args) > 1 else kwargs.get("is_multimodal")
        embeddings = self._ledger.begin(
            ids.shape[0], [] if visual is None else visual, mask, hidden_of(model)
        )
        self._ledger.calls.append(["embed", ids.shape[0]])
        if args:
            args = (embeddings if visual is not None else None, *args[1:])
        elif visual is not None:
            kwargs["multimodal_embeddings"] = embeddings
        return inner(model, ids, *args, **kwargs)

    def _set(self, inner: Any, model: Any, payload: torch.Tensor) -> Any:  # noqa: ANN401
        self._ledger.calls.append(["set", payload.shape[1]])
        return inner(model, payload)

    def _get(self, inner: Any, model: Any, rows: int) -> Any:  # noqa: ANN401
        with self._as_captured(model) as how:
            answer = inner(model, rows)
        self._ledger.calls.append([f"{how}get", rows])
        levels = None if answer is None else _levels(answer)
        self._ledger.read(rows, levels)
        return answer

    def _clear(self, inner: Any, model: Any, rows: int) -> Any:  # noqa: ANN401
        with self._as_captured(model) as how:
            answer = inner(model, rows)
        self._ledger.calls.append([f"{how}clear", rows])
        return answer

    def _forward(self, inner: Any, model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        embeds = kwargs.get("inputs_embeds", args[3] if len(args) > 3 else None)
        if embeds is None:
            return inner(model, *args, **kwargs)
        rows = embeds.size(0)
        self._ledger.read(rows, [buffer[:rows] for buffer in buffers_of(model)])
        with self._as_captured(model) as how:
            answer = inner(model, *args, **kwargs)
        self._ledger.calls.append([f"{how}forward", rows])
        return answer

    def _forward_attribute(self, inner: Any, model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Note the payload that `forward` finds in its attribute: None, or the levels by name."""
        ids: Any = kwargs.get("input_ids", args[0] if args else None)
        embeds = kwargs.get("inputs_embeds", args[3] if len(args) > 3 else None)
        rows = (ids if embeds is None else embeds).size(0)
        with self._as_captured(model) as how:
            payload = getattr(model, _ATTRIBUTE)
            if payload is None and self._zeros and embeds is not None:
                container = import_module("vllm.sequence").IntermediateTensors
                layers = model.language_model.model.deepstack_inject_layer_indices
                payload = container({f"{_ATTRIBUTE}_{layer}": torch.zeros_like(embeds) for layer in layers})
                setattr(model, _ATTRIBUTE, payload)
            self._ledger.read(rows, None if payload is None else _levels(payload))
            answer = inner(model, *args, **kwargs)
        self._ledger.calls.append([f"{how}forward", rows])
        return answer

    @contextmanager
    def _as_captured(self, model: Any) -> Iterator[str]:  # noqa: ANN401
        """Run with the Python state of capture where the step is a replay; yield a prefix for the record."""
        if self._captured is None or not self.replayed():
            yield ""
            return
        now = _state_of(model)
        _restore(model, self._captured)
        try:
            yield "replayed "
        finally:
            _restore(model, now)


def hidden_of(model: Any) -> int:  # noqa: ANN401
    """Return the width of a payload row."""
    config = model.config
    nested = getattr(config, "text_config", None) or getattr(config, "language_config", None) or config
    return int(nested.hidden_size)


def buffers_of(model: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """Return the levels of the buffer, each (capacity, hidden); none where each step makes its payload."""
    for name in (_ATTRIBUTE, "_ds_buffers"):
        buffers = getattr(model, name, None)
        if isinstance(buffers, Sequence | torch.nn.Module):
            return list(buffers)  # type: ignore[arg-type]  # a list, or a module list, of tensors
    if hasattr(model, _ATTRIBUTE):
        return []
    raise AttributeError(f"{type(model).__name__} has no buffer of a name that is known")


def count_levels(model: Any) -> int:  # noqa: ANN401
    """Return the number of levels of a payload."""
    return len(buffers_of(model)) or len(model.language_model.model.deepstack_inject_layer_indices)


def _levels(answer: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """Return the levels of what get returned, each (rows, hidden), in order."""
    tensors: Mapping[str, torch.Tensor] = answer.tensors
    return [tensors[f"deepstack_input_embeds_{level}"] for level in range(len(tensors))]


def _state_of(model: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a copy of the attributes that Python code changes: numbers, flags, and lists of tensors."""
    state = {}
    for name, value in vars(model).items():
        tensors = isinstance(value, list) and value and all(isinstance(item, torch.Tensor) for item in value)
        if name == _ATTRIBUTE or (not name.startswith("__") and (tensors or isinstance(value, _SCALARS))):
            state[name] = _copied(value)
    return state


def _restore(model: Any, state: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Give a model this state; an attribute that it has since then is taken away.

    Qwen3VLMoeForConditionalGeneration of vLLM 0.32.0 has no counter before its first set.
    """
    for name in _state_of(model).keys() - state.keys():
        del vars(model)[name]
    vars(model).update({name: _copied(value) for name, value in state.items()})


def _copied(value: Any) -> Any:  # noqa: ANN401
    """Copy a list: the class may put other tensors into it."""
    return list(value) if isinstance(value, list) else value

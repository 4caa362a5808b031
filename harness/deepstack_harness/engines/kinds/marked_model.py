"""Calls of the text models of transformers and LMDeploy: one step with a mask and a list of levels."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.engines.argument_parts import ArgumentParts, Hosts
from deepstack_harness.engines.bind import ArgumentEngine, EffectReader, split_levels
from deepstack_harness.engines.calls import ArgumentCalls
from deepstack_harness.engines.stand_ins import Settings


class MarkedModel(nn.Module):
    """The base class of text models whose layers and norm record what they are given."""

    config: object
    embed_tokens = None
    embedding_multiplier = 2.0  # Granite's; the payload must not depend on it
    gradient_checkpointing = False
    has_sliding_layers = False
    layers: Any
    norm: Any
    rotary_emb: Any


class _NoCache:
    """A cache without tokens (transformers/cache_utils.py)."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take nothing."""


def _undecorated(*given: Any, **_: object) -> Any:  # noqa: ANN401  # decorators, with arguments or without
    """Return a function as it is, or a decorator that does."""
    return given[0] if given and callable(given[0]) else _undecorated


STAND_INS: Mapping[str, object] = {
    "BaseModelOutputWithPast": SimpleNamespace,
    "DynamicCache": _NoCache,
    "MoeModelOutputWithPast": SimpleNamespace,
    "auto_docstring": _undecorated,
    "capture_outputs": _undecorated,
    "check_model_inputs": _undecorated,
    # Layers here attend to nothing.
    **dict.fromkeys(("create_causal_mask", "create_sliding_window_causal_mask"), lambda *_, **__: None),
    "merge_with_config_defaults": _undecorated,
}
KINDS = (MarkedModel, _NoCache, Settings)
"""Where an attribute of one of these is missing, the harness is at fault, and not the engine."""

_KIND = "full_attention"
"""The kind of every layer, by which a model chooses its attention mask."""
Arguments = Callable[[Tensor, Tensor], Mapping[str, object]]
"""Returns what a text model is called with, of hidden states (1, P, hidden) and marks (1, P)."""


class MarkedEngine(ArgumentEngine):
    """One text model that is given mask and levels."""

    def __init__(
        self,
        parts: ArgumentParts,
        _: int,
        hidden: int,
        levels: int,
        *,
        arguments: Arguments,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Make the text model; raise `UsageError` for what needs the whole package."""
        self._parts, self._levels, self._arguments = parts, levels, arguments
        self._like = torch.zeros(0, hidden, dtype=dtype, device=device)
        self._reader, self.no_graphs = EffectReader(), str(parts.runner)
        self._text: Any = parts.text.__new__(parts.text)
        nn.Module.__init__(self._text)
        self._text.eval()

        def layer(hidden: Tensor, **named: Any) -> object:  # what an engine passes
            out = self._reader.layer(hidden, named.get("residual"))
            return (out, torch.zeros_like(out)) if "residual" in named else out

        def norm(hidden: Tensor, *residual: Tensor | None) -> object:
            out = self._reader.layer(hidden, *residual)
            return (out, out) if residual else out

        layers = [layer] * (levels + 1)
        config = Settings(
            "config",
            hidden_size=hidden,
            num_hidden_layers=len(layers),
            layer_types=[_KIND] * len(layers),
            rope_parameters={_KIND: None},
        )
        self._text.__dict__.update(
            config=config,
            layers=layers,
            norm=norm,
            rotary_emb=lambda states, *_, **__: (states[..., :1], states[..., :1]),  # cosines and sines
        )
        self.written: set[str] = set()
        self.captured: set[str] = set()

    @override
    def check(self, payload: Tensor) -> None:
        """Run a step of N visual tokens with a payload (levels, N, hidden); raise what the engine raises.

        Where its rows are added is not looked at: that would refuse what the engine accepts.
        """
        self._run(payload.size(1), payload)

    @override
    def eager(self, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Run a step with a payload (levels, N, hidden); see `ArgumentEngine.eager`."""
        self._run(tokens, payload)
        return tuple(level[0] for level in split_levels(self._reader.take(), self._levels))

    def _run(self, tokens: int, payload: Tensor | None) -> None:
        states = self._like.new_zeros(1, tokens, self._like.size(1))
        marks = torch.zeros(1, tokens, dtype=torch.bool, device=states.device)
        named = dict(self._arguments(states, marks))
        if payload is None:
            named.pop("visual_pos_masks")
        else:
            marks[:, : payload.size(1)] = True
            named[self._parts.found.files.argument] = list(payload)
        wanted = inspect.signature(self._text.forward).parameters
        self._reader.begin()
        self._text.forward(**{name: value for name, value in named.items() if name in wanted})


def of_transformers(states: Tensor, marks: Tensor) -> Mapping[str, object]:
    """Return the arguments of a text model of transformers, of (1, P, hidden) and marks (1, P)."""
    places = torch.arange(states.size(1), device=states.device).view(1, 1, -1).expand(4, 1, -1)
    return {"inputs_embeds": states, "position_ids": places, "use_cache": False, "visual_pos_masks": marks}


def of_lmdeploy(states: Tensor, marks: Tensor) -> Mapping[str, object]:
    """Return the arguments of a text model of LMDeploy, of (1, P, hidden) and marks (1, P)."""
    places = torch.arange(states.size(1), device=states.device).view(1, -1)
    wide = marks.unsqueeze(-1).expand_as(states)  # a view: marks are set later
    caches = [None] * 64  # more than there are layers: one is read for each
    return {
        "inputs_embeds": states, "position_ids": places, "past_key_values": caches, "visual_pos_masks": wide,
    }  # fmt: skip


_HOSTS = Hosts(MarkedModel, names=STAND_INS)
TRANSFORMERS_CALLS = ArgumentCalls(partial(MarkedEngine, arguments=of_transformers), KINDS, _HOSTS)
LMDEPLOY_CALLS = ArgumentCalls(partial(MarkedEngine, arguments=of_lmdeploy), KINDS, _HOSTS)

"""A decoder with its buffer, compiled as a subject asks: the profile run, and one step with a payload."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.arms.open import open_arm
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.optional_members import in_graph
from deepstack_harness.contract.protocols import Buffer, Inputs, Profile, Session
from deepstack_harness.devices import parse_device, parse_dtype
from deepstack_harness.errors import UsageError
from deepstack_harness.families.by_name import tiny_family_named
from deepstack_harness.families.family import TinyFamily
from deepstack_harness.families.granite4_vision import Granite4VisionConfig
from deepstack_harness.families.layers import give_storage
from deepstack_harness.kernels.subject import CPU, Subject
from deepstack_harness.mutants.by_name import buffer_named

_WIDENED = ("mlp", "heads", "kv_heads")
_DEFAULTS = ("opaque", "payload_first")
"""Attention as engines have it, which a compiler cannot look into; and of two orders of reading sizes the
one in which extra rows show."""


@dataclass(frozen=True)
class Decode:
    """The buffer's answer is the decoder's payload, as in an engine."""

    asked: Subject
    family: TinyFamily[Any]
    buffer: Buffer
    session: Session
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def open(cls, asked: Subject) -> "Decode":
        """Make decoder and buffer; nothing is compiled yet, and weights are drawn only for what will run.

        Raises `UsageError` for an unknown family, `MachineError` for a device that is not here.
        """
        family, dtype = sized_family(asked), parse_dtype(asked.dtype)
        device = parse_device("cpu" if asked.target == CPU or asked.execute else "cuda")
        decoder = (
            family.build(dtype=dtype, device=device, seed=0)
            if asked.runs
            else _undrawn(family, dtype, device)
        )
        make = buffer_named(asked.revision)
        decoder = in_graph(make, decoder)
        buffer = make(asked.capacity, family.hidden, family.levels, dtype=dtype, device=device)
        profile = Profile(asked.capacity, family.hidden, family.levels, dtype, device)
        session = open_arm(ArmSpec.parse(asked.arm), decoder, profile)
        return cls(asked, family, buffer, session, dtype, device)

    def profile_run(self) -> Tensor:
        """Run the profile run of an engine, before which nothing was set; return (profile_tokens, hidden)."""
        return self.session.forward(self.inputs(self.asked.profile_tokens))

    def step(self) -> Tensor:
        """Set a payload (levels, tokens, hidden) for the tokens of the step; decode -> (tokens, hidden)."""
        shape = (self.family.levels, self.asked.tokens, self.family.hidden)
        self.buffer.set(torch.zeros(shape, dtype=self.dtype, device=self.device))
        return self.session.forward(self.inputs(self.asked.tokens))

    def inputs(self, tokens: int) -> Inputs:
        """Return the decoder's arguments for so many tokens; the payload is what the buffer answers now."""
        return Inputs(self._hidden(tokens), self._positions(tokens), self.buffer.get(tokens))

    # Inputs lie in storage for `capacity` tokens, as an engine's do: a graph that runs
    # more rows than the step has reads on behind them, and must find memory there.
    def _hidden(self, tokens: int) -> Tensor:
        room = torch.zeros(self.asked.capacity, self.family.hidden, dtype=self.dtype, device=self.device)
        return room[:tokens].data

    def _positions(self, tokens: int) -> Tensor:
        room = torch.zeros(3 * self.asked.capacity, dtype=torch.int64, device=self.device)
        positions = room[: 3 * tokens].view(3, tokens).data
        return positions.copy_(self.family.positions(tokens, self.device))


def sized_family(asked: Subject) -> TinyFamily[Any]:
    """Return the family with the subject's layers and hidden size; heads and feed-forward widen with it.

    Granite's levels before layers that are left out are left out too.
    Raises `UsageError` for an unknown family, and for sizes that do not go together.
    """
    family = _with_defaults(asked.family)
    config, hidden = family.config, asked.hidden or family.config.hidden
    changes: dict[str, Any] = {"layers": asked.layers or config.layers, "hidden": hidden}
    if isinstance(config, Granite4VisionConfig):
        changes |= config.within(changes["layers"])
    for name in _WIDENED:
        changes[name], left = divmod(getattr(config, name) * hidden, config.hidden)
        if left or not changes[name]:
            raise UsageError(
                f"--hidden {hidden}: {name} of family '{asked.family}' is {getattr(config, name)} at hidden "
                f"{config.hidden} and grows with it, which gives no whole number here"
            )
    return type(family)(replace(config, **changes), family.name)


def _with_defaults(text: str) -> TinyFamily[Any]:
    """Return the family of that name, with each of `_DEFAULTS` that it has and `text` does not decide."""
    base, _, chosen = text.partition(":")
    names, variants = chosen.split("+") if chosen else [], tiny_family_named(text).variants
    decided = {field for name in names for field in variants[name].changes}
    names += [name for name in _DEFAULTS if name in variants and not decided & variants[name].changes.keys()]
    return tiny_family_named(":".join([base, "+".join(names)] if names else [base]))


def _undrawn(family: TinyFamily[Any], dtype: torch.dtype, device: torch.device) -> nn.Module:
    with torch.device("meta"):
        decoder = family.decoder()
    give_storage(decoder, dtype, device)
    return decoder.eval()

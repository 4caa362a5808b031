"""A family's decoder, drawn once, with the probe that compares its outputs."""

from dataclasses import dataclass

import torch

from deepstack_harness.contract.protocols import Family, Profile
from deepstack_harness.contract.trace import Trace
from deepstack_harness.devices import parse_device, parse_dtype
from deepstack_harness.families.by_name import family_named
from deepstack_harness.probes.numerics import NumericsProbe


@dataclass(frozen=True)
class Model:
    """A family's decoder, made once and shared by all cases of one dtype, device and seed."""

    family: Family
    decoder: torch.nn.Module
    numerics: NumericsProbe
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def build(cls, family: str, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> "Model":
        """Draw the weights.

        Raises `UsageError` for an unknown name, `MachineError` for a device that is not here.
        """
        found = family_named(family)
        torch_dtype, torch_device = parse_dtype(dtype), parse_device(device)
        decoder = found.build(dtype=torch_dtype, device=torch_device, seed=seed)
        numerics = NumericsProbe(decoder, found.levels, found.hidden)
        return cls(found, decoder, numerics, torch_dtype, torch_device)

    def profile(self, capacity: int) -> Profile:
        """Return the largest sizes of a trace with this capacity."""
        return Profile(capacity, self.family.hidden, self.family.levels, self.dtype, self.device)

    def sizes(self, trace: Trace) -> Profile:
        """Return the sizes of the trace's buffer: the family's, where the trace states no others."""
        return Profile(
            trace.capacity,
            trace.hidden or self.family.hidden,
            trace.levels or self.family.levels,
            parse_dtype(trace.dtype) if trace.dtype else self.dtype,
            self.device,
        )

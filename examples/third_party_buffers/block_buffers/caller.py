"""An engine that scales its embeddings."""

from dataclasses import replace

from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.trace import Step
from deepstack_harness.models.engine import Engine


class ScaledInputs(Engine):
    """Multiplies hidden states by 12 before the decoder, as Granite's outer model does."""

    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """Scale hidden (P, h)."""
        return replace(inputs, hidden=inputs.hidden * 12)

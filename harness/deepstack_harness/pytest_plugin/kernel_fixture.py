"""`kernel_facts`: the kernels that Inductor makes of a project's own compiled callable."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from deepstack_harness.contract.facts.kernels import KernelFacts
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.probes.kernels import KernelProbe
from deepstack_harness.pytest_plugin.fixture_base import Fixture
from deepstack_harness.torch_compat import dynamo
from deepstack_harness.torch_compat.lowering import NotRun, cold


class KernelFactsOf(Fixture):
    """The fixture; see `__call__`."""

    def __call__(
        self,
        call: Callable[[], object],
        *,
        tokens: int,
        capacity: int,
        profile: Callable[[], object] | None = None,
        arguments: Sequence[str] = ("hidden", "positions"),
        run: bool = True,
    ) -> KernelFacts:
        """Return the kernels of `call()`, which calls something compiled with backend inductor.

        `tokens` and `capacity` are the rows of the step and of the buffer; they differ.
        `profile()` is called before, as an engine's first run: what `call` runs may have
        been compiled there.  `arguments` are the names of those parameters of the
        compiled function whose sizes are tokens.  Without `run`, code is generated, not
        compiled, which is faster, and both calls end where the first graph would run.
        What was compiled before is dropped.  Fails where no kernel was seen.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if tokens == capacity:
                raise UsageError(f"tokens and capacity are both {tokens}: their rows could not be told apart")
            dynamo.start_counting()
            with (
                torch.no_grad(),
                cold(run=run),
                KernelProbe(tokens, capacity, run=run, arguments=arguments) as probe,
            ):
                before = _called(profile, probe)
                _called(call, probe)
            if not probe.watched.calls[before:]:
                raise NotMeasured(_nothing_of_inductor(dynamo.backends_used()))
            found = probe.facts()
            return replace(found, calls=found.calls[before:])


def _nothing_of_inductor(backends: Sequence[str]) -> str:
    """Return why there are no kernels: what was compiled, and with which backends."""
    said = "the call ran no graph that Inductor compiled"
    if not backends:
        return f"{said}: it compiled nothing at all; is torch.compile in the way that it takes?"
    return f"{said}: its graphs were compiled with backend {', '.join(backends)}, and need backend inductor"


def _called(call: Callable[[], object] | None, probe: KernelProbe) -> int:
    """Call, and answer how many graphs were called until now."""
    with suppress(NotRun):
        if call is not None:
            call()
    return len(probe.watched.calls)

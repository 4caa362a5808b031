"""`graph_budget`: how many graphs a piece of a test may build."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from deepstack_harness.contract.plural import plural
from deepstack_harness.errors import UsageError
from deepstack_harness.probes.graph_counter import GraphCounter, GraphCounts
from deepstack_harness.pytest_plugin.fixture_base import Fixture
from deepstack_harness.torch_compat import dynamo


class GraphBudget(Fixture):
    """The fixture; see `__call__`."""

    @contextmanager
    def __call__(
        self, graphs: int, *, breaks: int = 0, recompiles: int | None = None
    ) -> Iterator[GraphCounter]:
        """Fail when the block builds more graphs than `graphs`, or none; what was compiled before is dropped.

        A budget of 0 is for code that is warm: what was compiled before stays, and the block builds nothing
        more.  `breaks` are graph breaks that are accepted, `recompiles` recompiles (None: as
        many as the graphs allow).  Gives the counter, to look at in the block and behind it.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if graphs < 0:
                raise UsageError(f"graph_budget({graphs}): a budget is 0 graphs or more")
        opened = ExitStack()
        with self.one_sentence():
            counter = opened.enter_context(GraphCounter(warm=graphs == 0))
        try:
            with opened:
                yield counter
        except Exception as error:
            if not dynamo.is_recompile_limit(error):
                raise
            limit = "reached torch's recompile limit, behind which it runs eagerly"
            pytest.fail(f"{limit}: {_described(counter.so_far)}", pytrace=False)
        with self.one_sentence():
            found = counter.facts()
        allowed = {"graphs": graphs, "breaks": breaks, "recompiles": recompiles}
        over = [
            f"{name} {getattr(found, name)}, at most {most}"
            for name, most in allowed.items()
            if most is not None and getattr(found, name) > most
        ]
        if over:
            pytest.fail(f"over the budget: {', '.join(over)}: {_described(found)}", pytrace=False)


def _described(found: GraphCounts) -> str:
    told = ", ".join(
        [
            plural(found.graphs, "graph"),
            plural(found.recompiles, "recompile"),
            plural(found.breaks, "break"),
        ]
    )
    return f"{told}; recompiled because {found.reasons[0]}" if found.reasons else told

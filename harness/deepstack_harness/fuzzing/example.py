"""One example of a hunt: steps go in, each followed by a read of all rows, and findings come out."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import OutOfMemory
from deepstack_harness.fuzzing.pattern import contains, loosely, pattern_of
from deepstack_harness.fuzzing.running import Live

if TYPE_CHECKING:
    from deepstack_harness.fuzzing.hunt import Hunt

_SAYS_NOTHING_OF_ROWS = frozenset({Rule.R1, Rule.R6, Rule.R7})
"""Rules that may be broken without a row being wrong: where that is known, the trace goes on."""


class Example:
    """Plays until something is found, and then does nothing more."""

    def __init__(self, hunt: "Hunt", live: Live) -> None:
        """Do what every trace begins with."""
        self.live = live
        self.captured: set[int] = set()
        self._hunt = hunt
        self._told: set[Rule] = set()
        self._over = False
        for step in hunt.beginning(live.capacity):
            self.act(step)

    def act(self, step: Step) -> None:
        """Play a step and read all rows, unless it would show again what ends the process."""
        if self._over or self._is_avoided(step):
            return
        try:
            for each in self._with_read(step):
                self._hunt.watch.step(self.live.capacity, each)
                self.live.do(each)
        except OutOfMemory as eaten:
            self._over = True
            self._hunt.memory_eaten(self.live, str(eaten))
            return
        if step.op is Op.CAPTURE and self.live.facts[-1].raised is None:
            self.captured.add(step.tokens)
        self._hunt.saw(self.live)
        if self._hunt.judges_at_once:
            self._over = self._ends_at(self.live)

    def finish(self) -> None:
        """Judge what was not judged step by step, and look for the step that broke something first."""
        if self._over or self._hunt.judges_at_once or not self.live.broken():
            return
        prefixes = (self.live.upto(steps) for steps in range(1, len(self.live.steps) + 1))
        self._over = any(map(self._ends_at, prefixes))

    def _ends_at(self, live: Live) -> bool:
        """Tell what is new; the trace goes on where all that is broken is known and says nothing of rows."""
        broken = live.broken()
        fresh = {rule: said for rule, said in broken.items() if rule not in self._told}
        self._told |= fresh.keys()
        news = [said for said in fresh.values() if self._hunt.is_new(said, live)]
        if news:
            self._hunt.found(live, news, frozenset(broken))
        harmless = not news and broken.keys() <= _SAYS_NOTHING_OF_ROWS
        return bool(live.unmeasured) or not (harmless or not broken)

    def _with_read(self, step: Step) -> Iterator[Step]:
        """The step, and a read of all rows that there are then, where it has not read them itself."""
        yield step
        rows = min(self.live.rows, 4 * self.live.capacity + 8)
        if step.op is not Op.GET or step.tokens < rows or self.live.facts[-1].raised:
            yield Step(Op.GET, rows)

    def _is_avoided(self, step: Step) -> bool:
        avoided = self._hunt.avoided
        if not avoided:
            return False
        read = Step(Op.GET, self.live.rows)
        coming = pattern_of(Trace(self.live.capacity, (*self.live.steps, step, read)))
        return any(contains(loosely(coming), pattern) for pattern in avoided)

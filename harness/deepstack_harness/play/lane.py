"""The lane under test: one buffer and one session, and what they were seen to do in a step."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from deepstack_harness.contract.observation import Answer, RowRange
from deepstack_harness.contract.protocols import Buffer, Inputs, Session
from deepstack_harness.families.opaque import attended_rows
from deepstack_harness.play.attempt import naming
from deepstack_harness.play.payloads import same_bytes
from deepstack_harness.probes.rows import RowOwners, answer_facts, join_answers


class PlayedLane:
    """A `protocols.Lane` whose decoder runs too; callers drive it, and it takes notes."""

    def __init__(
        self, buffer: Buffer, session: Session, owners: RowOwners, *, notes_given: bool = False
    ) -> None:
        """Start without notes; with `notes_given`, also note what the decoder is given."""
        self.buffer = buffer
        self.session = session
        self._owners = owners
        self._notes_given = notes_given
        # Answers are kept: freed storage could be handed out again at the same
        # address, which would hide that a buffer moved.
        self._kept: list[tuple[Tensor, ...] | None] = []
        self._held: list[_HeldAnswer] = []
        self.begin()

    def begin(self) -> None:
        """Forget the notes of the step before."""
        self.allocated = 0
        self.earlier_changed = 0
        self.outputs: list[Tensor] = []
        self.given: tuple[tuple[RowRange, ...], ...] = ()
        self._answers: list[Answer] = []
        self._attended: list[int] = []

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return the answer of the buffer's `get`, (P, h) per level or None, and note its rows."""
        return self.answered(self.ask(tokens))

    def answered(self, payload: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Note an answer of the buffer, (P, h) per level or None, and whether earlier answers still hold."""
        self._note(payload)
        self.earlier_changed += sum(held.changed() for held in self._held)
        # The first answer and the latest one: a long run of gets must not cost ever more.
        self._held = [*self._held[:1], _HeldAnswer(payload)] if payload else self._held
        return payload

    def let_go(self) -> None:
        """Hold earlier answers no longer: after set, clear and resize they may change."""
        self._held.clear()

    def ask(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return the answer of the buffer's `get`, (P, h) per level or None, without noting it."""
        return naming("get", lambda: self.buffer.get(tokens))

    def reads(self, payload: tuple[Tensor, ...] | None) -> None:
        """Note `payload`, (P, h) per level or None, instead of the answers: a graph is about to read it."""
        self._answers.clear()
        self._note(payload)

    def run(self, inputs: Inputs) -> Tensor:
        """Run the decoder -> (n, h); rows behind the tokens asked for are cut, as the engine cuts them."""
        if self._notes_given and inputs.payload is not None:
            self.given = tuple(map(self._owners.runs, inputs.payload))
        with self.watched():
            out = naming("decoder", lambda: self.session.forward(inputs))
        tokens = inputs.positions.size(-1)
        self.outputs.append(out[:tokens])
        return self.outputs[-1]

    def clear(self, tokens: int) -> None:
        """Call the buffer's `clear`."""
        self.let_go()
        naming("clear", lambda: self.buffer.clear(tokens))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count, while open, the rows that opaque attention is given in this step."""
        with attended_rows() as rows:
            try:
                yield
            finally:
                self._attended += rows

    @property
    def attended(self) -> int | None:
        """The most rows that attention was given in this step."""
        return max(self._attended, default=None)

    @property
    def answer(self) -> Answer | None:
        """Answer that this step read; answers of several micro-batches follow each other."""
        return join_answers(self._answers)

    @property
    def first_answer(self) -> Answer | None:
        """Answer of the first get of this step."""
        return self._answers[0] if self._answers else None

    def _note(self, payload: tuple[Tensor, ...] | None) -> None:
        self._kept.append(payload)
        self._answers.append(answer_facts(payload, self._owners))


class _HeldAnswer:
    """An answer that a caller goes on using, with a copy of what it held when it was given."""

    def __init__(self, answer: tuple[Tensor, ...]) -> None:
        given: tuple[object, ...] = answer
        levels = [level for level in given if isinstance(level, Tensor)]  # anything else is R1
        self._levels = [(level, level.detach().clone()) for level in levels if level.device.type != "meta"]

    def changed(self) -> int:
        """Return the number of levels that hold something else now; told once."""
        changed = [pair for pair in self._levels if not same_bytes(*pair)]
        self._levels = [pair for pair in self._levels if not any(pair is other for other in changed)]
        return len(changed)

"""Two lanes of a case: the lane under test, which notes what get returns and outputs, and the reference lane.

`PlayedLane` is a buffer with the session that runs the decoder. `ReferenceLane` is a second buffer of the
same class, which takes the same calls, and runs the decoder uncompiled.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from torch import Tensor

from deepstack_harness.contract.observation import Answer, Distances, PaddingFacts, RowRange
from deepstack_harness.contract.protocols import Buffer, Inputs, Session
from deepstack_harness.models.layers import attended_rows
from deepstack_harness.play.attempt import attempt, naming
from deepstack_harness.play.model import Model
from deepstack_harness.play.rows import RowOwners, TypeNames, answer_facts, levels_of
from deepstack_harness.play.state import LaneStates
from deepstack_harness.play.tampering import Records
from deepstack_harness.play.tensors import same_bytes

_POISON = -256.0
"""The value that padded rows are given: far from all payloads, finite in every dtype, as attention multiplies
the values of later tokens by 0."""


class PlayedLane:
    """A `protocols.Lane` that also runs the decoder and notes what an engine reads and computes."""

    def __init__(
        self,
        buffer: Buffer,
        session: Session,
        owners: RowOwners,
        records: Records | None = None,
        *,
        notes_given: bool = False,
    ) -> None:
        """Start without notes, which belong to `records`; `notes_given`: also note the decoder's payload."""
        self._records = records or Records()
        self.buffer = buffer
        self.session = session
        self._owners = owners
        self._notes_given = notes_given
        # What get returned is referenced until the case ends: freed storage could be allocated again at the
        # same address, which would hide that a buffer moved.
        self._returned: list[tuple[Tensor, ...] | None] = []
        self._held: list[_HeldAnswer] = []
        self._types = TypeNames()
        self.mixed = False
        """True while a visual payload is set that no step has read: the next batch has a prompt in it."""
        self.real_rows: int | None = None
        """N of a payload that has rows for every token; None where padding is not measured."""
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the notes of the step before."""
        self.allocated = 0
        self.earlier_changed = 0
        self.outputs: list[Tensor] = []
        self.given: tuple[tuple[RowRange, ...], ...] = ()
        self.padding: PaddingFacts | None = None
        self.answers: list[Answer] = []
        """Facts of what each get of this step returned: one of each micro-batch."""
        self.attended: list[int] = []
        """The rows that each attention of this step was given."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return what the buffer's `get` returns, (P, h) per level or None, and note its rows."""
        return self.record_answer(self.call_get(tokens))

    def record_answer(self, payload: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Note what `get` returned, (P, h) per level or None, and which earlier return values changed."""
        self._note(payload)
        self.earlier_changed += sum(held.changed() for held in self._held)
        # Only the first and the latest: comparing all would be quadratic in the number of gets.
        self._held = [*self._held[:1], _HeldAnswer(payload)]
        return payload

    def forget_held_answers(self) -> None:
        """Compare earlier return values of get no longer: set, clear and resize may change them."""
        self._held.clear()

    def call_get(self, tokens: int, calls: int = 1) -> tuple[Tensor, ...] | None:
        """Return what the buffer's `get` returns, (P, h) per level or None, without noting it.

        Of several calls it is the first value that differs from that of the first call, or else the last.
        """
        with self._records.untouched("get"):
            answer = naming("get", lambda: self.buffer.get(tokens))
            if calls == 1:
                return answer  # without a copy, which a capture would record
            first = _HeldAnswer(answer)
            for _ in range(calls - 1):
                answer = naming("get", lambda: self.buffer.get(tokens))
                if first.differs(answer):
                    break
            return answer

    def record_graph_input(self, payload: tuple[Tensor, ...] | None) -> None:
        """Note `payload`, (P, h) per level or None, in place of what get returned: a graph will read it."""
        self.answers.clear()
        self._note(payload)

    def run(self, inputs: Inputs) -> Tensor:
        """Run the decoder -> (n, h); rows after the requested tokens are cut off, as engines do."""
        if self._notes_given and inputs.payload is not None:
            self.given = tuple(map(self._owners.runs, inputs.payload))
        with self.watched():
            out = naming("decoder", lambda: self.session.forward(inputs))
        out, done = out[: inputs.positions.size(-1)], sum(map(len, self.outputs))
        # The rows of a step follow each other over its runs: this one may have real rows, padding, or both.
        if self.real_rows is not None and inputs.payload and done < self.real_rows < done + len(out):
            out = out.clone()  # under reduce-overhead the next run writes over it
            self.padding = self._influence_of_padding(inputs, inputs.payload, out, self.real_rows - done)
        self.outputs.append(out)
        return out

    def _influence_of_padding(
        self, inputs: Inputs, payload: tuple[Tensor, ...], out: Tensor, real: int
    ) -> PaddingFacts:
        """Run the decoder once more with other values after row `real`; count the real rows that change.

        `out` (n, h) is its first output. The values are put into the very tensors of the payload, (n, width)
        per level, and taken out again, so that no compiled code sees another layout.
        """
        padded = [level[real:] for level in payload]
        values = [rows.clone() for rows in padded]
        for rows in padded:
            rows.fill_(_POISON)
        with self.watched():
            again = naming("decoder", lambda: self.session.forward(inputs))
        for rows, before in zip(padded, values, strict=True):
            rows.copy_(before)
        changed = (again[:real] != out[:real]).any(dim=1).sum()
        return PaddingFacts(len(out) - real, int(changed))

    def clear(self, tokens: int) -> None:
        """Call the buffer's `clear`."""
        self.forget_held_answers()
        with self._records.untouched("clear"):
            naming("clear", lambda: self.buffer.clear(tokens))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count, while open, the rows that opaque attention is given in this step."""
        with attended_rows() as rows:
            try:
                yield
            finally:
                self.attended += rows

    def _note(self, payload: tuple[Tensor, ...] | None) -> None:
        self._returned.append(payload)
        self.answers.append(answer_facts(payload, self._owners, self._types))


_COMPARED = 64
"""Rows that are compared after each of several equal calls; of the last one all rows are compared."""


class _HeldAnswer:
    """Return value of a get that a caller may still use, with a copy of its content at that time."""

    def __init__(self, answer: tuple[Tensor, ...] | None) -> None:
        levels = levels_of(answer)
        self._levels = [(level, level.detach().clone()) for level in levels if level.device.type != "meta"]

    def differs(self, answer: tuple[Tensor, ...] | None) -> bool:
        """Return whether the value of another get of as many tokens has other content than this one had."""
        levels = [level for level in levels_of(answer) if level.device.type != "meta"]
        held = [copy for _, copy in self._levels]
        if [level.shape for level in levels] != [copy.shape for copy in held]:
            return True
        pairs = zip(levels, held, strict=True)
        return any(not same_bytes(level[:_COMPARED], copy[:_COMPARED]) for level, copy in pairs)

    def changed(self) -> int:
        """Return the number of levels whose content changed; a level counts only once."""
        changed = [pair for pair in self._levels if not same_bytes(*pair)]
        self._levels = [pair for pair in self._levels if not any(pair is other for other in changed)]
        return len(changed)


class ReferenceLane:
    """Buffer of the same class as the one under test, with the same decoder uncompiled.

    Exceptions of its calls are not recorded: the lane under test records the same ones.
    """

    def __init__(self, buffer: Buffer, model: Model, states: LaneStates | None = None) -> None:
        """Take an empty buffer; `states` are the decoder's, where it may keep some."""
        self.buffer = buffer
        self._model = model
        self._states = states

    def in_force(self) -> AbstractContextManager[None]:
        """Make this lane's state the decoder's state while open."""
        return nullcontext() if self._states is None else self._states.reference()

    def read(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return what get returns, levels of (tokens, hidden), or None where it raises."""
        with self.in_force():
            return attempt("get", lambda: self.buffer.get(tokens)).value

    def clear(self, tokens: int) -> None:
        """Clear the rows of a step."""
        with self.in_force():
            attempt("clear", lambda: self.buffer.clear(tokens))

    def follow(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Read and clear, where no decoder runs; return what was read, levels of (tokens, hidden)."""
        payload = self.read(tokens)
        self.clear(tokens)
        return payload

    def compare(
        self, tokens: int, inputs: Inputs, ranges: Sequence[slice], out: Tensor | None, *, thorough: bool
    ) -> tuple[tuple[Tensor, ...] | None, Distances | None]:
        """Do a step uncompiled; return its payload, and how far `out` (tokens, hidden) is from its output.

        `ranges` are the rows of each sequence of the step. The distances are None where one of the two has
        no output, or the step has no tokens.
        """
        with self.in_force():
            reference = attempt("get", lambda: self.buffer.get(tokens))
            parts = _parts(inputs, reference.value, ranges)
            with nullcontext() if self._model.state is None else self._model.state.preserved():
                eager = attempt("decoder", lambda: self._model.numerics.eager(parts))
            distances = None
            if reference.returned and eager.value is not None and out is not None and tokens > 0:
                distances = self._model.numerics.distances(out, parts, eager.value, thorough=thorough)
            if self._model.state is not None:  # once more: the runs above put the state back
                attempt("decoder", lambda: self._model.numerics.eager(parts))
            self.clear(tokens)
        return reference.value, distances


def _parts(inputs: Inputs, payload: tuple[Tensor, ...] | None, ranges: Sequence[slice]) -> list[Inputs]:
    """Return one `Inputs` per sequence of a step: its rows of every argument.

    A step of one sequence is left as it is.
    """
    if len(ranges) == 1:
        return [replace(inputs, payload=payload)]
    return [
        Inputs(
            inputs.hidden[rows],
            inputs.positions[:, rows],
            None if payload is None else tuple(level[rows] for level in payload),
        )
        for rows in ranges
    ]

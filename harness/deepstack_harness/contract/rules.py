"""The contract R0..R14, and the promises I1..I5 about any side input, as names that stay stable."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Self


class Promise(StrEnum):
    """What a compiled region promises of any side input; the value is the public name.

    A *side input* is what a region reads and a later call may change: an argument, a member of a container,
    an attribute, a persistent buffer. Rules about deepstack's buffer are instances, see `Rule.instance_of`.
    """

    SPECIALISATION = (
        "I1",
        "specialisation",
        (
            "every later step computes what the uncompiled code computes, whatever presence, types, "
            "Python values and sizes the warm-up saw; or the region recompiles, or refuses"
        ),
    )
    LAYOUT = (
        "I2",
        "layout",
        (
            "an input keeps its dtype, device, strides and, where a graph was captured, its address, or "
            "the region says so"
        ),
    )
    NEUTRAL_ROWS = (
        "I3",
        "neutral rows",
        "rows that neither this step wrote nor the caller declares live have no influence",
    )
    EFFECTS = (
        "I4",
        "effects",
        "what the region writes is there after the same step, compiled or replayed, as it is uncompiled",
    )
    OWNERSHIP = ("I5", "ownership", "each stage, rank and micro-batch reads its own rows")

    word: str
    """One word: `I1` is `specialisation`."""
    promise: str
    """The promise in one sentence."""

    # Type checkers take `Promise("I1")` for a call of this: the rest has defaults.
    def __new__(cls, name: str, word: str = "", promise: str = "") -> Self:
        """Make a promise of its public name."""
        member = str.__new__(cls, name)
        member._value_, member.word, member.promise = name, word, promise
        return member

    @property
    def instance_of(self) -> "Promise":
        """The promise itself, so that rows of rules and of promises have the same column."""
        return self


class Rule(StrEnum):
    """A promise of the contract; the value is its public name.

    >>> Rule("R5").name, Rule.CLEAR.word
    ('CLEAR', 'clear')
    """

    OUTPUT = (
        "R0",
        "output",
        "compiled equals eager within the tolerance of the dtype",
        "compared output",
        Promise.SPECIALISATION,
    )
    STRUCTURE = (
        "R1",
        "structure",
        "every get answers with all levels, always tensors, never None",
        "answer",
        Promise.SPECIALISATION,
    )
    BOUNDARY = (
        "R2",
        "boundary",
        (
            "get(P) gives P rows of width hidden: the payload in [0, min(N, P)), equal after the cast to "
            "the buffer's dtype, exact zeros behind it; get and clear never raise for 0 <= P <= capacity"
        ),
        "call",
        Promise.NEUTRAL_ROWS,
    )
    FRESHNESS = (
        "R3",
        "freshness",
        "no row of a replaced payload is ever read; set copies, and leaves the caller's tensor as it was",
        "stale-row read",
        Promise.NEUTRAL_ROWS,
    )
    CAPACITY = (
        "R4",
        "capacity",
        (
            "a call above the capacity grows and keeps the payload, or raises and changes nothing; resize"
            " below N raises or keeps all N rows"
        ),
        "growth",
    )
    CLEAR = (
        "R5",
        "clear",
        (
            "after clear(n) no earlier row is ever read, also when n < N, unless the get before it asked "
            "for just these n rows: then the others belong to another micro-batch"
        ),
        "stale-row read",
        Promise.NEUTRAL_ROWS,
    )
    ADDRESS = (
        "R6",
        "address",
        (
            "in the captured regime: while the generation stays, get(P) gives the addresses that were "
            "captured, and get and clear allocate nothing while they are captured"
        ),
        "graph use",
        Promise.LAYOUT,
    )
    PLACEMENT = (
        "R7",
        "placement",
        "rows come in the dtype and on the device of the hidden states",
        "answer",
        Promise.LAYOUT,
    )
    REJECTION = (
        "R8",
        "rejection",
        (
            "negative counts, a wrong level count, a wrong hidden size and any other shape raise and "
            "change nothing"
        ),
        "bad call",
    )
    SHARDING = (
        "R9",
        "sharding",
        (
            "under the stated partition (contiguous by default) each row reaches exactly one rank, and "
            "the gathered result equals the unsharded run"
        ),
        "shared step",
        Promise.OWNERSHIP,
    )
    WORK = ("R10", "work", "kernels and opaque ops process P rows, never the capacity", "step")
    GRAPHS = (
        "R11",
        "graphs",
        (
            "the stated number of graphs, no break, no fall-back to eager; answers keep the types of "
            "their container and tensors, strides and requires_grad, which guards look at"
        ),
        "comparison",
        Promise.LAYOUT,
    )
    RANGES = ("R12", "ranges", "placeholder ranges equal a brute-force count", "question")
    ORDERING = (
        "R13",
        "ordering",
        "dual-stream results equal sequential, every dependent pair ordered",
        "comparison",
    )
    MEMORY = (
        "R14",
        "memory",
        (
            "no kernel accesses memory outside its tensors, and nothing that was never written reaches "
            "rows < n"
        ),
        "access",
    )

    word: str
    """One word: `R2` is `boundary`."""
    promise: str
    """The guarantee of a buffer that fulfils the rule, in one sentence."""
    chance: str
    """What puts the rule to the test, as a noun: `growth`.

    R3 and R5: reads of a row where a payload that was replaced or cleared lay. R4: calls above the capacity
    and resizes, with a payload to lose. R11: gets of a buffer that has had a payload, or runs of a compiled
    decoder.
    """
    instance_of: Promise | None
    """The promise about any side input that this rule is an instance of; None for a rule of its own."""

    # Type checkers take `Rule("R5")` for a call of this: the rest has defaults.
    def __new__(
        cls,
        name: str,
        word: str = "",
        promise: str = "",
        chance: str = "",
        instance_of: Promise | None = None,
    ) -> Self:
        """Make a rule of its public name."""
        member = str.__new__(cls, name)
        member._value_, member.word, member.promise = name, word, promise
        member.chance, member.instance_of = chance, instance_of
        return member


def names_of(rules: Iterable[Rule]) -> str:
    """Return the names of rules in their order, `none` for none."""
    wanted = set(rules)
    return " ".join(rule for rule in Rule if rule in wanted) or "none"


class PayloadKind(StrEnum):
    """The tokens that a family's payload has rows for, and with that the end of a payload.

    VISUAL: rows of the visual tokens of a step. A clear ends the payload, and all rows after N are zeros.
    EVERY_TOKEN: rows of every token of every step, as Gemma's per-layer inputs. A clear may end them or not,
    and rows after N are padding, which may hold anything that no output of a row before N depends on. KEPT:
    rows that stay until they are written again, as those of a cache, a recurrent state or an output. Rows
    after N may hold anything, before and after a clear (`contract.adapter`).
    """

    VISUAL = "visual"
    EVERY_TOKEN = "every_token"
    KEPT = "kept"

    @property
    def unchecked(self) -> Mapping[Rule, str]:
        """The rules that check less, or nothing, of a payload of this kind, with the reason for each."""
        return _UNCHECKED if self is PayloadKind.EVERY_TOKEN else {}


_UNCHECKED: Mapping[Rule, str] = {
    Rule.BOUNDARY: (
        "not asked: zeros behind N, because per-layer inputs exist for every token of a step, "
        "so that the rows behind N are padding"
    ),
    Rule.CLEAR: (
        "not asked: per-layer inputs exist for every token of every step, and no step without them follows, "
        "so that nothing clears them: the next set replaces them"
    ),
}

"""The contract R0..R14, and the promises I1..I5 about any side input, as names that stay stable."""

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Promise(StrEnum):
    """What a compiled region promises of any side input; the value is the public name.

    A *side input* is what a region reads and a later call may change: an argument, a member of a container,
    an attribute, a persistent buffer. Rules about deepstack's buffer are instances, see `Rule.instance_of`.
    """

    SPECIALISATION = "I1"
    LAYOUT = "I2"
    NEUTRAL_ROWS = "I3"
    EFFECTS = "I4"
    OWNERSHIP = "I5"

    @property
    def word(self) -> str:
        """One word: `I1` is `specialisation`."""
        return _SIDE_INPUTS[self][0]

    @property
    def promise(self) -> str:
        """The promise in one sentence."""
        return _SIDE_INPUTS[self][1]

    @property
    def instance_of(self) -> "Promise":
        """The promise itself, so that rows of rules and of promises have the same column."""
        return self


_SIDE_INPUTS: dict[Promise, tuple[str, str]] = {
    Promise.SPECIALISATION: (
        "specialisation",
        (
            "every later step computes what the uncompiled code computes, whatever presence, types, Python "
            "values and sizes the warm-up saw; or the region recompiles, or refuses"
        ),
    ),
    Promise.LAYOUT: (
        "layout",
        (
            "an input keeps its dtype, device, strides and, where a graph was captured, its address, or "
            "the region says so"
        ),
    ),
    Promise.NEUTRAL_ROWS: (
        "neutral rows",
        "rows that neither this step wrote nor the caller declares live have no influence",
    ),
    Promise.EFFECTS: (
        "effects",
        "what the region writes is there after the same step, compiled or replayed, as it is uncompiled",
    ),
    Promise.OWNERSHIP: ("ownership", "each stage, rank and micro-batch reads its own rows"),
}


class Rule(StrEnum):
    """A promise of the contract; the value is its public name.

    >>> Rule("R5").name, Rule.CLEAR.word
    ('CLEAR', 'clear')
    """

    OUTPUT = "R0"
    STRUCTURE = "R1"
    BOUNDARY = "R2"
    FRESHNESS = "R3"
    CAPACITY = "R4"
    CLEAR = "R5"
    ADDRESS = "R6"
    PLACEMENT = "R7"
    REJECTION = "R8"
    SHARDING = "R9"
    WORK = "R10"
    GRAPHS = "R11"
    RANGES = "R12"
    ORDERING = "R13"
    MEMORY = "R14"

    @property
    def word(self) -> str:
        """One word: `R2` is `boundary`."""
        return PROMISES[self][0]

    @property
    def chance(self) -> str:
        """What puts the rule to the test, as a noun: `growth`."""
        return _CHANCES[self]

    @property
    def promise(self) -> str:
        """The guarantee of a buffer that fulfils the rule, in one sentence."""
        return PROMISES[self][1]

    @property
    def instance_of(self) -> Promise | None:
        """The promise about any side input that this rule is an instance of; None for a rule of its own."""
        return _INSTANCES.get(self)


def names_of(rules: Iterable[Rule]) -> str:
    """Return the names of rules in their order, `none` for none."""
    wanted = set(rules)
    return " ".join(rule for rule in Rule if rule in wanted) or "none"


PROMISES: dict[Rule, tuple[str, str]] = {
    Rule.OUTPUT: ("output", "compiled equals eager within the tolerance of the dtype"),
    Rule.STRUCTURE: ("structure", "every get answers with all levels, always tensors, never None"),
    Rule.BOUNDARY: (
        "boundary",
        (
            "get(P) gives P rows of width hidden: the payload in [0, min(N, P)), equal after the cast to the "
            "buffer's dtype, exact zeros behind it; get and clear never raise for 0 <= P <= capacity"
        ),
    ),
    Rule.FRESHNESS: (
        "freshness",
        "no row of a replaced payload is ever read; set copies, and leaves the caller's tensor as it was",
    ),
    Rule.CAPACITY: (
        "capacity",
        (
            "a call above the capacity grows and keeps the payload, or raises and changes nothing; "
            "resize below N raises or keeps all N rows"
        ),
    ),
    Rule.CLEAR: (
        "clear",
        (
            "after clear(n) no earlier row is ever read, also when n < N, unless the get before it asked "
            "for just these n rows: then the others belong to another micro-batch"
        ),
    ),
    Rule.ADDRESS: (
        "address",
        (
            "in the captured regime: while the generation stays, get(P) gives the addresses that were "
            "captured, and get and clear allocate nothing while they are captured"
        ),
    ),
    Rule.PLACEMENT: ("placement", "rows come in the dtype and on the device of the hidden states"),
    Rule.REJECTION: (
        "rejection",
        (
            "negative counts, a wrong level count, a wrong hidden size and any other shape raise and change "
            "nothing"
        ),
    ),
    Rule.SHARDING: (
        "sharding",
        (
            "under the stated partition (contiguous by default) each row reaches exactly one rank, and the "
            "gathered result equals the unsharded run"
        ),
    ),
    Rule.WORK: ("work", "kernels and opaque ops process P rows, never the capacity"),
    Rule.GRAPHS: (
        "graphs",
        (
            "the stated number of graphs, no break, no fall-back to eager; answers keep the types of their "
            "container and tensors, strides and requires_grad, which guards look at"
        ),
    ),
    Rule.RANGES: ("ranges", "placeholder ranges equal a brute-force count"),
    Rule.ORDERING: ("ordering", "dual-stream results equal sequential, every dependent pair ordered"),
    Rule.MEMORY: (
        "memory",
        "no kernel accesses memory outside its tensors, and nothing that was never written reaches rows < n",
    ),
}


_INSTANCES: dict[Rule, Promise] = {
    Rule.OUTPUT: Promise.SPECIALISATION,
    Rule.STRUCTURE: Promise.SPECIALISATION,
    Rule.ADDRESS: Promise.LAYOUT,
    Rule.PLACEMENT: Promise.LAYOUT,
    Rule.GRAPHS: Promise.LAYOUT,
    Rule.BOUNDARY: Promise.NEUTRAL_ROWS,
    Rule.FRESHNESS: Promise.NEUTRAL_ROWS,
    Rule.CLEAR: Promise.NEUTRAL_ROWS,
    Rule.SHARDING: Promise.OWNERSHIP,
}

_CHANCES: dict[Rule, str] = {
    Rule.OUTPUT: "compared output",
    Rule.STRUCTURE: "answer",
    Rule.BOUNDARY: "call",
    Rule.FRESHNESS: "stale-row read",
    Rule.CAPACITY: "growth",
    Rule.CLEAR: "stale-row read",
    Rule.ADDRESS: "graph use",
    Rule.PLACEMENT: "answer",
    Rule.REJECTION: "bad call",
    Rule.SHARDING: "shared step",
    Rule.WORK: "step",
    Rule.GRAPHS: "comparison",
    Rule.RANGES: "question",
    Rule.ORDERING: "comparison",
    Rule.MEMORY: "access",
}
"""What puts a rule to the test.

R3 and R5: reads of a row where a payload that was replaced or cleared lay. R4: calls above the capacity and
resizes, with a payload to lose. R11: gets of a buffer that has had a payload, or runs of a compiled decoder.
"""


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

"""The contract R0..R13: one promise each, as names that stay stable."""

from enum import StrEnum


class Rule(StrEnum):
    """A promise of the contract; the value is its public name."""

    R0 = "R0"
    R1 = "R1"
    R2 = "R2"
    R3 = "R3"
    R4 = "R4"
    R5 = "R5"
    R6 = "R6"
    R7 = "R7"
    R8 = "R8"
    R9 = "R9"
    R10 = "R10"
    R11 = "R11"
    R12 = "R12"
    R13 = "R13"

    @property
    def word(self) -> str:
        """One word: `R2` is `boundary`."""
        return PROMISES[self][0]

    @property
    def promise(self) -> str:
        """What a buffer that keeps the rule guarantees, in one sentence."""
        return PROMISES[self][1]


class Verdict(StrEnum):
    """What an oracle says of one rule.

    SKIP: the rule does not apply (the detail says why). ERROR: it could not be
    judged. XFAIL, IMPROVED and MISSING exist only where an expectation does.
    """

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"
    ERROR = "ERROR"
    XFAIL = "XFAIL"
    IMPROVED = "IMPROVED"
    MISSING = "MISSING"


BROKEN = frozenset({Verdict.FAIL, Verdict.XFAIL})
"""Verdicts of a rule that is broken, known or not."""

PROMISES: dict[Rule, tuple[str, str]] = {
    Rule.R0: ("output", "compiled equals eager within the tolerance of the dtype"),
    Rule.R1: ("structure", "every get answers with all levels, always tensors, never None"),
    Rule.R2: (
        "boundary",
        (
            "get(P) gives P rows: the payload in [0, min(N, P)), exact zeros behind it; "
            "get and clear never raise for 0 <= P <= capacity"
        ),
    ),
    Rule.R3: ("freshness", "no row of a replaced payload is ever read; set copies"),
    Rule.R4: (
        "capacity",
        "a call above the capacity grows and keeps the payload, or raises and changes nothing",
    ),
    Rule.R5: ("clear", "after clear(n) no earlier row is ever read, also when n < N"),
    Rule.R6: ("address", "while the generation stays, get(P) gives the same addresses"),
    Rule.R7: ("placement", "rows come in the dtype and on the device of the hidden states"),
    Rule.R8: (
        "rejection",
        "negative counts, a wrong level count and a wrong hidden size raise and change nothing",
    ),
    Rule.R9: ("sharding", "rank r of tp sees rows [r*P/tp, (r+1)*P/tp) of the unsharded run"),
    Rule.R10: ("work", "kernels and opaque ops process P rows, never the capacity"),
    Rule.R11: ("graphs", "the stated number of graphs, no break, no fall-back to eager"),
    Rule.R12: ("ranges", "placeholder ranges equal a brute-force count"),
    Rule.R13: ("ordering", "dual-stream results equal sequential, every dependent pair ordered"),
}

"""The sequences S1..S10 on a buffer of 16 rows, and what each revision makes of them.

Measured on released vLLM sources.  Per get: (rows, rows that hold data), one such
pair per level where they differ, None, or the name of the exception; `contract` is
what the ledger must expect.  Granite, which reads and clears inside one forward, was
measured with a clear after every get (`cases/test_granite.py`).
"""

from dataclasses import dataclass

Read = tuple[int, int] | tuple[tuple[int, int], ...] | str | None


@dataclass(frozen=True)
class Sequence:
    """One trace and, per revision, what its gets return in order."""

    trace: str
    original: list[Read]
    pr40145: list[Read]
    pr40932: list[Read]
    pr43617: list[Read]
    contract: list[Read]
    granite_full: list[Read]
    granite_sliced: list[Read]
    omni_0_22: list[Read] | None = None

    def reads_of(self, revision: str) -> list[Read]:
        """What a revision returns that has no column of its own: those behave as another one here.

        #49397 differs only in a model without a vision tower, #44384 where the buffer was
        made elsewhere, `granite_rows` inside the graph; the reference fulfils the contract, and so does
        `omni_0_22` where it has no column.
        """
        if revision == "omni_0_22":
            return self.omni_0_22 or self.contract
        name = _AS.get(revision, revision)
        reads: list[Read] = getattr(self, name)
        return reads


_AS = {
    "pr49397": "pr43617",
    "pr44384": "pr43617",
    "granite_rows": "granite_full",
    "reference": "contract",
}
ERROR = "ValueError"
SEQUENCES = {
    "S1": Sequence("cap 16: get 4", [(4, 0)], [None], [None], [(4, 0)], [(4, 0)], [(16, 0)], [(4, 0)]),
    "S2": Sequence(
        "cap 16: set 9; get 16", [(16, 9)], [ERROR], [(16, 9)], [(16, 9)], [(16, 9)], [(16, 9)], [(16, 9)]
    ),
    "S3": Sequence(
        "cap 16: set 9; get 16; clear 16; get 16",
        [(16, 9), (16, 0)],
        [ERROR, ERROR],
        [(16, 9), None],
        [(16, 9), (16, 0)],
        [(16, 9), (16, 0)],
        [(16, 9), (16, 0)],
        [(16, 9), (16, 0)],
    ),
    "S4": Sequence(
        "cap 16: set 9; clear 5; get 9", [(9, 4)], [None], [None], [(9, 4)], [(9, 0)], [(16, 0)], [(9, 0)]
    ),
    "S5": Sequence(
        "cap 16: set 9; clear 5; set 3; get 9",
        [(9, 7)],
        [ERROR],
        [(9, 7)],
        [(9, 7)],
        [(9, 3)],
        [(16, 3)],
        [(9, 3)],
    ),
    "S6": Sequence(
        "cap 16: set 16; get 20",
        [(16, 16)],
        [ERROR],
        [(16, 16)],
        [(20, 0)],
        [(20, 16)],
        [(16, 16)],
        [(16, 16)],
        omni_0_22=[(20, 0)],
    ),
    "S7": Sequence(
        "cap 16: set 9; get 9; set 20; get 20",
        [(9, 9), (20, 20)],
        [(9, 9), (20, 20)],
        [(9, 9), (20, 20)],
        [(9, 9), (20, 20)],
        [(9, 9), (20, 20)],
        # The set raises, where level 0 is zeroed already; nothing grows.
        [(16, 9), ((16, 0), (16, 9), (16, 9))],
        [(9, 9), ((16, 0), (16, 9), (16, 9))],
    ),
    "S8": Sequence(
        "cap 16: set 8; get 4; clear 4; get 4; clear 4; get 8",
        [(4, 4), (4, 0), (8, 4)],
        [(4, 4), None, None],
        [(4, 4), None, None],
        [(4, 4), (4, 0), (8, 4)],
        [(4, 4), (4, 0), (8, 0)],
        [(16, 8), (16, 0), (16, 0)],
        [(4, 4), (4, 0), (8, 0)],
    ),
    "S9": Sequence(
        "cap 16: set 9; set 3; get 9", [(9, 9)], [ERROR], [(9, 9)], [(9, 9)], [(9, 3)], [(16, 9)], [(9, 9)]
    ),
    "S10": Sequence(
        "cap 16: set 9; get 4", [(4, 4)], [(4, 4)], [(4, 4)], [(4, 4)], [(4, 4)], [(16, 9)], [(4, 4)]
    ),
}
REVISIONS = (
    "original",
    "pr40145",
    "pr40932",
    "pr43617",
    "pr49397",
    "pr44384",
    "omni_0_22",
    "granite_full",
    "granite_rows",
    "granite_sliced",
    "reference",
)

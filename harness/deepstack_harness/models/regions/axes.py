"""Regions whose fault shows under one axis of engines, such as `backed_size_oblivious`, and right ones.

Under the arms `elsewhere` the wrong ones keep every promise.
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

from deepstack_harness.models.regions.program import H, RegionProgram, changed, rows


class Sized(RegionProgram):
    """A layer that looks at the number of rows."""

    counts: ClassVar[Sequence[int]] = (4, 3, 6)
    elsewhere: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(H, H)
        self.scale = nn.Parameter(rows(1, 9)[0])

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden)


ScalesManyRows = changed(
    Sized, "ScalesManyRows", "I1",
    "Scales two rows or more, and allows a symbolic size to leave that out.",
    arms="eager/drop_all/backed_size_oblivious eager/drop_all/mark_unbacked",
    elsewhere="eager/drop_all eager/shape_env_only",
    forward=lambda self, hidden: (
        self.layer(hidden) * self.scale if guard_or_false(hidden.size(0) >= 2) else self.layer(hidden)
    ),
)  # fmt: skip

CutsLongInputs = changed(
    Sized, "CutsLongInputs", "I1",
    "The last two rows of more than eight; a symbolic size counts as more.",
    arms="eager/drop_all/backed_size_oblivious",
    elsewhere="eager/drop_all eager/shape_env_only",
    forward=lambda self, hidden: self.layer(
        hidden * (hidden.new_ones(hidden.size(0)).cumsum(0) > hidden.size(0) - 2).unsqueeze(1)
        if guard_or_true(hidden.size(0) > 8) else hidden
    ),
)  # fmt: skip

AddsToLoneRow = changed(
    Sized, "AddsToLoneRow", "I1",
    "Treats one row apart, by a shortcut that a symbolic size does not take, in the warm-up too.",
    arms="eager/drop_all/backed_size_oblivious",
    counts=(1, 1, 4),
    elsewhere="eager/stock",
    forward=lambda self, hidden: (
        self.layer(hidden) + self.scale if guard_or_false(hidden.size(0) == 1) else self.layer(hidden)
    ),
)  # fmt: skip

BranchesOnRows = changed(
    Sized, "BranchesOnRows", "I1",
    "Branches on the number of rows; where the guard is evaluated, another number is refused.",
    arms="eager/drop_all eager/drop_all/backed_size_oblivious",
    elsewhere="eager/shape_env_only aot_eager/shape_env_only eager/stock",
    forward=lambda self, hidden: (
        self.layer(hidden) * self.scale if hidden.size(0) > 5 else self.layer(hidden)
    ),
)  # fmt: skip

IgnoresLateBias = changed(
    Sized, "IgnoresLateBias", "I1",
    "Has no bias in the warm-up; that guard is about no size, and is dropped where those are evaluated.",
    lambda first, *_: [first, {"hidden": rows(4, 1), "bias": rows(4, 2)}],
    arms="eager/shape_env_only aot_eager/shape_env_only",
    elsewhere="eager/stock",
    forward=lambda self, hidden, bias=None: (
        self.layer(hidden) if bias is None else self.layer(hidden) + bias
    ),
)  # fmt: skip


class EitherBranch(Sized):
    """Takes a shortcut for one row that computes the same as the way for many."""

    right = True
    arms = "eager/drop_all/backed_size_oblivious eager/drop_all eager/shape_env_only"

    def forward(self, hidden: Tensor) -> Tensor:
        if guard_or_false(hidden.size(0) == 1):
            return (self.layer.weight @ hidden[0] + self.layer.bias).unsqueeze(0)
        return self.layer(hidden)


class WarmsUpWithOneRow(Sized):
    """Is compiled with one row, and then runs with any number: the size is not specialised."""

    right = True
    arms = "eager/drop_all/backed_size_oblivious"
    counts = (1, 5, 1, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden) * self.scale + hidden.mean(0)


class ShapesByReshape(Sized):
    """Flattens and restores its rows by sizes that are computed from the symbol."""

    right = True
    arms = "eager/drop_all/backed_size_oblivious eager/drop_all eager/shape_env_only"

    def forward(self, hidden: Tensor) -> Tensor:
        count = hidden.shape[0]
        flat = self.layer(hidden).reshape(count * H)
        return flat.view(count, -1) + hidden.new_zeros(count, H)

"""What an adapter class states of its rows, so that no more is checked than such rows have. No torch.

An adapter class is a buffer (`protocols.Buffer`) around an object of another shape or with other names. Its
attribute `fixed`, a dict, has what never differs: `{"dtype": "int64", "levels": 1, "hidden": 1,
"capacity": 64, "cleared": False}`, each of them optional. `check --write-adapter` writes such a class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.contract.trace import BUFFER_INTEGERS, DTYPES
from deepstack_harness.errors import UsageError

_MOST = 2**20
"""The largest size or capacity that is read."""


@dataclass(frozen=True)
class Adapter:
    """The values of `fixed`.

    `dtype` is that of all rows, empty for any floating one. `levels`, `hidden` and `capacity` are sizes that
    never differ. `cleared` is False where rows stay until they are written again.
    """

    dtype: str = ""
    levels: int | None = None
    hidden: int | None = None
    capacity: int | None = None
    cleared: bool = True

    def __str__(self) -> str:
        """Return what differs from the usual, as in `dtype int64, levels 1`."""
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return ", ".join(f"{name} {value}" for name, value, usual in values if value != usual)

    @property
    def payload_kind(self) -> PayloadKind:
        """KEPT where rows stay until they are written again; VISUAL where `clear` ends them."""
        return PayloadKind.VISUAL if self.cleared else PayloadKind.KEPT

    @property
    def integers(self) -> bool:
        """Return whether the rows hold integers."""
        return self.dtype in BUFFER_INTEGERS

    @property
    def unchecked(self) -> Mapping[Rule, str]:
        """What is not checked of such a buffer, by rule, with the reason in words for a report."""
        sizes = [f"{name} of {value}" for name in ("levels", "hidden") if (value := getattr(self, name))]
        every = (
            (Rule.BOUNDARY, not self.cleared, "rows behind N, because nothing clears them"),
            (Rule.FRESHNESS, not self.cleared, "rows behind N, because nothing clears them"),
            (Rule.CLEAR, not self.cleared, "nothing clears it"),
            (Rule.BOUNDARY, self.integers, "NaN, infinity and other dtypes, because rows are integers"),
            (Rule.BOUNDARY, bool(sizes), f"other sizes than {' and '.join(sizes)}"),
            (Rule.REJECTION, self.levels == 1, "a wrong number of levels, because there is one"),
            (Rule.REJECTION, self.hidden == 1, "a wrong width, because a row is one number"),
        )
        reasons: dict[Rule, list[str]] = {}
        for rule, holds, why in every:
            if holds:
                reasons.setdefault(rule, []).append(why)
        return {rule: f"not asked: {'; '.join(why)}" for rule, why in reasons.items()}


def adapter_of(make: object) -> Adapter | None:
    """Return what a class states in `fixed`; None for a class without such a dict.

    Raises `UsageError` for another key, or a value that it cannot have.
    """
    stated = getattr(make, "fixed", None)
    if not isinstance(stated, dict):
        return None
    known = [field.name for field in fields(Adapter)]
    for key, value in stated.items():
        if key == "dtype":
            right, due = value in (*DTYPES, *BUFFER_INTEGERS), ", ".join((*DTYPES, *BUFFER_INTEGERS))
        elif key == "cleared":
            right, due = isinstance(value, bool), "True or False"
        else:
            right, due = type(value) is int and 0 < value <= _MOST, f"a number from 1 to {_MOST:,}"
        if key not in known:
            raise UsageError(f"unknown key '{key}' of the adapter's 'fixed'; known are {', '.join(known)}")
        if not right:
            raise UsageError(f"'{key}' of the adapter's 'fixed' is {due}, not {value!r}")
    return Adapter(**stated)

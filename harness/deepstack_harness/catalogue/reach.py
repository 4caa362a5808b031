"""The words for how an engine comes to break a rule, and how they follow from its orders."""

from collections.abc import Iterable

from packaging.version import Version

from deepstack_harness.catalogue.orders import AND, Order
from deepstack_harness.catalogue.releases import covers
from deepstack_harness.contract.row import Evidence

DEFAULT = "default"
"""Default settings lead there."""

FLAG = "flag: "
"""What follows has to be set."""

LATENT = "latent"
"""No order that an engine takes leads there: there is a written argument (`catalogue.latent`)."""

UNKNOWN = "unknown"
"""No order that was tried leads there and nobody has argued that none does, or none could be played."""


def reach_of(orders: Iterable[Order], version: Version | None) -> str:
    """Return how an engine of this version comes to break a rule that breaks on `orders`.

    That is `default`, `flag: SETTING` with several settings joined by "or", or `latent` where
    none of the orders is taken.  Of an unknown version every order is taken that any release takes.
    """
    taken = [order for order in orders if order.taken and _has(order, version)]
    if any(order.setting is None for order in taken):
        return DEFAULT
    settings = _fewest(dict.fromkeys(text for order in taken for text in _settings(order, version)))
    return f"{FLAG}{' or '.join(settings)}" if settings else LATENT


def evidence_of(orders: Iterable[Order], version: Version | None) -> Evidence:
    """Return what the reach by these orders rests on: the best evidence among those of this version."""
    found = {order.evidence for order in orders if order.taken and _has(order, version)}
    return next(one for one in Evidence if one in found | {Evidence.READ})


def _settings(order: Order, version: Version | None) -> list[str]:
    others = [one.text for one in order.others if _in(one.releases, version)]
    return [*([order.setting] if order.setting else []), *others]


def _fewest(settings: Iterable[str]) -> list[str]:
    """Leave out a setting that needs all flags of another one, and more."""
    flags = {text: frozenset(text.split(AND)) for text in settings}
    return [text for text, mine in flags.items() if not any(other < mine for other in flags.values())]


def _has(order: Order, version: Version | None) -> bool:
    return _in(order.releases, version)


def _in(releases: str, version: Version | None) -> bool:
    return not releases or version is None or covers(releases, version)

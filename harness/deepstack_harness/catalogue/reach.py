"""The words for how an engine comes to break a rule, and how they follow from its orders."""

from collections.abc import Iterable

from packaging.version import Version

from deepstack_harness.catalogue.orders import Order
from deepstack_harness.catalogue.releases import covers

DEFAULT = "default"
"""Default settings lead there."""

FLAG = "flag: "
"""What follows has to be set."""

LATENT = "latent"
"""No order that an engine takes leads there."""

UNKNOWN = "unknown"
"""The orders could not be played, or nobody has read them."""


def reach_of(orders: Iterable[Order], version: Version | None) -> str:
    """Return how an engine of this version comes to break a rule that breaks on `orders`.

    That is `default`, `flag: SETTING` with several settings joined by "or", or `latent` where
    none of the orders is taken.  Of an unknown version every order is taken that any release takes.
    """
    taken = [order for order in orders if order.taken and _has(order, version)]
    if any(order.setting is None for order in taken):
        return DEFAULT
    settings = dict.fromkeys(order.setting for order in taken if order.setting)
    return f"{FLAG}{' or '.join(settings)}" if settings else LATENT


def _has(order: Order, version: Version | None) -> bool:
    return not order.releases or version is None or covers(order.releases, version)

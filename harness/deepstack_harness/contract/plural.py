"""Numbers with their noun."""

_IRREGULAR = {"class": "classes", "family": "families", "box": "boxes", "is": "are", "has": "have"}


def plural(number: int, noun: str) -> str:
    """Return `1 case`, `2 cases`, `0 classes`; of several words the last one changes."""
    return f"{number:,} {noun if number == 1 else _several(noun)}"


def _several(noun: str) -> str:
    *before, last = noun.split(" ")
    return " ".join([*before, _IRREGULAR.get(last, f"{last}s")])

"""The known failures of a class in a source, with those of the class that a plugin leaves its storage to."""

from deepstack_harness.catalogue.known_failures import KnownRules, known_failures
from deepstack_harness.engines.known import engine_of
from deepstack_harness.sources.overlaid import Overlaid
from deepstack_harness.sources.source import Source


def known_in(source: Source, model_class: str) -> KnownRules:
    """Return rule -> reference of the known failures of one class; none for an unknown version."""
    overlay = engine_of(source).overlay
    sources = [source]
    if overlay is not None and overlay.base_storage and isinstance(source, Overlaid):
        sources.append(source.base)
    return KnownRules(
        entry
        for entry in known_failures()
        if any(entry.is_about(one.package, one.version, model_class) for one in sources)
    )

"""The two meanings of `audit --base`: the classes that a plugin changes, or the faults that do not count."""

from collections.abc import Sequence

from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.known import engine_of, one_source, open_source
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.overlaid import OVER, split_over
from deepstack_harness.sources.requirement import names_source


def with_base(sources: Sequence[str], base: str | None) -> tuple[list[str], str | None]:
    """Return the sources, plugins over the base that `--base` names, and the base of a comparison, if any.

    Raises `UsageError` for what is no source, for a base that no source could have as either, and for one
    that some sources have as the one and some as the other.
    """
    plugins = [text for text in sources if plugin_of(text) is not None]
    if base is None or not names_source(base):
        found, compared = list(sources), base
    elif plugins and _package(base) in _bases(plugins):
        _refuse_both(sources, plugins, base)
        found, compared = [f"{text}{OVER}{base}" if text in plugins else text for text in sources], None
    else:
        found, compared = list(sources), base
    if compared is not None and names_source(compared):
        _refuse_other(compared, {_package(text) for text in found})
    for text in found:
        open_source(text)  # misspelt ones cost no import of torch
    return found, compared


def plugin_of(text: str) -> KnownEngine | None:
    """Return the engine of a plugin that `text` names without a base; None for every other source."""
    named, base = split_over(text)
    if base is not None:
        return None
    engine = engine_of(one_source(named))
    return engine if engine.overlay is not None else None


def _bases(plugins: Sequence[str]) -> set[str]:
    """Return the packages whose classes these plugins change."""
    overlays = [engine.overlay for engine in map(plugin_of, plugins) if engine is not None]
    return {overlay.base.package.name for overlay in overlays if overlay is not None}


def _package(text: str) -> str:
    return one_source(split_over(text)[0]).package


def _refuse_both(sources: Sequence[str], plugins: Sequence[str], base: str) -> None:
    package = _package(base)
    same = [text for text in sources if text not in plugins and _package(text) == package]
    if same:
        raise UsageError(
            f"--base '{base}' could have the classes of {plugins[0]}, or be compared with {same[0]}: "
            f"write --source '{plugins[0]}{OVER}{base}' for the first"
        )


def _refuse_other(base: str, packages: set[str]) -> None:
    if _package(base) not in packages:
        raise UsageError(
            f"--base '{base}' is a source of {_package(base)}: no --source is one, or changes its classes"
        )

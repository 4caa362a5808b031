"""The two meanings of `audit --base`: the classes that a plugin changes, or the faults that do not count."""

from collections.abc import Sequence

from deepstack_harness.engines.known import engine_of, one_source, open_source
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.overlaid import OVER, split_over
from deepstack_harness.sources.requirement import names_source


def with_base(sources: Sequence[str], base: str | None) -> tuple[list[str], str | None]:
    """Return the sources, plugins over the base that `--base` names, and the base of a comparison, if any.

    Raises `UsageError` for what is no source, for a base that no source could have as either, and for one
    that some sources have as the one and some as the other.
    """
    found, compared = list(sources), base
    if base is not None and names_source(base):
        package, plugins = _package(base), {text: bare for text in sources if (bare := _changed_by(text))}
        if package in plugins.values():
            _refuse_both(sources, list(plugins), base)
            found, compared = [f"{text}{OVER}{base}" if text in plugins else text for text in sources], None
        else:
            _refuse_other(base, package, {_package(text) for text in sources})
    for text in found:
        open_source(text)  # misspelt ones cost no import of torch
    return found, compared


def _changed_by(text: str) -> str | None:
    """Return the package whose classes a plugin that is named without a base changes."""
    named, base = split_over(text)
    overlay = engine_of(one_source(named)).overlay if base is None else None
    return overlay.base.package.name if overlay else None


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


def _refuse_other(base: str, package: str, packages: set[str]) -> None:
    if package not in packages:
        raise UsageError(
            f"--base '{base}' is a source of {package}: no --source is one, or changes its classes"
        )

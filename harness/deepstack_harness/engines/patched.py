"""Find the classes of a base source that a plugin changes, and cut the plugin's patch of each."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from deepstack_harness.binding.cut_patch import Patch, cut_patch
from deepstack_harness.binding.discover import FoundCut, find_cuts
from deepstack_harness.binding.syntax import class_named
from deepstack_harness.engines.engine import Overlay
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source


def find_patched(source: Source, overlay: Overlay) -> list[FoundCut]:
    """Cut every class of the base that the plugin changes, derived ones too, with its patch.

    A class that the base lacks is refused.  Raises what `find_cuts` raises.
    """
    found = {one.model_class: one for one in find_cuts(source, overlay.files)}
    lacking = [name for name in overlay.patches if name not in found]
    return [
        *(
            _with_patch(source, overlay, one, name)
            for one in found.values()
            if (name := _patched_name(source, overlay.patches, found, one))
        ),
        *(_absent(source, overlay.patches[name], name) for name in lacking if found),
    ]


def _with_patch(source: Source, overlay: Overlay, one: FoundCut, name: str) -> FoundCut:
    """Return a class with the patch of the class `name`, or with the reason why that cannot be cut."""
    try:
        patch = cut_patch(
            source, overlay.patches[name], name, stand_ins=overlay.stand_ins, given=overlay.given
        )
    except UsageError as error:
        return replace(one, methods=str(error), forward=str(error))
    return replace(one, patch=patch)


def _absent(source: Source, patch: Patch, name: str) -> FoundCut:
    why = f"{source.label} has no class {name} that keeps a deepstack payload, which {patch.member} changes"
    return FoundCut(name, patch.member, why, why)


def _patched_name(
    source: Source, patches: Mapping[str, Patch], found: Mapping[str, FoundCut], one: FoundCut
) -> str | None:
    """Return the nearest class, the class itself or one that it is derived from, that has a patch."""
    return next((name for name in _lineage(source, found, one, ()) if name in patches), None)


def _lineage(
    source: Source, found: Mapping[str, FoundCut], one: FoundCut, derived: tuple[str, ...]
) -> Iterator[str]:
    """Yield the class and its base classes; a damaged source may name a derived class as a base."""
    yield one.model_class
    on_the_way = (*derived, one.model_class)
    for base in class_named(source.read(one.member), one.model_class).bases:
        if isinstance(base, ast.Name) and base.id in found and base.id not in on_the_way:
            yield from _lineage(source, found, found[base.id], on_the_way)

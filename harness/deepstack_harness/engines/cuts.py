"""The deepstack class of a family in a source, read and cut as its engine says; none of it runs."""

from deepstack_harness.binding.argument_cut import find_argument_cuts
from deepstack_harness.binding.cut_model import ModelCut, cut_known
from deepstack_harness.binding.discover import FoundCut, depth_limited, find_cuts
from deepstack_harness.binding.split_cut import find_split_cuts
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.patched import find_patched
from deepstack_harness.errors import UsageError, unknown_name
from deepstack_harness.sources.source import Source


def cuts_of(source: Source) -> list[FoundCut]:
    """Find and cut every deepstack class of a source; raise what `find_cuts` raises."""
    engine = engine_of(source)
    if engine.overlay is not None:
        return find_patched(source, engine.overlay)
    if engine.argument is not None:
        return find_argument_cuts(source, engine.argument)
    if engine.split is not None:
        return find_split_cuts(source, engine.split)
    return find_cuts(source, engine.files)


def cut_methods_of(source: Source, family: str = "qwen3_vl") -> ModelCut:
    """Cut the class that has the get, set and clear of a family.

    Raises `UsageError` that says what is missing when this source has no such buffer, `MachineError` when
    the source cannot be fetched.
    """
    engine = engine_of(source)
    if engine.argument is not None or engine.split is not None:
        raise UsageError(
            f"{source.label} has no get, set and clear to call, its payload is an argument: "
            "'audit --source SOURCE' judges it"
        )
    models = engine.by_methods
    # A variant such as `qwen3_vl:2b` changes our decoder and not the engine's class.
    name = family.partition(":")[0]
    if name not in models:
        raise unknown_name("model", family, models)
    with depth_limited(source):
        return cut_known(source, models[name], engine.methods)

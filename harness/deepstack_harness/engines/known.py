"""The list of engines: open a source of one of them, and find its engine again."""

from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.fastdeploy import FASTDEPLOY
from deepstack_harness.engines.marked_engines import LMDEPLOY, TRANSFORMERS
from deepstack_harness.engines.not_driven import NOT_DRIVEN
from deepstack_harness.engines.plugin_base import over_base
from deepstack_harness.engines.sglang import SGLANG
from deepstack_harness.engines.splitters import SPLITTING
from deepstack_harness.engines.tensorrt import TENSORRT_LLM
from deepstack_harness.engines.tpu_inference import TPU_INFERENCE
from deepstack_harness.engines.vllm import VLLM
from deepstack_harness.engines.vllm_ascend import VLLM_ASCEND
from deepstack_harness.engines.vllm_omni import VLLM_OMNI
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.locate import locate
from deepstack_harness.sources.overlaid import split_over
from deepstack_harness.sources.requirement import PathRequest, ReleaseRequest, parse_source
from deepstack_harness.sources.source import Source

ENGINES: tuple[KnownEngine, ...] = (
    VLLM,
    VLLM_OMNI,
    SGLANG,
    TRANSFORMERS,
    LMDEPLOY,
    FASTDEPLOY,
    TENSORRT_LLM,
    *SPLITTING,
    TPU_INFERENCE,
    VLLM_ASCEND,
)
RELEASED: tuple[KnownEngine, ...] = tuple(engine for engine in ENGINES if not engine.by_path)
"""The engines whose releases are on the package index."""


def open_source(text: str) -> Source:
    """Return the source that a user names: `vllm==0.22.1`, `installed:vllm`, or a path.

    `PLUGIN over BASE` names both sources of a plugin; without a base the plugin's files have to pin one.
    Raises `UsageError` for what is no source, for a package that is not among `ENGINES`, and for a base of
    what is no plugin; `MachineError` where a file that may pin a base cannot be fetched.
    """
    named, base = split_over(text)
    source = one_source(named)
    engine = engine_of(source)
    if engine.overlay is not None:
        return over_base(named, source, engine, None if base is None else one_source(base))
    if base is not None:
        raise UsageError(f"'{text}': {engine.package.title} changes no classes of another package")
    return source


def one_source(text: str) -> Source:
    """Return the source that `text` names, of a plugin without its base; raise what `open_source` raises."""
    request = parse_source(text)
    if not isinstance(request, PathRequest) and request.package in NOT_DRIVEN:
        raise UsageError(f"'{text}': {request.package} is not driven: {NOT_DRIVEN[request.package]}")
    if isinstance(request, ReleaseRequest):
        refuse_release(text, request.package)
    return locate(text, [engine.package for engine in ENGINES])


def refuse_release(text: str, package: str) -> None:
    """Raise `UsageError` where the index has no release of a package that is the engine."""
    for engine in ENGINES:
        if engine.package.name == package and engine.by_path:
            raise UsageError(
                f"'{text}': {engine.package.title} is judged by path alone, since {engine.by_path}: "
                "give a source tree"
            )


def open_alone(text: str) -> Source:
    """Return a source whose classes can be called alone; raise `UsageError` for a plugin's too."""
    source = open_source(text)
    overlay = engine_of(source).overlay
    if overlay is not None:
        raise UsageError(
            f"{source.label} changes classes of {overlay.base.package.title}: "
            "'audit --source SOURCE' judges them by every rule"
        )
    return source


def engine_of(source: Source) -> KnownEngine:
    """Return the engine of a source that `open_source` opened."""
    return next(engine for engine in ENGINES if engine.package.name == source.package)

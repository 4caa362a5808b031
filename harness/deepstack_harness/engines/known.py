"""The list of engines: open a source of one of them, and find its engine again."""

from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.fastdeploy import FASTDEPLOY
from deepstack_harness.engines.marked_engines import LMDEPLOY, TRANSFORMERS
from deepstack_harness.engines.not_driven import NOT_DRIVEN
from deepstack_harness.engines.sglang import SGLANG
from deepstack_harness.engines.splitters import SPLITTING
from deepstack_harness.engines.tensorrt import TENSORRT_LLM
from deepstack_harness.engines.vllm import VLLM
from deepstack_harness.engines.vllm_omni import VLLM_OMNI
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.locate import locate
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
)
RELEASED: tuple[KnownEngine, ...] = tuple(engine for engine in ENGINES if not engine.by_path)
"""The engines whose releases are on the package index."""


def open_source(text: str) -> Source:
    """Return the source that a user names: `vllm==0.22.1`, `installed:vllm`, or a path.

    Raises `UsageError` for what is no source, and for a package that is not among `ENGINES`.
    """
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


def engine_of(source: Source) -> KnownEngine:
    """Return the engine of a source that `open_source` opened."""
    return next(engine for engine in ENGINES if engine.package.name == source.package)

"""Turn the bare name of an engine's package into its newest release."""

from pathlib import Path

from packaging.utils import canonicalize_name

from deepstack_harness.engines.known import ENGINES, open_source, refuse_release
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.overlaid import OVER


def newest_release(package: KnownPackage) -> str:
    """Return `PACKAGE==VERSION`: the final release, not yanked, that pip would install on this Python.

    Asks the package index; raises `MachineError` where no such release can be seen, `UsageError` for an
    engine whose releases are not there.
    """
    refuse_release(package.name, package.name)
    # Not at the top: the clients for an index take longer to import than a local source to bind.
    from deepstack_harness.sources.index import Index

    return f"{package.name}=={Index(package).newest()}"


def newest_source(package: KnownPackage) -> str:
    """Return the newest release as a source: of a plugin that pins no base, over the newest base.

    Raises `MachineError` where a release cannot be seen.
    """
    text = newest_release(package)
    overlay = next(engine.overlay for engine in ENGINES if engine.package == package)
    if overlay is None:
        return text
    try:
        open_source(text)
    except UsageError:
        return f"{text}{OVER}{newest_release(overlay.base.package)}"
    return text


def named_package(text: str) -> KnownPackage | None:
    """Return the package whose bare name `text` is; None for anything else, and for a path that exists.

    A checkout of vLLM has a folder `vllm`, so that a path wins over the name.
    """
    found = [engine.package for engine in ENGINES if engine.package.name == canonicalize_name(text)]
    return found[0] if found and not Path(text).exists() else None

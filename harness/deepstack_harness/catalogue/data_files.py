"""Find the data files of the harness, in a wheel or a checkout, and the folder of the cache."""

import os
from pathlib import Path

import platformdirs

from deepstack_harness.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1]
CACHE_VARIABLE = "DEEPSTACK_HARNESS_CACHE"


def data(name: str) -> Path:
    """Return the path of `name`, such as `fixtures/incidents.toml`: wheel first, then checkout.

    Raises `UsageError` when neither has it: then the installation is incomplete.
    """
    candidates = [_PACKAGE / "_data" / name, _CHECKOUT / name]
    for path in candidates:
        if path.exists():
            return path
    raise UsageError(f"'{name}' is in neither {candidates[0]} nor {candidates[1]}: reinstall the harness")


def cache() -> Path:
    """Return the folder of the cache; `DEEPSTACK_HARNESS_CACHE` names another one.

    It may not exist yet, and may not be writable.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("deepstack-harness"))


def hypothesis_storage() -> dict[str, str]:
    """Return the environment in which hypothesis keeps its files in our cache.

    By default hypothesis writes to the current directory.  A setting of the caller is left as it is.
    """
    name = "HYPOTHESIS_STORAGE_DIRECTORY"
    return {} if name in os.environ else {name: str(cache() / "hypothesis")}

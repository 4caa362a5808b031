"""What holds for every case: one thread, no hub, a cold compile cache, named hypothesis profiles.

Nothing here imports torch; a case that does not need it pays nothing for it.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest

# Options, markers, the skip of `gpu` cases.  Installed, the harness brings it by this very name.
# Options of the checkout are in a plugin, which is loaded once even where `-p conftest` names this file too.
pytest_plugins = ["deepstack_harness.pytest_plugin", "cases.measuring"]

# Read when torch and datasets are imported, so set before any case is. An eager
# step takes 0.7 ms with one thread, and up to 41 ms unpinned on a busy machine.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a compile cache of its own: counts taken on a warm one are wrong or zero."""
    from deepstack_harness.pytest_plugin.options import (
        load_profile,  # named above, and so loaded as a plugin first
    )

    load_profile(config.getoption("--deepstack-profile") or os.environ.get("HYPOTHESIS_PROFILE", "ci"))
    # With --dist loadgroup, pytest-xdist 3.8 may wait for ever once it replaced a worker that died (a SIGFPE
    # in torch, say): the new worker has nothing to run.  Without replacement the run ends with a failure.
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = "0"
    if hasattr(config, "workerinput"):  # workers of pytest-xdist inherit it
        return
    cache = tempfile.TemporaryDirectory(prefix="inductor-", ignore_cleanup_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
    config.add_cleanup(cache.cleanup)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a release on one worker of pytest-xdist, one after the other: it is imported once."""
    for item in items:
        parameters = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        release = parameters.get("release")
        if isinstance(release, str) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(f"release {release}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what the collection of cases makes out of each collection of garbage.

    Modules and thousands of cases stay until the end: searching them took a fifth of the collection, and a
    tenth of a run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # Dynamo makes 100,000 objects in one compilation: with the usual (700, 10, 10) a run spends 6 % of
        # its processor seconds in collections that free little, with these 3.6 %.
        gc.set_threshold(10_000, 20, 100)


@pytest.fixture(autouse=True, scope="module")
def same_options_of_torch() -> Iterator[None]:
    """Fail a file that leaves an option of Dynamo or Inductor changed: later tests would measure with it.

    Once for each file: to read the options takes a millisecond.
    """
    before = options_of_torch()
    yield
    now = options_of_torch()
    changed = {name for name, value in now.items() if before.get(name, value) != value}
    assert not changed, f"these tests leave options of torch changed: {', '.join(sorted(changed))}"


def options_of_torch() -> dict[str, object]:
    """Return the options of Dynamo and Inductor, as far as these are imported.

    Without the number of threads that compile, which vLLM up to 0.19 sets when it is imported: they change
    how long a compilation takes, and nothing that is measured.
    """
    modules = [sys.modules.get(f"torch.{name}.config") for name in ("_dynamo", "_inductor")]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        if module is not None
        for name, value in module.get_config_copy().items()
        if name != "compile_threads"
    }

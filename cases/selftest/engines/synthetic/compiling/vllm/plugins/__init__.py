"""Plugins by entry points; one that cannot be loaded is logged, and the engine starts without it."""

import logging
from importlib.metadata import entry_points

from vllm import envs  # type: ignore[import-not-found]


def load_general_plugins() -> None:
    for plugin in entry_points(group="vllm.general_plugins"):
        if envs.VLLM_PLUGINS is not None and plugin.name not in envs.VLLM_PLUGINS:
            continue
        try:
            load = plugin.load()
        except Exception:
            logging.getLogger(__name__).exception("Failed to load plugin %s", plugin.name)
            continue
        load()

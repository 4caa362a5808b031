"""Find the interpreter of an engine: the environment of a release, this Python's, or one that is named."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version

from deepstack_harness.engines.vllm import VLLM
from deepstack_harness.errors import UsageError
from deepstack_harness.live_engine.environment import EngineHome, Say, made_environment, make_environment
from deepstack_harness.live_engine.installer import find_installer, python_of
from deepstack_harness.live_engine.plan import plan_environment
from deepstack_harness.sources.installed import installed
from deepstack_harness.sources.requirement import (
    InstalledRequest,
    ReleaseRequest,
    SourceRequest,
    parse_source,
)

_NAME = VLLM.package.name
FORMS = f"a release ({_NAME}==0.32.0), installed:{_NAME}, or the folder of an environment that has it"


def find_home(text: str | None, say: Say) -> EngineHome:
    """Return the interpreter that an engine is started with; the environment of a release is made if need be.

    Raises `UsageError` for what names no engine, and what `make_environment` raises.
    """
    match _parsed(text):
        case ReleaseRequest(version=version):
            return make_environment(version, say)
        case InstalledRequest():
            return EngineHome(Path(sys.executable), installed(VLLM.package).label)
        case path_request:
            return _environment_at(path_request.path)


def plan_home(text: str | None) -> Sequence[str]:
    """Return what `find_home` would do, one thing a line; raises what it raises."""
    match _parsed(text):
        case ReleaseRequest(version=version):
            return _planned(version)
        case InstalledRequest():
            return [f"python        {sys.executable}, which has {installed(VLLM.package).label}"]
        case path_request:
            return [f"python        {_environment_at(path_request.path).python}"]


def _planned(version: Version) -> Sequence[str]:
    there = made_environment(version)
    if there is not None:
        return [f"python        {there.python}, which is there"]
    return [*plan_environment(version).lines(), f"installer     {find_installer().name}"]


def _parsed(text: str | None) -> SourceRequest:
    """Return what names an engine; by default the installed one."""
    if text is None:
        if find_spec(VLLM.package.module) is None:
            raise UsageError(f"no engine is installed in {sys.executable}: give --source with {FORMS}")
        return InstalledRequest(_NAME)
    request = parse_source(text)
    if isinstance(request, ReleaseRequest | InstalledRequest) and request.package != _NAME:
        raise UsageError(f"'{text}': {request.package} cannot be started, an engine is {FORMS}")
    return request


def _environment_at(text: str) -> EngineHome:
    """Return the interpreter of an environment; its folder, or the interpreter itself, is named."""
    path = Path(text).expanduser()
    for python in (python_of(path), path):
        if python.is_file():
            # Not resolved: a link to the interpreter of the system is what makes an environment one.
            return EngineHome(python.absolute(), f"{_NAME} of {path}")
    raise UsageError(
        f"'{text}' has no bin/python: an engine is {FORMS}; a wheel or a source tree is for repro and audit"
    )

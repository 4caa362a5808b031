"""State facts of torch that the harness rests on, so that a new torch shows by name what it changed.

Each test in this folder is one fact: what a public or private API of torch does today.  Where a fact no
longer holds, the test names which API changed or is gone, and which module of ours rests on it, before that
turns hundreds of cases red.  `pytest cases/torch_facts` takes less than two minutes.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

import pytest
import torch
from packaging.version import Version

P = ParamSpec("P")
INSTALLED = Version(torch.__version__)


@dataclass(frozen=True)
class Since:
    """The torch release with which a fact became true or stopped being true, and what is known of it."""

    release: str
    reason: str

    @property
    def reached(self) -> bool:
        """True if the installed torch is that release or a later one; its pre-releases count."""
        return Version(INSTALLED.base_version) >= Version(self.release)


def fact(
    api: str, used_by: str, *, ended: Since | None = None, began: Since | None = None
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Turn a test into a fact about `api`, on which the module `used_by` of the harness rests.

    A fact that `ended` with this torch, or has not yet `began`, must fail; otherwise that is reported too.
    """

    def decorate(test: Callable[P, None]) -> Callable[P, None]:
        sentence = test.__name__.removeprefix("test_").strip("_").replace("_", " ")

        @functools.wraps(test)
        def check(*args: P.args, **kwargs: P.kwargs) -> None:
            problem = _problem(test, *args, **kwargs)
            known = _known_change(ended, began)
            if known and problem:
                pytest.xfail(f"{api}: known of torch {known.release}: {known.reason}")
            if known:
                pytest.fail(
                    f"torch {INSTALLED}: {api} does again what it did: {sentence}. Known of torch "
                    f"{known.release}: {known.reason}. Correct the entry of this fact.",
                    pytrace=False,
                )
            if problem:
                state, detail = problem
                message = f"torch {INSTALLED}: {api} {state}. The fact was: {sentence}. Used by {used_by}."
                pytest.fail(f"{message}\n{detail}", pytrace=False)

        return check

    return decorate


def _known_change(ended: Since | None, began: Since | None) -> Since | None:
    if ended and ended.reached:
        return ended
    return began if began and not began.reached else None


def _problem(test: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> tuple[str, str] | None:
    """Run the test; return "is gone" or "changed" with the error, None where the fact holds."""
    try:
        test(*args, **kwargs)
    except (ImportError, AttributeError) as error:
        return "is gone", f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  # whatever a changed API raises is the finding
        return "changed", f"{type(error).__name__}: {error}"
    return None

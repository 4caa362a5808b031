"""A pytest plugin: the files in which a night stores what its cases measured."""

from collections.abc import Callable

import pytest

from deepstack_harness.contract.facts import Measured


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the files in which a night stores what its cases measured."""
    group = parser.getgroup("what cases measure")
    group.addoption(
        "--measured", metavar="FILE", help="append the figures of cases that measure, as JSON lines"
    )
    group.addoption(
        "--baselines-out", metavar="DIR", help="also write the kernels of a GPU as baselines here"
    )


@pytest.fixture(scope="session")
def keep_figure(pytestconfig: pytest.Config) -> Callable[[Measured], None]:
    """A function that stores one figure (`contract.facts.Measured`) in the file of `--measured`."""
    from deepstack_harness.text import json_line

    path = pytestconfig.getoption("--measured")

    def keep(figure: Measured) -> None:
        if path:
            with open(path, "ab") as stream:  # noqa: PTH123  # one write: workers of xdist share the file
                stream.write(json_line(figure))

    return keep

"""The page of a watched program: one HTML file, no network, no script, everything from outside escaped."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from markupsafe import Markup

from deepstack_harness import __version__
from deepstack_harness.compile.watch_process import WatchedProcess, dropped_by_kind
from deepstack_harness.runs.report.templating import new_environment, template_text

_WORST_FIRST = {True: 0, None: 1, False: 2}
"""Order of guards by what was measured: an effect, nothing, no effect."""


def _layout(facts: Mapping[str, Any]) -> str:
    """Write the facts of one input in one call for people."""
    if facts["kind"] != "tensor":
        return f"{facts['kind']} {facts['value']}".strip()
    grad = ", requires grad" if facts["requires_grad"] else ""
    return (
        f"{facts['dtype']} {facts['subclass'] or 'tensor'} {facts['shape']}, strides {facts['stride']}, on "
        f"{facts['device']}{grad}, at {facts['address']:#x}"
    )


class WatchedProgram(Protocol):
    """One run of a program: its status, its processes, and what was not watched."""

    @property
    def status(self) -> int:
        """The status of the program."""

    @property
    def processes(self) -> Sequence[WatchedProcess]:
        """The processes that were watched."""

    @property
    def unwatched(self) -> Sequence[str]:
        """A sentence for everything that was not watched."""


def render_watch(
    command: Sequence[str], watched: WatchedProgram, restored: Sequence[Mapping[str, Any]]
) -> str:
    """Return the whole page; `restored` are rows of `--restore`."""
    compiling = [process for process in watched.processes if process.compiles]
    regions = [(process, region) for process in compiling for region in process.regions.values()]
    failed = [(process, region, guard) for process, region in regions for guard in region["failed"]]
    failed.sort(key=lambda each: (not each[2]["counts"], _WORST_FIRST[each[2]["has_effect"]]))
    return new_environment().get_template("watch.html.jinja").render(
        layout=_layout,
        command=" ".join(command), status=watched.status, processes=compiling, regions=regions,
        decisive=[guard for guard in failed if guard[2]["counts"]],
        shown=[guard for guard in failed if not guard[2]["counts"]],
        unwatched=watched.unwatched, restored=restored, dropped=dropped_by_kind(compiling).most_common(),
        calls=sum(region["calls"] for _, region in regions), version=__version__,
        css=Markup(template_text("page.css")),
    )  # fmt: skip

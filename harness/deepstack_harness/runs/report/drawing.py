"""Plots as SVG elements for a page: colours follow its theme, text stays text in its font.

matplotlib draws with made-up colours, one for each colour of the page; in the SVG they become the page's CSS
variables.  Ticks are plain text: powers of ten, and counts.
"""

import io
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from deepstack_harness.text import one_line

INK, MUTED, LINE, ACCENT = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
FAIL, KNOWN, KEPT, BARE = "#0a0b05", "#0a0b06", "#0a0b07", "#0a0b08"
_VARIABLES = {
    INK: "--ink", MUTED: "--muted", LINE: "--line", ACCENT: "--accent",
    FAIL: "--fail", KNOWN: "--known", KEPT: "--kept", BARE: "--page",
}  # fmt: skip
WIDTH = 6.6
"""Inches; a page shows it wider or narrower."""

MOST_LABEL = 60
"""Characters."""

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_DROPPED = {f"{_SVG}metadata", f"{_SVG}style"}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "deepstack",  # the same plot gives the same SVG
    "text.parse_math": False,  # a `$` from outside is a `$`
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.4,
}


def label_of(*parts: object) -> str:
    """Return a tick's label, cut where it would push the plot aside; the table has it whole."""
    text = one_line("  ".join(map(str, parts))).replace(" ", "\N{NO-BREAK SPACE}")
    return text if len(text) <= MOST_LABEL else f"{text[:MOST_LABEL]}.."


class Drawing:
    """A context: `axes` to draw into, one above the other; afterwards `svg` is the element's text."""

    def __init__(self, key: str, label: str, height: float, stacked: int = 1) -> None:
        """Take its place in the page, the text read out instead of the plot, and a height in inches."""
        self._key, self._label = key, label
        self._settings = mpl.rc_context(_SETTINGS)
        self._height, self._stacked = height, stacked
        self.svg = ""

    def __enter__(self) -> Sequence[Axes]:
        """Return the axes, top down."""
        self._settings.__enter__()
        self.figure = Figure(figsize=(WIDTH, self._height), layout="constrained")
        grid = self.figure.subplots(self._stacked, 1, sharex=True, squeeze=False)
        return [axes for (axes,) in grid]

    def __exit__(self, kind: object, *_: object) -> None:
        """Write the SVG, unless drawing failed."""
        try:
            if kind is None:
                text = io.BytesIO()
                with warnings.catch_warnings():
                    # Glyphs are only measured with matplotlib's font; the reader's fonts show them.
                    warnings.filterwarnings("ignore", message="Glyph .* missing from")
                    self.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
                self.svg = _element(self._key, self._label, text.getvalue())
        finally:
            self._settings.__exit__(None, None, None)


def _element(key: str, label: str, text: bytes) -> str:
    """Return only the `svg` element, without the parts that a page has itself."""
    ET.register_namespace("", _SVG.strip("{}"))
    root = ET.fromstring(text)  # written by matplotlib, just now
    used = set(re.findall(rb'(?:href="|url\()#([^")]+)', text))
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _DROPPED]:
            parent.remove(child)
        _adapt(parent, f"{key}-", {name.decode() for name in used})
    for size in ("width", "height"):
        root.attrib.pop(size)
    root.set("role", "img")
    root.set("aria-label", label)
    return ET.tostring(root, encoding="unicode")


def _adapt(element: ET.Element, prefix: str, used: set[str]) -> None:
    """Change an element: ids that are unique in the page, the page's colours and font."""
    if (name := element.attrib.pop("id", None)) in used:
        element.set("id", f"{prefix}{name}")
    if reference := element.attrib.pop(_XLINK, None):
        element.set("href", f"#{prefix}{reference.removeprefix('#')}")
    if clipped := element.get("clip-path"):
        element.set("clip-path", clipped.replace("(#", f"(#{prefix}"))
    if style := element.get("style"):
        style = re.sub(r"font-family: [^;]*(; )?", "", style)
        for colour, variable in _VARIABLES.items():
            style = style.replace(colour, f"var({variable})")
        element.set("style", style)
    for place in ("d", "points"):
        if path := element.get(place):
            element.set(place, " ".join(path.split()))
    if element.tail and not element.tail.strip():
        element.tail = None


MOST_TICKS = 6
"""Numbers at an axis: more of them touch each other."""


def powers_of_ten(
    axes: Axes, values: Iterable[float], zero: float | None = None, infinite: float | None = None
) -> None:
    """Set a log scale over all `values` (> 0), with ticks such as 1e-06.

    What means zero is written as `0`, for not finite as `not finite`.
    """
    numbers = list(values)
    low, high = math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)))
    high = max(high, low + 1)
    step = math.ceil((high - low) / MOST_TICKS)
    powers = list(range(high, low - 1, -step))
    if zero is not None and powers[-1] != low:
        powers[-1] = low  # the tick at 0 is there, and none so near that they overlap
    ticks = [10.0**power for power in powers]

    def written(value: float, _: object) -> str:
        if zero is not None and value <= zero * 1.001:
            return "0"
        if infinite is not None and value >= infinite * 0.999:
            return "not finite"
        return f"1e{round(math.log10(value)):+03d}" if not 0.01 <= value <= 1000 else f"{value:g}"

    axes.set_xscale("log")
    axes.set_xlim(10.0**low * 0.7, 10.0**high * 1.4)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(written))


def counts(axis: Axis, most: int = 6) -> None:
    """Set ticks at whole numbers, with commas, `most` of them."""
    axis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))

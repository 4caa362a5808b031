"""What the engine really reaches: the orders in which it calls a model class, and what that says of a rule.

An order is a trace for a class that is driven through its own `embed_input_ids`
and `forward` (`deepstack_harness.binding.drive`): `set N` embeds a step with N visual
tokens, `set 0` one without, `forward P` embeds text where nothing was embedded
and runs the outer forward over P padded tokens, `profile P` runs that alone, and
`get P; clear P` is one micro-batch of a step.  Sources: vllm/v1/worker/gpu_model_runner.py
and gpu_ubatch_wrapper.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN

REACHABLE = "reachable"
LATENT = "latent"


@dataclass(frozen=True)
class Order:
    """One order of calls, how the engine comes to it, and what it needs for that.

    `setting` is what has to be switched on; `until` the last release line that has
    it; `taken` is False for an order that no engine takes today.
    """

    trace: str
    how: str
    setting: str | None = None
    until: Version | None = None
    taken: bool = True

    def reach(self, source: str | None) -> str:
        """`reachable`, `flag: SETTING` or `latent`, on the source with this label."""
        if not self.taken or self._is_gone(source):
            return LATENT
        return f"flag: {self.setting}" if self.setting else REACHABLE

    def _is_gone(self, source: str | None) -> bool:
        version = _version(source)
        return self.until is not None and version is not None and version.release[:2] > self.until.release


ENGINE_ORDER = (
    Order(
        "cap 16: profile 16; set 9; forward 16; forward 16",
        "profile run, a visual step padded to a capture size, a text-only step",
    ),
    Order(
        "cap 16: profile 16; set 16; forward 16; forward 1; forward 1",
        "a visual step that fills the token budget, then decode steps",
    ),
    Order(
        "cap 16: profile 16; forward 8; set 9; forward 16; set 3; forward 4; forward 16",
        "text first, then a long visual step and a short one",
    ),
    Order(
        "cap 16: profile 16; profile 8; profile 1; set 12; forward 12; profile 16; set 5; forward 8",
        "runs for capture sizes, and one that keeps an idle rank in step, between scheduled ones",
    ),
    Order(
        "cap 16: profile 16; set 8; get 4; clear 4; get 4; clear 4; forward 8",
        "two micro-batches of one visual step, then a text-only step",
        setting="--enable-dbo",
    ),
    Order(
        "cap 16: profile 16; set 16; forward 20",
        "a full step padded to a multiple of the tensor-parallel size, above the token budget",
        setting="--compilation-config.pass_config.enable_sp",
        until=Version("0.31"),
    ),
    Order(
        "cap 16: profile 16; set 9; set 0; forward 16",
        "a text-only step is embedded before the visual step was run",
        taken=False,
    ),
    Order(
        "cap 16: profile 16; set 9; set 3; forward 9",
        "a visual step is embedded before the one in front of it was run",
        taken=False,
    ),
    Order(
        "cap 16: profile 16; set 9; forward 16; set 20; forward 20",
        "a visual step above the token budget",
        taken=False,
    ),
)


_FULL = "--compilation-config.cudagraph_mode=FULL"
REPLAY_ORDER = (
    Order(
        "cap 16: profile 16; set 12; forward 16; forward 16",
        "FULL graphs: captured with nothing set, replayed for a visual step and for a text-only one",
        setting=_FULL,
    ),
    Order(
        "cap 16: profile 16; set 12; forward 16; set 5; forward 16",
        "FULL graphs: replayed for a long visual step and for a short one",
        setting=_FULL,
    ),
    Order(
        "cap 16: profile 16; set 12; forward 16; set 20; forward 16",
        "FULL graphs: storage grows after the capture, above the token budget",
        taken=False,
    ),
)
"""Orders in which the Python of get and clear runs at capture only (`deepstack_harness.binding.replayed`).

The default mode, FULL_AND_PIECEWISE, replays decode batches only, behind steps
whose Python ran.  Breakable graphs (0.22 on) replay prefill as FULL does.
"""


def reach_of(rule: Rule, rows: Iterable[Row]) -> str:
    """How the engine comes to break `rule`: `reachable`, `flag: SETTING` or `latent`.

    `rows` are those of one class played over `ENGINE_ORDER`, and replayed over
    `REPLAY_ORDER`.  A rule that breaks on no order, or only where none is taken, is
    latent; several flags are joined by "or".
    """
    broken = {(row.trace, row.source) for row in rows if row.rule == rule and row.verdict in BROKEN}
    orders = [*ENGINE_ORDER, *REPLAY_ORDER]
    reaches = [order.reach(source) for order in orders for trace, source in broken if trace == order.trace]
    if REACHABLE in reaches:
        return REACHABLE
    flags = dict.fromkeys(reach.removeprefix("flag: ") for reach in reaches if reach != LATENT)
    return f"flag: {' or '.join(flags)}" if flags else LATENT


def _version(source: str | None) -> Version | None:
    """The release that a label names: `vllm 0.22.1`; a source tree may be any."""
    try:
        return Version((source or "").removeprefix("vllm "))
    except InvalidVersion:
        return None

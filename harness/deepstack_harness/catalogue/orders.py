"""The orders in which an engine calls a model class, as traces.

An order is a trace for a class that is driven through its own `embed_input_ids` and `forward`
(`deepstack_harness.binding.forward_buffer`): `set N` embeds a step with N visual tokens, `set 0`
one without, `forward P` embeds text where nothing was embedded and runs the outer forward over P
padded tokens, `profile P` runs that alone, and `get P; clear P` is one micro-batch of a step.
Read in vllm/v1/worker/gpu_model_runner.py and gpu_ubatch_wrapper.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deepstack_harness.contract.trace import Trace


@dataclass(frozen=True)
class Order:
    """One order of calls, and what an engine needs to come to it.

    `setting` is what has to be switched on; `releases` the range that has the order (all where it
    is empty); `taken` is False for an order that no release takes.
    """

    trace: Trace
    how: str
    setting: str | None = None
    releases: str = ""
    taken: bool = True


@dataclass(frozen=True)
class Orders:
    """All orders of one engine.

    In `live` ones the class's Python runs at every call.  In `replayed` ones the Python of get
    and clear runs at capture only (`deepstack_harness.binding.replayed`).
    """

    live: tuple[Order, ...] = ()
    replayed: tuple[Order, ...] = ()


def orders_of(package: str) -> Orders:
    """Return the orders of an engine by its package; none for an engine whose runner nobody has read."""
    return _ORDERS.get(package, Orders())


def _order(
    trace: str, how: str, *, setting: str | None = None, releases: str = "", taken: bool = True
) -> Order:
    return Order(Trace.parse(trace), how, setting, releases, taken)


_LIVE = (
    _order(
        "cap 16: profile 16; set 9; forward 16; forward 16",
        "profile run, a visual step padded to a capture size, a text-only step",
    ),
    _order(
        "cap 16: profile 16; set 16; forward 16; forward 1; forward 1",
        "a visual step that fills the token budget, then decode steps",
    ),
    _order(
        "cap 16: profile 16; forward 8; set 9; forward 16; set 3; forward 4; forward 16",
        "text first, then a long visual step and a short one",
    ),
    _order(
        "cap 16: profile 16; profile 8; profile 1; set 12; forward 12; profile 16; set 5; forward 8",
        "runs for capture sizes, and one that keeps an idle rank in step, between scheduled ones",
    ),
    _order(
        "cap 16: profile 16; set 8; get 4; clear 4; get 4; clear 4; forward 8",
        "two micro-batches of one visual step, then a text-only step",
        setting="--enable-dbo",
    ),
    _order(
        "cap 16: profile 16; set 16; forward 20",
        "a full step padded to a multiple of the tensor-parallel size, above the token budget",
        setting="--compilation-config.pass_config.enable_sp",
        releases="<0.32",
    ),
    _order(
        "cap 16: profile 16; set 9; set 0; forward 16",
        "a text-only step is embedded before the visual step was run",
        taken=False,
    ),
    _order(
        "cap 16: profile 16; set 9; set 3; forward 9",
        "a visual step is embedded before the one in front of it was run",
        taken=False,
    ),
    _order(
        "cap 16: profile 16; set 9; forward 16; set 20; forward 20",
        "a visual step above the token budget",
        taken=False,
    ),
)

# Only FULL replays visual steps of any size.  Breakable graphs (0.22 on) replay prefill as FULL
# does.  The default mode, FULL_AND_PIECEWISE, replays steps in which every request has one token
# (`_is_uniform_decode` counts tokens only): decoding, and a prefill chunk of one visual token.
_FULL = "--compilation-config.cudagraph_mode=FULL"
_REPLAYED = (
    _order(
        "cap 16: profile 16; set 12; forward 16; forward 16",
        "FULL graphs: captured with nothing set, replayed for a visual step and for a text-only one",
        setting=_FULL,
    ),
    _order(
        "cap 16: profile 16; set 12; forward 16; set 5; forward 16",
        "FULL graphs: replayed for a long visual step and for a short one",
        setting=_FULL,
    ),
    _order(
        "cap 16: profile 16; set 12; forward 16; set 20; forward 16",
        "FULL graphs: storage grows after the capture, above the token budget",
        taken=False,
    ),
)

VLLM_ORDERS = Orders(_LIVE, _REPLAYED)
_ORDERS: Mapping[str, Orders] = {"vllm": VLLM_ORDERS}

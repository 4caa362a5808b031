"""Run a projection over recording streams, and play every order in which they may run it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import islice

import torch
from torch import Tensor

from deepstack_harness.contract.facts.ordering import Recording
from deepstack_harness.errors import NotMeasured
from deepstack_harness.streams.bitwise import different_bits
from deepstack_harness.streams.interleavings import Order, orders
from deepstack_harness.streams.memory import Slot
from deepstack_harness.streams.projection import sequential
from deepstack_harness.streams.recorded_device import Device, Event
from deepstack_harness.streams.recorder import Recorder
from deepstack_harness.streams.reexecute import play
from deepstack_harness.streams.stream_api import Lanes, Project

LAYERS = 2
TOKENS, HIDDEN = 3, 4
MOST_ORDERS = 20_000

Naming = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Setting:
    """Way to run a projection: streams beside the main one, as `make` makes them for a device."""

    name: str
    others: int
    make: Callable[[Device], Project]


def rehearse(setting: Setting, seed: int = 0) -> Recording:
    """Record `setting` over two layers, a projection for each stream and at least two; play all orders.

    Raises `NotMeasured` when nothing was recorded, or there are too many orders to play.
    """
    device = Device(setting.others)
    x, weights = _integers(setting.others + 1 if setting.others else 2, seed)
    recorder = Recorder(device, {f"projection {name}": w for name, w in zip("ABCDEF", weights, strict=False)})
    lanes, project = _lanes(device, recorder), setting.make(device)
    with torch.no_grad():
        right = run_layers(sequential, lanes, x, weights)
        try:
            with recorder:
                answer = run_layers(project, lanes, x, weights, recorder.naming)
        except Exception as error:  # noqa: BLE001  # what a helper raises is a fact
            return _facts(setting, device, recorder, raised=f"{type(error).__name__}: {error}")
    every, wrong = _play(device, recorder, recorder.slot(answer), right)
    return _facts(setting, device, recorder, every, wrong, equal=not different_bits(answer, right))


def run_layers(
    project: Project,
    lanes: Lanes,
    x: Tensor,
    weights: tuple[Tensor, ...],
    naming: Naming = lambda _: nullcontext(),
    layers: int = LAYERS,
) -> Tensor:
    """Run layers in turn: each makes its input, projects it, and uses all results; all (n, hidden)."""
    for number in range(1, layers + 1):
        with naming(f"layer {number}"):
            x = _layer(project, lanes, x, weights, naming)
    return x


def _layer(project: Project, lanes: Lanes, x: Tensor, weights: tuple[Tensor, ...], naming: Naming) -> Tensor:
    with naming("input"):
        hidden = x + 1
    results = project(hidden, weights, lanes)
    with naming("use of the results"):
        return reduce(torch.add, results)


def _integers(projections: int, seed: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return x (3, 4) and weights (4, 4) of small whole numbers: sums are exact in whatever order."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(-2, 3, (HIDDEN, HIDDEN), generator=generator).float() for _ in range(projections)]
    return torch.randint(-2, 3, (TOKENS, HIDDEN), generator=generator).float(), tuple(drawn)


def _lanes(device: Device, recorder: Recorder) -> Lanes:
    done = tuple(Event(device) for _ in device.aux)
    return Lanes(Event(device), done, device.aux, device.on, recorder.keep)


def _play(device: Device, recorder: Recorder, answer: Slot, right: Tensor) -> tuple[int, list[Order]]:
    """Play all orders; return their number, and those without `right` in the slot `answer`."""
    every = list(islice(orders([stream.queue for stream in device.streams]), MOST_ORDERS + 1))
    if len(every) > MOST_ORDERS or not recorder.recorded:
        raise NotMeasured(
            f"{len(recorder.recorded)} operations in {len(every)} orders: too many to play, or none"
        )
    recorded = recorder.recorded
    return len(every), [one for one in every if different_bits(play(recorded, one, answer), right)]


def _facts(
    setting: Setting,
    device: Device,
    recorder: Recorder,
    every: int = 0,
    wrong: Sequence[Order] = (),
    *,
    equal: bool = False,
    raised: str = "",
) -> Recording:
    operations = tuple(call.operation for call in recorder.recorded)
    return Recording(
        setting.name,
        tuple(stream.name for stream in device.streams),
        operations,
        device.early_waits,
        every,
        len(wrong),
        equal,
        tuple(operations[number].name for number in (wrong[0] if wrong else ())),
        raised,
    )

"""Rows that `kernels --json` writes: kernels and graphs, launches of an interpreted step.

Each row is a dict from the names of its fields; `schema_version` determines which fields there are. Rows of
kernels and of launches begin with the same fields, which identify what was measured. No torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby

from deepstack_harness.compile.kernels import Measurement
from deepstack_harness.contract.facts import AccessFacts, Kernel, KernelAccess
from deepstack_harness.errors import NotMeasured

SCHEMA_VERSION = 1
"""Raised when a reader of the old rows would misread the new ones."""

JsonRow = Mapping[str, object]

_KERNEL_FIELDS = (
    "kernel", "kind", "points", "symbolic_points", "reduction", "rows", "symbolic_rows", "bytes",
    "ideal_bytes", "function", "grid", "candidates",
)  # fmt: skip


def kernel_rows(measured: Measurement) -> Iterator[JsonRow]:
    """Yield a row for each kernel in the order they run, and after the kernels of a graph its own row.

    In the row of a graph `kernel` is None and `kind` is `graph`; `points` and bytes are sums over its
    generated kernels, `symbolic_points` is that of the largest, `rows` the most of any kernel, and `kernels`,
    `largest` and `extern_bytes` are not None. Bytes and rows are as in `deepstack_harness.contract.facts`.
    """
    subject = measured.subject
    common = {
        **_measured_fields(measured),
        **{name: getattr(subject, name) for name in ("profile_tokens", "layers", "hidden")},
        **{name: getattr(measured, name) for name in ("seconds", "processor_seconds", "peak_bytes")},
    }
    for call in measured.calls:
        for kernel in call.kernels:
            yield {
                **common,
                "graph": call.graph,
                **{name: getattr(kernel, name) for name in _KERNEL_FIELDS},
                # In a static graph no size has a symbol, whether it is the tokens' or not.
                "carries_tokens": kernel.carries_tokens if call.symbolic else None,
                **dict.fromkeys(("kernels", "largest", "extern_bytes")),
            }
        yield {
            **common,
            **dict.fromkeys((*_KERNEL_FIELDS, "carries_tokens")),
            "graph": call.graph,
            "kind": "graph",
            **{name: getattr(call, name) for name in ("points", "rows", "bytes", "ideal_bytes")},
            "symbolic_points": call.largest.symbolic_points,
            "candidates": (),
            "kernels": len(call.generated),
            "largest": call.largest.points,
            "extern_bytes": call.extern_bytes,
        }


def _measured_fields(measured: Measurement) -> JsonRow:
    subject = measured.subject
    return {
        "schema_version": SCHEMA_VERSION,
        "system": "deepstack",
        "family": measured.family,
        **{name: getattr(subject, name) for name in ("revision", "arm", "target")},
        "device": measured.device,
        **{name: getattr(subject, name) for name in ("dtype", "tokens", "capacity")},
        "torch": measured.torch,
        "triton": measured.triton,
    }


_OF_TOKENS = ("hidden", "payload[", "buffer ", "a result of torch")
"""How the names of tensors begin that may have token rows; weights have the names of their modules."""


@dataclass(frozen=True)
class ExecutedLaunch:
    """One launch: what it touched, and the kernel whose bytes were counted from the scheduler's sizes."""

    number: int
    kernel: str
    accesses: tuple[KernelAccess, ...]
    counted: Kernel

    @property
    def rows(self) -> int:
        """The most rows that it touched of a tensor of token rows."""
        of_tokens = (access for access in self.accesses if access.tensor.startswith(_OF_TOKENS))
        return max((access.rows for access in of_tokens), default=0)

    @property
    def payload_rows(self) -> int:
        """The most rows that it touched of a level of the payload; 0 where it has nothing to do with one."""
        levels = (access for access in self.accesses if access.of_payload)
        return max((access.rows for access in levels), default=0)

    @property
    def bytes(self) -> int:
        """Bytes that it read and wrote; elements that it touched again count once."""
        return sum(access.bytes for access in self.accesses)


@dataclass(frozen=True)
class ExecutedStep:
    """The interpreted step of a subject, launch by launch."""

    measured: Measurement
    accesses: AccessFacts
    launches: tuple[ExecutedLaunch, ...]

    @property
    def bytes(self) -> int:
        """Bytes that all launches touched."""
        return sum(launch.bytes for launch in self.launches)

    @property
    def counted_bytes(self) -> int:
        """Bytes that were counted from the scheduler's sizes."""
        return sum(launch.counted.bytes for launch in self.launches)


def executed(measured: Measurement) -> ExecutedStep:
    """Return the launches of a measured step.

    Raises `NotMeasured` where nothing was interpreted, or the launches are not the generated kernels in
    their order.
    """
    if measured.accesses is None:
        raise NotMeasured("no launch was interpreted")
    counted = [kernel for call in measured.calls for kernel in call.generated]
    launched = [
        (number, tuple(accesses))
        for number, accesses in groupby(measured.accesses.accesses, key=lambda access: access.launch)
    ]
    names = [accesses[0].kernel for _, accesses in launched]
    functions = [kernel.function for kernel in counted]
    if names != functions:
        raise NotMeasured(
            f"{len(functions)} kernels were generated and {len(names)} launched, or in another order: "
            f"{', '.join(map(str, functions))} against {', '.join(names)}"
        )
    launches = (
        ExecutedLaunch(number, accesses[0].kernel, accesses, kernel)
        for (number, accesses), kernel in zip(launched, counted, strict=True)
    )
    return ExecutedStep(measured, measured.accesses, tuple(launches))


def executed_rows(step: ExecutedStep) -> Iterator[JsonRow]:
    """Yield a row for each launch, and then a row for each operation that was left to torch.

    `static_bytes` of a launch is the scheduler's count, `share` the part of the step's bytes that were
    measured.
    """
    measured = step.measured
    common = _measured_fields(measured)
    for launch in step.launches:
        yield {
            **common,
            "kind": "launch",
            "launch": launch.number,
            "kernel": launch.kernel,
            "rows": launch.rows,
            "payload_rows": launch.payload_rows,
            "bytes": launch.bytes,
            "static_bytes": launch.counted.bytes,
            "accesses": launch.accesses,
            "share": step.accesses.share,
            "step_processor_seconds": measured.step_processor_seconds,
        }
    for call in step.accesses.calls:
        named = ("schema_version", "system", "family", "revision", "target")
        yield {**{name: common[name] for name in named}, "kind": "library", **asdict(call)}

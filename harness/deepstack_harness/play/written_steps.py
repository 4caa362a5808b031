"""Programs that show a finding of `steps` with nothing but torch."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from deepstack_harness.catalogue.scripts import environment
from deepstack_harness.compile.compiled import GuardRecorder, compile_options
from deepstack_harness.contract.arm import ArmSpec, Capture, GuardPolicy, ShapePolicy
from deepstack_harness.contract.rules import Promise
from deepstack_harness.errors import UsageError
from deepstack_harness.play.region_calls import Call, Step

_FILTERS = {
    GuardPolicy.STOCK: "",
    GuardPolicy.DROP_ALL: "torch.compiler.skip_all_guards_unsafe",
    GuardPolicy.KEEP_TENSOR: "torch.compiler.keep_tensor_guards_unsafe",
}


def write_steps(  # what the program shows, and its steps
    target: str, make: str, steps: Sequence[Step], warm_up: int, *, promise: Promise, arm: str, limit: float
) -> str:
    """Return a program that shows a broken promise; `make` is an expression of the region, and of its steps.

    Without `steps` it has those that `make` returns. Raises `UsageError` for a step that cannot be written
    as text, and for a guard policy that torch itself does not offer.
    """
    module, _, name = target.partition(":")
    folder = Path(module).resolve().parent if module.endswith(".py") else Path.cwd()
    spec = ArmSpec.parse(arm)
    if spec.guards is GuardPolicy.SHAPE_ENV_ONLY:
        raise UsageError("a program with torch alone does not refuse to recompile, as shape_env_only does")
    guards = _FILTERS.get(spec.guards, "")
    others = {
        key: value
        for key, value in compile_options(spec, GuardRecorder(spec.guards)).items()
        if key != "guard_filter_fn"
    }
    written = [f'"guard_filter_fn": {guards}'] if guards else []
    written += [f'"{key}": {value!r}' for key, value in others.items()]
    text = environment().get_template("steps.py.jinja").render(
        title=f"{promise} {promise.word} is broken: {target} under {arm}.",
        folder=repr(str(folder)), module=Path(module).stem if module.endswith(".py") else module,
        name=name.partition(".")[0], make=make, calls=[_written(step) for step in steps],
        promise=str(promise), limit=repr(limit), warm_up=warm_up,
        replays=spec.capture is Capture.FULL, marks=spec.shapes is not ShapePolicy.STATIC,
        options=f"{{{', '.join(written)}}}" if written else "None", fullgraph=not spec.breaks,
        backend=spec.backend.compiler,
    )  # fmt: skip
    return text.strip() + "\n"


def _written(step: Step) -> str:
    if not isinstance(step, Call):
        name, value = getattr(step, "name", ""), getattr(step, "value", None)
        path, _, attribute = name.removeprefix("self").removeprefix(".").rpartition(".")
        if not name.startswith("self.") or "[" in name:
            raise UsageError(f"a change of {name or 'the region by a function'} is no text")
        return f"assign({path!r}, {attribute!r}, {value!r})"
    parts = [_value(value) for value in step.args]
    parts += [f"{name}={_value(value)}" for name, value in step.kwargs.items()]
    return f"Call({', '.join(parts)})"


def _value(value: object) -> str:
    """Return a value as an expression.

    Floating-point tensors are drawn anew, with their sizes and strides.
    """
    match value:
        case Tensor() if value.layout is not torch.strided or value.is_quantized:
            pass
        case Tensor() if value.is_floating_point():
            shape, dtype = tuple(value.shape), str(value.dtype)
            if value.dim() > 1 and not value.is_contiguous():
                swapped = (shape[1], shape[0], *shape[2:])
                return f"torch.randn({swapped}, dtype={dtype}).transpose(0, 1)"
            return f"torch.randn({shape}, dtype={dtype})"
        case Tensor() if value.numel() <= 256:
            return f"torch.tensor({value.tolist()}, dtype={value.dtype})"
        case None | bool() | int() | float() | str():
            return repr(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case tuple():
            return f"({''.join(f'{_value(member)}, ' for member in value)})"
        case dict():
            return f"{{{', '.join(f'{key!r}: {_value(member)}' for key, member in value.items())}}}"
    raise UsageError(f"{type(value).__name__} cannot be written as text")

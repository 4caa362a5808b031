"""Settings of the process that a graph is traced for, by names that people use.

Guards on them have no source (`GLOBAL_STATE` and others, torch 2.13 `_dynamo/guards.py`), and torch's text of
them is a dump of all settings. A backend that compiles ahead of time puts grad mode, autocast, the default
dtype and function modes into what it compiles.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack

Settings = Mapping[str, object]

SETTING_KINDS: Mapping[str, str] = {
    "grad mode": "GLOBAL_STATE",
    "autocast": "GLOBAL_STATE",
    "default dtype": "GLOBAL_STATE",
    "deterministic algorithms": "GLOBAL_STATE",
    "precision of products": "GLOBAL_STATE",
    "threads": "GLOBAL_STATE",
    "torch function modes": "TORCH_FUNCTION_STATE",
    "default device": "DEFAULT_DEVICE",
    "level of forward-mode AD": "DUAL_LEVEL",
}
"""Settings by name, and the kind of the guard that reads each."""


def process_settings() -> Settings:
    """Return the settings of this thread, in the order of `SETTING_KINDS`."""
    accelerator = torch.accelerator.current_accelerator()
    devices = dict.fromkeys(["cpu", "cuda", *([accelerator.type] if accelerator else [])])
    matmul = torch.backends.cuda.matmul
    values = (
        torch.is_grad_enabled(),
        tuple((name, torch.get_autocast_dtype(name)) for name in devices if torch.is_autocast_enabled(name)),
        torch.get_default_dtype(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (
            torch._C._get_cublas_allow_tf32(),
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
        ),
        torch.get_num_threads(),
        tuple(type(mode).__qualname__ for mode in _get_current_function_mode_stack()),  # type: ignore[no-untyped-call]
        torch.utils._device.CURRENT_DEVICE,
        forward_ad._current_level,
    )
    return dict(zip(SETTING_KINDS, values, strict=True))


def setting_text(value: object) -> str:
    """Return the value of a setting in a few words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        texts = (" ".join(map(setting_text, part)) if isinstance(part, tuple) else part for part in value)
        return ", ".join(map(setting_text, texts)) or "none"
    return str(value).removeprefix("torch.")


@contextmanager
def applied(settings: Settings, *, eager_kernels: bool) -> Iterator[None]:
    """Run the block as code runs that was compiled under `settings`: its grad mode, autocast, default dtype.

    What a function mode of the trace did to the operators is in the graph already, so none is active.
    Eager kernels follow the default dtype and the autocast of the call too.
    """
    wanted, now = _autocast(settings), _autocast(process_settings())
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(bool(settings["grad mode"])))
        for device in {*wanted, *now}:
            chosen = wanted.get(device) or (now.get(device) if eager_kernels else None)
            stack.enter_context(
                torch.autocast(device, dtype=chosen, enabled=chosen is not None, cache_enabled=False)
            )
        for _ in modes:
            torch._C._pop_torch_function_stack()
        if not eager_kernels:
            torch.set_default_dtype(settings["default dtype"])  # type: ignore[arg-type]
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            for mode in modes:
                torch._C._push_on_torch_function_stack(mode)


def _autocast(settings: Settings) -> dict[str, torch.dtype]:
    enabled = settings["autocast"]
    return dict(enabled) if isinstance(enabled, tuple) else {}

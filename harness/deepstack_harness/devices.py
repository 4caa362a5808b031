"""Names of dtypes and devices, as users write them, turned into torch's own."""

import torch

from deepstack_harness.errors import MachineError, UsageError, unknown_name

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as `float32`; raise `UsageError` with the known names."""
    if name not in DTYPES:
        raise unknown_name("dtype", name, DTYPES)
    return DTYPES[name]


def parse_device(name: str) -> torch.device:
    """Return the device of `cpu`, `cuda` or `cuda:1`.

    Raises `UsageError` for a bad name, `MachineError` where there is no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device '{name}'; known are cpu, cuda and cuda:N") from None
    if device.type not in {"cpu", "cuda"}:
        raise UsageError(f"device '{name}' is not supported; known are cpu, cuda and cuda:N")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise MachineError(
            f"device '{name}' is not available: torch {torch.__version__} sees {count} GPUs; use cpu"
        )
    # Tensors name their device with its index: 'cuda' alone would never equal theirs.
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device

"""Names of dtypes and devices, as users write them, turned into torch's own."""

import torch

from deepstack_harness.contract.places import check_device, check_dtype
from deepstack_harness.contract.trace import DTYPES
from deepstack_harness.errors import MachineError

_TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as `float32`; raise `UsageError` with the known names."""
    check_dtype(name)
    return _TORCH_DTYPES[name]


def parse_device(name: str) -> torch.device:
    """Return the device of `cpu`, `cuda` or `cuda:1`.

    Raises `UsageError` for a bad name, `MachineError` where there is no such device.
    """
    check_device(name)
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise MachineError(
            f"device '{name}' is not available: torch {torch.__version__} sees {count} GPUs; use cpu"
        )
    # Tensors name their device with its index: 'cuda' alone would never equal theirs.
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device

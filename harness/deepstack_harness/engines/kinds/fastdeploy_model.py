"""FastDeploy's class over torch tensors, with torch functions in place of those of Paddle that it uses."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.engines.bound_class import MethodsClass, misses_package
from deepstack_harness.engines.calls import BufferCalls
from deepstack_harness.engines.stand_ins import Host, Settings


def _zeros(
    *shape: int | list[int] | tuple[int, ...], dtype: str | torch.dtype | None = None, **_: object
) -> Tensor:
    """Return zeros of a shape, given as a list or as sizes; a dtype may be a name, as Paddle takes one."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    named: torch.dtype | None = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return torch.zeros(*sizes, dtype=named)


class PaddleHost(Host):
    """A base class of classes of FastDeploy."""

    def __init__(self, *_: object) -> None:
        """Make an empty module, of whatever settings."""
        super().__init__()


def _misses(error: Exception) -> bool:
    # Tensors here are torch's: a method or an argument that only Paddle has is no fault of the class.
    of_tensor = isinstance(error, AttributeError) and isinstance(error.obj, Tensor)
    return misses_package(error) or of_tensor or isinstance(error, TypeError)


class FastDeployClass(MethodsClass):
    """A class of FastDeploy, whose get returns a list of levels."""

    listed = True
    misses = staticmethod(_misses)

    @override
    def _config(
        self, capacity: int, hidden: int, levels: int, dtype: torch.dtype, device: torch.device
    ) -> Settings:
        root = "fd_config.model_config"
        vision = Settings(
            f"{root}.vision_config", deepstack_visual_indexes=list(range(levels)), out_hidden_size=hidden
        )
        model = Settings(root, dtype=dtype, hidden_size=hidden, max_model_len=capacity, vision_config=vision)
        scheduler = Settings("fd_config.scheduler_config", max_num_batched_tokens=capacity)
        return Settings("fd_config", model_config=model, scheduler_config=scheduler)

    @override
    def _arguments(self, config: Settings) -> dict[str, object]:
        return {"fd_config": config}


_LAYERS = Settings("paddle.nn", Layer=nn.Module)
_PADDLE = {"zeros": _zeros, "Tensor": Tensor, "no_grad": torch.no_grad, "nn": _LAYERS}
CALLS = BufferCalls(
    FastDeployClass,
    PaddleHost,
    {"paddle": Settings("paddle", **_PADDLE), "nn": _LAYERS},
    {f"paddle.{name}": value for name, value in _PADDLE.items()},
)

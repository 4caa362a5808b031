"""A model class of a source that has been defined: what both ways to drive one have in common."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from deepstack_harness.binding.cut_model import ModelCut
from deepstack_harness.binding.define import place_of
from deepstack_harness.binding.forward_buffer import ForwardHost
from deepstack_harness.binding.recording_model import RecordingModel
from deepstack_harness.binding.stand_ins import (
    FirstRank,
    Host,
    IntermediateTensors,
    Settings,
    StageMissingLayer,
    VisionTower,
)
from deepstack_harness.contract.buffer_ref import BufferRef
from deepstack_harness.errors import UsageError, passes_through
from deepstack_harness.sources.source import buffer_of

H = TypeVar("H", bound=Host)

_STAND_INS = (Host, Settings, VisionTower, StageMissingLayer, IntermediateTensors, RecordingModel, FirstRank)
_NAMES = frozenset(kind.__qualname__ for kind in (*_STAND_INS, ForwardHost))
"""Python's "Kind.method() got an unexpected keyword argument" begins with one where a stand-in takes less."""


@dataclass(frozen=True)
class BoundClass(Generic[H]):
    """A model class of one source; `host` is the class that was defined from `of`."""

    of: ModelCut
    host: type[H]

    @property
    def ref(self) -> BufferRef:
        """The reference by which cases and rows name the class."""
        return buffer_of(self.of.source, self.model_class)

    @property
    def label(self) -> str:
        """The source's label, such as `vllm 0.22.1`."""
        return self.of.source.label

    @property
    def model_class(self) -> str:
        """The class's own name."""
        return self.of.cut.class_name

    @property
    def filename(self) -> str:
        """The file that the class was cut from, as tracebacks show it."""
        return self.of.cut.filename

    @property
    def methods(self) -> Mapping[str, int]:
        """The methods that were cut, and their lines."""
        return self.of.cut.lines

    def refusal(self, error: Exception, method: str = "") -> UsageError:
        """Describe an error that comes of having cut the class out: file and line, class, and the error."""
        where = place_of(error, self.filename)
        return UsageError(
            f"{where}: {self.model_class}{method} cannot be run without the rest of its package: {error}"
        )

    def refused(self, error: Exception) -> UsageError:
        """Return an error that says what is wrong already as it is, and the refusal of any other."""
        return error if isinstance(error, UsageError) else self.refusal(error)

    def _instance(
        self, config: Settings, dtype: torch.dtype, device: torch.device, prepare: Callable[[H], None]
    ) -> H:
        """Make an object: `prepare` gives it what is around the buffer, then its `__init__` runs.

        dtype and device are the ambient ones, since the class names none.  Raises `UsageError`
        that names file and line when `__init__` cannot be run.
        """
        instance = self.host.__new__(self.host)
        try:
            with _ambient(dtype, device):
                prepare(instance)
                type(instance).__init__(instance, **self._arguments(config))
        except Exception as error:
            raise self.refusal(error, ".__init__") from error
        return instance

    def _arguments(self, config: Settings) -> dict[str, object]:
        """Return what the class's `__init__` takes of what an engine passes."""
        known: dict[str, object] = {"vllm_config": config, "prefix": ""}
        wanted = inspect.signature(self.host).parameters
        return {name: value for name, value in known.items() if name in wanted}


def misses_package(error: Exception) -> bool:
    """Tell whether cut code missed something that only the whole package would have."""
    return (
        isinstance(error, UsageError)
        or type(error) is NameError
        or (isinstance(error, AttributeError) and isinstance(error.obj, _STAND_INS))
        or (type(error) is TypeError and str(error).partition(".")[0] in _NAMES)
    )


@contextmanager
def rehearsing(
    refusal: Callable[[Exception], UsageError], misses: Callable[[Exception], bool] = misses_package
) -> Iterator[None]:
    """Raise the `refusal` of an error that comes of having cut code out, while code is called once.

    Any other error is the code's own fault, and for the run to report: the block ends without it.
    """
    try:
        yield
    except Exception as error:
        if misses(error):
            refused = refusal(error)
            if refused is error:
                raise
            raise refused from error
    except BaseException as error:  # SystemExit of a method is its own fault as well
        if passes_through(error):
            raise


@contextmanager
def _ambient(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Make `dtype` and `device` those of tensors that are made without naming any."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)

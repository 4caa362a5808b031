"""References to buffers: registered ones, a user's classes, classes of a package's source, live objects."""

from dataclasses import dataclass
from enum import StrEnum

from deepstack_harness.errors import UsageError


class BufferKind(StrEnum):
    """The place that a buffer's code comes from.

    REGISTERED: a revision or a mutant of ours, by its name in the registry.  USER: a class that is imported
    where the case is played.  SOURCE: a class that was cut out of a package's source; whoever plays the case
    binds it.  LIVE: an object of the running process, which a test handed over.
    """

    REGISTERED = "registered"
    USER = "user"
    SOURCE = "source"
    LIVE = "live"


@dataclass(frozen=True)
class BufferRef:
    """A buffer implementation, as cases and their records name it.

    `name` is for readers: the registered name, `MODULE:CLASS` of a user's class or a live object, or the
    label of a source (`vllm 0.22.1`, `vllm at PATH (VERSION)`).  `package`, `version` (None if unknown) and
    `model_class` are of sources only.  `replayed`: get and clear run once for each size, and what
    they did is repeated afterwards, as a FULL CUDA graph does (`deepstack_harness.binding.replayed`).
    """

    kind: BufferKind
    name: str
    package: str | None = None
    version: str | None = None
    model_class: str | None = None
    replayed: bool = False

    @property
    def source(self) -> str | None:
        """The label of the source; None for buffers that come from none."""
        return self.name if self.kind is BufferKind.SOURCE else None

    @property
    def identity(self) -> str:
        """Text that differs for any two buffers that are not the same."""
        return " ".join(filter(None, [self.name, self.model_class, "replayed" if self.replayed else None]))


def registered(name: str) -> BufferRef:
    """Return the reference of a revision or a mutant; nobody checks here that it exists."""
    return BufferRef(BufferKind.REGISTERED, name)


def user_buffer(name: str) -> BufferRef:
    """Return the reference of a user's class; raises `UsageError` for a name that is no `MODULE:CLASS`."""
    module, _, class_name = name.partition(":")
    if not module or not class_name:
        raise UsageError(f"'{name}' is not MODULE:CLASS, as in my_package.buffers:MyBuffer")
    return BufferRef(BufferKind.USER, name)


def live_buffer(name: str) -> BufferRef:
    """Return the reference of an object in this process, by the name that a report is to show."""
    return BufferRef(BufferKind.LIVE, name)


def source_buffer(package: str, version: str | None, label: str, model_class: str) -> BufferRef:
    """Return the reference of a class in the source with this package, version (None: unknown) and label."""
    return BufferRef(BufferKind.SOURCE, label, package, version, model_class)

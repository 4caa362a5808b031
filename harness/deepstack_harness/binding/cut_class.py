"""What a class that was cut out of a source knows of itself, however it is driven."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from deepstack_harness.binding.ambient import place_of
from deepstack_harness.binding.cut import HOST, Cut, Inherited, class_named, members_of
from deepstack_harness.binding.module_names import parse
from deepstack_harness.binding.stand_ins import Host, Settings
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source

H = TypeVar("H", bound=Host)


@dataclass(frozen=True)
class Model:
    """Where a model class is defined, and the first release that has its buffer.

    `nested` names the part of the Hugging Face configuration that is the model's own.
    """

    member: str
    class_name: str
    since: str
    nested: str | None = None


@dataclass(frozen=True)
class CutClass(Generic[H]):
    """A model class of one source; `host` is the class that was compiled."""

    source: Source
    model: Model
    cut: Cut
    host: type[H]

    @property
    def label(self) -> str:
        """The source's: `vllm 0.22.1`."""
        return self.source.label

    @property
    def model_class(self) -> str:
        """The class's own name."""
        return self.cut.class_name

    @property
    def filename(self) -> str:
        """The file it was cut from, as tracebacks show it."""
        return self.cut.filename

    @property
    def methods(self) -> Mapping[str, int]:
        """The methods that were cut, and their lines."""
        return self.cut.lines

    def inherited(self) -> Inherited:
        """What a class in another file gets from this one."""
        tree = parse(self.source.read(self.model.member).text, self.filename)
        return Inherited(members_of(class_named(tree, self.model_class, self.filename), tree), self.cut)

    def refusal(self, error: Exception, method: str = "") -> UsageError:
        """For what only the whole vLLM has: file and line, class, and what was missed."""
        where = place_of(error, self.filename)
        return UsageError(f"{where}: {self.model_class}{method} cannot be run without vLLM: {error}")

    def arguments(self, config: Settings) -> dict[str, object]:
        """What the class's `__init__` takes, of what an engine passes."""
        known: dict[str, object] = {"vllm_config": config, "prefix": ""}
        wanted = inspect.signature(self.host).parameters
        return {name: value for name, value in known.items() if name in wanted}


def define(done: Cut, names: Mapping[str, object], host: type[H]) -> type[H]:
    """Execute a cut module: it defines the class, over `host`, where `names` are known besides.

    Raises `UsageError` with file and line when that needs the whole vLLM.
    """
    known = {"__name__": f"{__name__}.{done.class_name}", HOST: host, **names}
    try:
        exec(done.code, known)
    except Exception as error:
        where = place_of(error, done.filename)
        raise UsageError(f"{where}: {done.class_name} cannot be defined without vLLM: {error}") from error
    defined = known[done.class_name]
    assert isinstance(defined, type)
    assert issubclass(defined, host)
    return defined

"""The parts of an engine whose payload is an argument, as importing its package makes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from deepstack_harness.engines.discover import ArgumentModel, ClassPart
from deepstack_harness.engines.load import LoadedSource
from deepstack_harness.engines.loaded_class import derive_class
from deepstack_harness.engines.model_class import KnownModel
from deepstack_harness.errors import Reason, UsageError, reason_of


@dataclass(frozen=True)
class Hosts:
    """The classes of ours that the parts of one engine are derived from too, as far as it has them.

    `names` has the objects that the code of the engine finds under these names, in whatever module.
    """

    text: type[nn.Module]
    wrapper: type[nn.Module] = nn.Module
    runner: type[nn.Module] = nn.Module
    names: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ArgumentParts:
    """A text model that is given the payload, and the engine around it.

    `known` is what is known of the text model, and `text` its class. An engine whose text models are given
    mask and levels as they come has None for `wrapper` and `writer`. `runner` is a reason where the source
    has none that can be called.
    """

    found: ArgumentModel
    known: KnownModel
    text: Any
    wrapper: Any
    writer: Callable[..., Any] | None
    runner: Any

    @property
    def runner_verbs(self) -> Mapping[str, str]:
        """Methods of the runner.

        `get` captures the text model, and is missing where the runner captures no graph around it; `set` runs
        a step that replays the graph.
        """
        part = self.found.runner
        return (part.called.verbs or {}) if isinstance(part, ClassPart) else {}


def load_parts(loaded: LoadedSource, found: ArgumentModel, hosts: Hosts) -> ArgumentParts:
    """Import the parts; raise `UsageError`, with file and line, for those that cannot be made."""
    files, names = found.files, hosts.names
    known, text = derive_class(loaded, found.text, files.text, hosts.text, names)
    wrapper = writer = None
    if files.wrapper is not None:
        _, wrapper = derive_class(loaded, files.wrapper.model, files.wrapper.called, hosts.wrapper, names)
    if files.writer is not None:
        writer = loaded.supplied(*files.writer, names)
    part: ClassPart | Reason = found.runner
    runner: type[nn.Module] | Reason
    if isinstance(part, Reason):
        runner = part
    else:
        try:
            _, runner = derive_class(loaded, part.model, part.called, hosts.runner, names)
        except UsageError as error:
            runner = reason_of(error)
    return ArgumentParts(found, known, text, wrapper, writer, runner)

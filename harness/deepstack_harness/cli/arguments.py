"""Options that several commands share: removed options, the source, and how an ended command goes on."""

import shlex
from argparse import SUPPRESS, Action, ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from typing_extensions import override

from deepstack_harness.errors import UsageError


class _RefusedOption(Action):
    """An option that a command does not have, refused with the sentence in its `metavar`."""

    @override
    def __call__(
        self, parser: object, namespace: object, values: object, option: str | None = None
    ) -> NoReturn:
        raise UsageError(str(self.metavar))


def add_refused(parser: ArgumentParser, option: str, sentence: str, nargs: str | int = 0) -> None:
    """Refuse an option that would mean nothing with the reason."""
    parser.add_argument(
        option, action=_RefusedOption, nargs=nargs, default=SUPPRESS, help=SUPPRESS, metavar=sentence
    )


def add_removed(parser: ArgumentParser, option: str, replacement: str) -> None:
    """Refuse an option of an earlier version with a sentence that names what replaces it."""
    add_refused(parser, option, f"{option} was removed: {replacement}", nargs="?")


def add_device_and_dtype(parser: ArgumentParser) -> None:
    """Add `--device` and `--dtype`, which `check_device` and `check_dtype` of `contract.case` judge."""
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument(
        "--dtype", default="float32", metavar="D", help="float32 (default), bfloat16, float16 or float64"
    )


def add_removed_adapter_options(parser: ArgumentParser) -> None:
    """Refuse the options that described a buffer of another shape or with other names."""
    for option in ("--adapter", "--shape", "--rows", "--capacity"):
        add_removed(
            parser, option,
            "write it as an adapter class: 'check MODULE:CLASS --write-adapter FILE.py' makes one, and "
            "'check FILE.py:Adapter' or 'fuzz --buffer FILE.py:Adapter' takes it",
        )  # fmt: skip


def options_in_use(args: Namespace, defaults: Mapping[str, object]) -> str:
    """Return those options, "--trace, --full", whose value is not the one in `defaults`; "" for none."""
    names = [name for name, default in defaults.items() if getattr(args, name) != default]
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


@contextmanager
def resumable(args: Namespace, folder: Path, purpose: str) -> Iterator[None]:
    """Note with a `KeyboardInterrupt` the command that continues in the folder, and for what `purpose`."""
    try:
        yield
    except KeyboardInterrupt as error:
        where = "" if args.out else f" --out {shlex.quote(str(folder))}"
        error.add_note(f"{purpose}: {args.typed}{where}{'' if args.resume else ' --resume'}")
        raise


SOURCE_HELP = (
    "a release (vllm==0.22.1), installed:vllm, or the path of a wheel, an sdist (.tar.gz, .zip) "
    "or a source tree"
)
_SHORT = "short for --source vllm==X; X may also be a path or 'installed'"


def _of_vllm(text: str) -> str:
    """Return the source that the value of `--vllm` is short for; raises `UsageError`."""
    from deepstack_harness.engines.kinds.vllm import VLLM
    from deepstack_harness.sources.request import expand_shorthand

    return expand_shorthand(VLLM.package.name, text)


def add_source(parser: ArgumentParser | _ArgumentGroup, help_text: str) -> None:
    """Add the options for one source, `args.source`, None where there is none.

    Give a mutually exclusive group, so that one of both can be used only.
    """
    parser.add_argument("--source", metavar="SOURCE", help=f"{help_text}: {SOURCE_HELP}")
    parser.add_argument("--vllm", dest="source", metavar="X", type=_of_vllm, help=_SHORT)


def add_sources(parser: ArgumentParser, help_text: str) -> None:
    """Add the options for any number of sources, `args.source`, in the order in which they are given."""
    for name, reads, text in (
        ("--source", str, f"{help_text}, may be repeated: {SOURCE_HELP}"),
        ("--vllm", _of_vllm, _SHORT),
    ):
        parser.add_argument(
            name,
            dest="source",
            action="append",
            default=[],
            metavar="SOURCE" if name == "--source" else "X",
            type=reads,
            help=text,
        )

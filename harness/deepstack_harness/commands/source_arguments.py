"""The options that name a source: `--source`, and `--vllm` as its short form."""

from argparse import ArgumentParser, _ArgumentGroup
from functools import partial

from deepstack_harness.engines.vllm import VLLM
from deepstack_harness.sources.requirement import expand_shorthand

SOURCE_HELP = (
    "a release (vllm==0.22.1), installed:vllm, or the path of a wheel, an sdist (.tar.gz, .zip) "
    "or a source tree"
)
_SHORT = "short for --source vllm==X; X may also be a path or 'installed'"
_of_vllm = partial(expand_shorthand, VLLM.package.name)


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

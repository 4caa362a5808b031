"""Parses the command line, and turns every outcome into a documented exit code."""

import argparse
import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from deepstack_harness import __version__
from deepstack_harness.errors import ExitCode, HarnessError, UsageError
from deepstack_harness.reporting.terminal.output import Output

COMMANDS = (
    "list",
    "repro",
    "audit",
    "check",
    "fuzz",
    "kernels",
    "selftest",
    "run",
    "compare",
    "report",
    "nightly",
    "doctor",
)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_JUDGEMENTS = {ExitCode.HOLDS, ExitCode.BROKEN}
_CODES = (
    "exit codes: 0 what was asked holds, 1 judged and it does not, 2 the call was wrong, "
    "3 the machine cannot, 4 a bug of the harness"
)


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing the usage: every wrong call ends in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that `words` begin with, or of all commands; costs no torch."""
    known = [words[0]] if words and words[0] in COMMANDS else COMMANDS
    parser = _Parser(
        prog="python -m deepstack_harness",
        description="Find what torch.compile does to models that keep state in side buffers.",
        epilog=_CODES,
    )
    parser.add_argument("--version", action="version", version=f"deepstack-harness {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in known:
        module = _module(name)
        child = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY, epilog=_CODES)
        module.add_arguments(child)
        _add_common(child)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; answers its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = _guarded(words)
    if "--bisect" in words and code not in _JUDGEMENTS:
        return ExitCode.BISECT_SKIP
    return code


def _guarded(words: Sequence[str]) -> ExitCode:
    try:
        args = build_parser(words).parse_args(words)
        output = Output(args.json, quiet=args.quiet)
        with _interruptible(), _notices(quiet=args.quiet), contextlib.closing(output):
            code: ExitCode = _module(args.command).run(args, output)
            return code
    except HarnessError as error:
        print(f"deepstack-harness: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output left (`| head`): not our error, and nothing to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.MACHINE
    except KeyboardInterrupt:
        print("deepstack-harness: interrupted", file=sys.stderr)
        return ExitCode.MACHINE
    except Exception:  # noqa: BLE001  # whatever is left is our own bug, and has its exit code
        traceback.print_exc()
        print(
            "deepstack-harness: this is a bug of the harness; please report the lines above", file=sys.stderr
        )
        return ExitCode.BUG


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Being told to end is as Ctrl-C: what was started ends with us, and temporary folders go.

    What the caller ignores, as nohup does, stays ignored.
    """
    # Python lets the main thread alone change this.
    ours = _ENDING if threading.current_thread() is threading.main_thread() else ()
    heard = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _notices(*, quiet: bool) -> Iterator[None]:
    """What the harness's loggers say (an unwritable cache, a long download) goes to stderr, as errors do."""
    logger, handler = logging.getLogger("deepstack_harness"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("deepstack-harness: %(message)s"))
    handler.setLevel(logging.ERROR if quiet else logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _add_common(parser: argparse.ArgumentParser) -> None:
    common = parser.add_argument_group("output")
    common.add_argument(
        "--json",
        metavar="FILE",
        help="write one JSON object per line; '-' is stdout, and nothing else is on it",
    )
    common.add_argument("--quiet", action="store_true", help="print nothing but errors")
    common.add_argument(
        "--bisect", action="store_true", help="exit 125 wherever nothing was judged, for 'git bisect run'"
    )


def _module(name: str) -> Any:  # noqa: ANN401  # a module; mypy knows no type for its functions
    return importlib.import_module(f"deepstack_harness.commands.{name}")

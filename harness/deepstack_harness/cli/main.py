"""Parse the command line, run one command, and turn every outcome into a documented exit code."""

import argparse
import atexit
import contextlib
import importlib
import logging
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from deepstack_harness import __version__
from deepstack_harness.cli.output import Output, OutputLost, abandon, prepare_streams, say
from deepstack_harness.errors import (
    ExitCode,
    HarnessError,
    UsageError,
    missing_extra,
    torch_problem,
    unknown_name,
)

COMMANDS = {
    "list": "list incidents, live faults, families, revisions, mutants, variants, callers, arms, rules, "
    "engines and extensions",
    "show": "show one incident in full: symptom, cause, reports, releases, and what is played",
    "affected": "print what is known of a release of an engine, without playing anything",
    "repro": "show an incident on known-bad and known-good revisions, or judge a vLLM by it",
    "audit": "judge the deepstack classes of one or more sources by all rules, and the systems around them",
    "check": "test a buffer class of your own against the contract",
    "steps": "run any function or module over calls that differ from its warm-up, compiled and not",
    "fuzz": "search for broken rules with random token counts and lifecycles; shrink each finding",
    "kernels": "show the generated kernels and their sizes, also for a GPU that is not here",
    "engine": "run a real engine end to end on tiny models, under schedules of requests",
    "selftest": "check that each mutant is caught only by its own rule, and that right buffers break none",
    "run": "run the matrix of families, revisions, traces, arms, dtypes and devices, in parallel",
    "compare": "compare two runs: regressions, improvements, missing and new results",
    "report": "show a run as a terminal table, an HTML page, Markdown, GitHub annotations or JUnit XML",
    "nightly": "run tests, matrix, kernels, fuzzing, comparison and report, each in a process of its own",
    "watch": "run a program, and list the dropped guards that fail in its compiled regions",
    "doctor": "show what this machine can run, and why it cannot run the rest",
}
"""The commands in the order of `--help`, and what each does; `cli/NAME.py` has its options and its work."""
_JUDGING = frozenset(
    {"repro", "audit", "check", "steps", "fuzz", "kernels", "engine", "selftest", "run", "compare", "watch"}
)
"""Commands whose exit code is about a commit, so that `git bisect run` can use it."""
_RUNS_FOREIGN_CODE = frozenset({"repro", "audit", "check", "steps", "fuzz", "run", "nightly"})
"""Commands that run code of a source or of a user in a sandbox."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_JUDGEMENTS = {ExitCode.HOLDS, ExitCode.BROKEN}
_CODES = (
    "exit codes: 0 as it should be, 1 not as it should be, 2 wrong usage, "
    "3 not possible on this machine, 4 a bug of the harness"
)


class _Parser(argparse.ArgumentParser):
    """Parser that raises instead of printing the usage: every wrong call ends in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands; those that `words` name have their options too.

    The modules of other commands are not imported, and none of them imports torch.  Raises `UsageError` for
    an unknown command.
    """
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise unknown_name("command", words[0], COMMANDS)
    parser = _Parser(
        prog=_typed_name(),
        description="Find what torch.compile does to models that keep state in side buffers.",
        epilog=_CODES,
    )
    parser.add_argument("--version", action="version", version=f"deepstack-harness {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        child = commands.add_parser(name, help=summary, description=summary, epilog=_CODES)
        if name in words:
            _module(name).add_arguments(child)
            _add_common(child, name)
    return parser


def _typed_name() -> str:
    """Return what the user typed to start this program, for usage lines."""
    module = Path(sys.argv[0]).name == "__main__.py"
    return "python -m deepstack_harness" if module else "deepstack-harness"


def _settle_streams() -> None:
    """Drop what cannot be written: Python would try again when it ends, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            abandon(stream)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Without `argv` this is the program itself: ended by Ctrl-C or a signal, it ends the process with that
    signal, so that a shell loop around it stops; with `argv` it returns 128 and the signal's number.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        # First registered is called last: temporary folders and workers are gone by then.
        atexit.register(_end)
        prepare_streams()
    try:
        code: int = _guarded(words)
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, _EndedBySignal) else signal.SIGINT
        say(
            "deepstack-harness: interrupted"
            if number == signal.SIGINT
            else f"deepstack-harness: ended by {number.name}"
        )
        for note in getattr(error, "__notes__", ()):
            say(f"deepstack-harness: {note}")
        if argv is None:
            _ENDED_BY.append(number)
        return 128 + number
    own = words[: words.index("--")] if "--" in words else words
    if "--bisect" in own and own[0] in _JUDGING and code not in _JUDGEMENTS:
        return ExitCode.BISECT_SKIP
    return code


class _EndedBySignal(KeyboardInterrupt):
    """Signal to end this process, other than that of Ctrl-C."""

    def __init__(self, number: int, _frame: object) -> None:
        self.number = signal.Signals(number)


def _raise_ended(number: int, frame: object) -> NoReturn:
    raise _EndedBySignal(number, frame)


_ENDED_BY: list[signal.Signals] = []


def _end() -> None:
    """Flush the streams; end this process with the signal that ended its work, as its parent expects."""
    _settle_streams()
    for number in _ENDED_BY:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _guarded(words: Sequence[str]) -> int:
    try:
        args = build_parser(words).parse_args(words)
        _refuse_empty(args)
        args.typed = shlex.join([*_typed_name().split(), *words])
        from deepstack_harness.workers.profiles import switched_off

        output = Output(args.json, quiet=args.quiet, progress=args.progress)
        off = switched_off(off=getattr(args, "no_sandbox", False))
        with _interruptible(), _notices(quiet=args.quiet), off, contextlib.closing(output):
            code: int = output.show(_module(args.command).run(args))
            return code
    except HarnessError as error:
        say(f"deepstack-harness: {error}")
        return error.exit_code
    except OutputLost as error:
        abandon(sys.stdout)
        if error.reason:  # else the reader of our output left (`| head`): no error, and nothing to report
            say(f"deepstack-harness: cannot write to stdout: {error.reason}")
        return ExitCode.MACHINE
    except Exception as error:  # noqa: BLE001  # whatever is left is our own bug, and has its exit code
        problem = torch_problem(error) or missing_extra(error)
        if problem is not None:
            say(f"deepstack-harness: {problem}")
            return ExitCode.MACHINE
        say(traceback.format_exc())
        say("deepstack-harness: this is a bug of the harness; please report the lines above")
        return ExitCode.BUG


def _refuse_empty(args: argparse.Namespace) -> None:
    """Raise `UsageError` for a value of no characters, such as that of an unset variable in a shell."""
    for name, value in vars(args).items():
        if name == "program":  # words of another program, which may be empty
            continue
        if "" in (value if isinstance(value, list) else [value]):
            raise UsageError(f"{name.replace('_', '-')} is empty: give a value, or leave the option out")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Treat a signal to end like Ctrl-C: what was started ends with us, and temporary folders go.

    What the caller ignores, as nohup does, stays ignored.
    """
    # Python lets only the main thread change this.
    ours = _ENDING if threading.current_thread() is threading.main_thread() else ()
    heard = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _raise_ended) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _notices(*, quiet: bool) -> Iterator[None]:
    """Send warnings of our loggers (an unwritable cache, a long download) to stderr, as errors go there."""
    logger, handler = logging.getLogger("deepstack_harness"), _Notices()
    handler.setLevel(logging.ERROR if quiet else logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Notices(logging.Handler):
    """A handler that writes to stderr as errors are written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one cleaned line."""
        say(f"deepstack-harness: {record.getMessage()}")


def _add_common(parser: argparse.ArgumentParser, command: str) -> None:
    from deepstack_harness.cli.arguments import add_refused

    common = parser.add_argument_group("output")
    common.add_argument(
        "--json",
        metavar="FILE",
        help="write one JSON object per line; '-' is stdout, which then gets nothing else",
    )
    common.add_argument("--quiet", action="store_true", help="print errors only")
    common.add_argument(
        "--progress",
        action="store_true",
        help="write each step of the work as a line to stderr, with --quiet and in a pipe too",
    )
    if command in _JUDGING:
        common.add_argument(
            "--bisect",
            action="store_true",
            help="exit with 125 instead of 2 to 4, so that 'git bisect run' skips the commit",
        )
    else:
        add_refused(parser, "--bisect", f"--bisect: '{command}' judges no commit; {_those(_JUDGING)} do")
    if command in _RUNS_FOREIGN_CODE:
        parser.add_argument_group("trust").add_argument(
            "--no-sandbox",
            action="store_true",
            help="let the code under test write files, use the network and start processes",
        )
    else:
        sentence = f"--no-sandbox: '{command}' has no sandbox; {_those(_RUNS_FOREIGN_CODE)} have one"
        add_refused(parser, "--no-sandbox", sentence)


def _those(commands: frozenset[str]) -> str:
    *before, last = (name for name in COMMANDS if name in commands)
    return f"{', '.join(before)} and {last}"


def _module(name: str) -> Any:  # noqa: ANN401  # a module; mypy knows no type for its functions
    return importlib.import_module(f"deepstack_harness.cli.{name}")

"""Play the sample programs of a checkout, or the scripts of its incidents, and print a row of JSON for each.

`tools.freeze` runs this file in the environment of the checkout that it measures: what is here works with the
checkout's public calls, and with the folders of sample programs of any of its commits.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
import json
import pkgutil
import random
import re
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ARMS = ("eager/stock", "eager/drop_all", "aot_eager/drop_all", "eager/full")
STEPS = {
    "deepstack_harness.models.histories": "list[object]",
    "cases.selftest.play.step_programs": "list[object]",
    "cases.specimens": "tuple[typing.Any, ...]",
}
"""Modules of programs for `steps` and what a program returns; 0d83418 has the first two only."""
MOVED = {"cases.specimens.programs": "cases.selftest.play.step_programs"}
"""Modules of programs whose rows have the name that they had in the snapshot."""
WATCHED = "cases.selftest.compile.watched_programs"
LATE = "cases.selftest.compile.late_programs"
"""0d83418 does not have it."""
CAPTURED = "cases.selftest.compile.captured_programs"
"""Only older commits have it."""
_MARK = re.compile(r"^( *)\S.*  # THE FAULT; the fix: (.+)$", re.MULTILINE)

Row = dict[str, Any]


def nullary(name: str, returns: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the functions without arguments of a module, and of those in its package, by what they return."""
    package = importlib.import_module(name)
    found = pkgutil.iter_modules(getattr(package, "__path__", []), f"{name}.")
    for module in (package, *(importlib.import_module(each.name) for each in found)):
        for function_name, function in sorted(vars(module).items()):
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            signature = inspect.signature(function)
            if not signature.parameters and returns in str(signature.return_annotation):
                yield f"{MOVED.get(module.__name__, module.__name__)}:{function_name}", function


def steps() -> Iterator[Row]:
    """Yield a row for each program, arm and promise; the text of an exception is the result of a program."""
    from deepstack_harness import compile_steps

    there = [module for module in STEPS if importlib.util.find_spec(module)]
    for name, program in (program for module in there for program in nullary(module, STEPS[module])):
        torch.compiler.reset()
        torch.manual_seed(0)  # of weights that a program does not seed
        random.seed(0)
        try:
            region, calls, *options = program()
            judged = compile_steps(region, calls, arms=ARMS, **(options[0] if options else {}))
        except Exception as error:  # noqa: BLE001  # a result like another
            yield {"program": name, "problem": f"raised {type(error).__name__}: {error}"}
            continue
        if judged.unjudged:
            yield {"program": name, "problem": f"not judged: {'; '.join(judged.unjudged)}"}
        for row in judged.rows:
            yield {
                "program": name, "arm": row.arm, "promise": row.promise, "verdict": row.verdict,
                "value": row.value, "limit": row.limit, "effect": row.effect, "chances": row.chances,
                "steps": row.steps, "inputs": row.inputs, "guards": row.guards,
            }  # fmt: skip


def watch() -> Iterator[Row]:
    """Yield what a watch sees in each program whose guards are dropped."""
    from deepstack_harness import watch_guards

    module = importlib.import_module(WATCHED)
    there = [program for name in ("WRONG", "RIGHT", "SPECIAL") for program in getattr(module, name, ())]
    programs = [(each, module.compile_without_guards) for each in there]
    if importlib.util.find_spec(LATE):
        late = importlib.import_module(LATE)
        programs += [(each, module.compile_without_guards) for each in (*late.LATE_WRONG, *late.LATE_RIGHT)]
        by_aot = functools.partial(module.compile_without_guards, backend="aot_eager")
        by_aot = getattr(late, "compile_by_aot", by_aot)  # older commits have a function of its own
        programs += [(each, by_aot) for each in late.AOT_WRONG]
    for program, start in programs:
        torch.compiler.reset()
        with watch_guards() as watched:
            differs = "raised"
            # A graph for other inputs may fail by itself.
            with contextlib.suppress(RuntimeError, TypeError, IndexError):
                played = module.play(program, start)
                pairs = zip(played.compiled, played.eager, strict=True)
                differs = str(any(one.shape != two.shape or not torch.equal(one, two) for one, two in pairs))
        yield seen(f"{program.__module__}:{program.__name__}", watched, differs)
    yield from watched_specimens("eager/drop_all")


def watched_specimens(arm: str) -> Iterator[Row]:
    """Yield what a watch sees in each specimen that states an arm; older commits have none."""
    if importlib.util.find_spec("cases.specimens"):
        names = (
            each.name for each in pkgutil.iter_modules(importlib.import_module("cases.specimens").__path__)
        )
        for name in names:
            importlib.import_module(f"cases.specimens.{name}")
        playing = importlib.import_module("cases.specimens.playing")
        for each in importlib.import_module("cases.specimens.kit").PROGRAMS.values():
            if arm in each.arms:
                replays = arm == "eager/full"
                watched = playing.watch_replays(each) if replays else playing.watch(each, "eager")
                yield seen(f"cases.specimens:{each.name}", watched, "")


def captured() -> Iterator[Row]:
    """Yield what a watch sees in each program that captures a graph and replays it."""
    from pytest import MonkeyPatch  # noqa: PT013  # the stand-ins for graphs of a GPU are put in place by it

    from deepstack_harness.compile.watch_captured import watch_captured
    from deepstack_harness.compile.watch_facts import WatchedRegions

    if not importlib.util.find_spec(CAPTURED):
        yield from watched_specimens("eager/full")
        return
    programs = importlib.import_module(CAPTURED)
    graphs = importlib.import_module("cases.selftest.compile.recorded_graphs")
    runner = importlib.import_module("cases.selftest.compile.test_watch_captured")
    with MonkeyPatch.context() as patch:
        graphs.use_recorded_graphs(patch)
        for program in (*programs.WRONG, *programs.RIGHT):
            watched, run = WatchedRegions(), runner.Run()
            with watch_captured(watched):
                program(run.start)
            yield seen(f"{CAPTURED}:{program.__name__}", watched, str(not all(run.equal)))


def seen(name: str, watched: Any, differs: str) -> Row:  # noqa: ANN401  # of any commit
    """Return the row of one watch: calls, and each failed guard that decides."""
    guards = [
        f"{guard.source} {guard.kind} {guard.guard_class}: {guard.then} -> {guard.now}, "
        f"call {guard.first_call}, {guard.calls} calls; {guard.effect}"
        for guard in watched.decisive
    ]
    calls = [[region.name, region.calls, region.unseen] for region in watched.regions]
    return {"program": name, "differs": differs, "regions": calls, "decisive": guards}


def selftest(kind: str) -> Iterator[Row]:
    """Yield the rows of `selftest` for mutants (with the control), for other right buffers or for regions.

    It takes names of mutants and regions only, and plays the right buffers with all of them.
    """
    from deepstack_harness.catalogue.buffers import ALL_MUTANTS
    from deepstack_harness.catalogue.regions import REGIONS

    if kind == "right":
        yield from right_buffers()
        return
    command = [sys.executable, "-m", "deepstack_harness", "selftest", "--json", "-"]
    names = {"mutants": ALL_MUTANTS, "regions": REGIONS}[kind]
    done = subprocess.run([*command, *names], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode > 1:
        sys.exit(done.returncode)
    yield from map(json.loads, done.stdout.splitlines())


def right_buffers() -> Iterator[Row]:
    """Yield the proofs of right buffers that `selftest` plays only when it is given no name."""
    from deepstack_harness.catalogue.buffers import ALL_MUTANTS
    from deepstack_harness.cli.selftest import record_of
    from deepstack_harness.files import store_hypothesis_in_cache

    store_hypothesis_in_cache()  # read when Hypothesis is imported
    from deepstack_harness.fuzz.selftest import prove
    from deepstack_harness.fuzz.trials import trials_for

    named = trials_for(ALL_MUTANTS, 0, right=False)
    yield from map(record_of, prove([each for each in trials_for(ALL_MUTANTS, 0) if each not in named], 2))


def scripts(folder: str) -> Iterator[Row]:
    """Yield the exit code of each script of a folder, as it is and with its marked line repaired.

    The harness cannot be imported while they run: what is written for an upstream issue needs torch only.
    """
    sys.modules["deepstack_harness"] = None  # type: ignore[assignment]
    for path in sorted(Path(folder).glob("*.py")):
        text = path.read_text()
        repaired = path.with_name(f"{path.stem}_fixed")
        repaired.write_text(_MARK.sub(r"\1\2", text))
        marks = len(_MARK.findall(text))
        yield {"script": path.stem, "exit": ended(path)}
        yield {"script": f"{path.stem}, fixed", "exit": ended(repaired) if marks == 1 else f"{marks} marks"}


def ended(path: Path) -> int | str:
    """Run a file as a program and return its exit code, or what it raised."""
    torch.compiler.reset()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            return 1 if isinstance(end.code, str) else int(end.code or 0)
        except Exception:  # noqa: BLE001  # a crash is no fault that was shown
            return traceback.format_exc(limit=0).strip()
    return 0


MODES: dict[str, Callable[..., Iterator[Row]]] = {
    "steps": steps, "watch": watch, "captured": captured, "selftest": selftest, "scripts": scripts,
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in MODES[sys.argv[1]](*sys.argv[2:]):
        print(json.dumps(row), flush=True)

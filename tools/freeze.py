"""`python -m tools.freeze`: the results of a checkout in small files, and what differs between two of them.

`make OUT` measures a checkout by its public commands, in its own environment (`--tree`, `--python`), one file
`OUT/PART.jsonl.xz` for each part: a line about the part, then a line for each record, sorted. `compare A B`
prints each difference that the `accepted.toml` beside A does not have, and ends with 1 where there is one.

A record is a key and its facts: those that identify or judge. Times, paths, process ids, addresses, versions
of torch and sentences of rows are left out; the sentences are in the parts of texts. Verdicts, kinds of
fault, distances and what was compiled are compared by the product (`runs.compare`), numbers within 1 % or
within their limit, texts word by word, everything else exactly.

The rows are those of 0d83418, except `inputs-sglang-*`: those are of 92340d60, the last commit before regions
were imported. Texts (`list`, `show`, `affected`, `examples`) are those of the last commit
whose author read what differed, and wrote them anew with `make --again`.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import functools
import json
import lzma
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepstack_harness.runs.store import StoredRun

ROOT = Path(__file__).parents[1]
ACCEPTED = "accepted.toml"
"""Differences from the snapshots of this folder, with their reasons."""
_SUFFIX = ".jsonl.xz"
_HARNESS = ("-m", "deepstack_harness")
_PROGRAMS = str(ROOT / "tools" / "frozen_programs.py")
_TIMEOUT = 7200
"""Seconds of wall time of one command; the longest one, `run --tier ci`, takes minutes on an idle machine."""

Facts = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Commands of the interpreter (`{tmp}` is an empty folder), and the fields of the rows that they print.

    Without a `key` the output is text, and each command is one record.
    """

    commands: tuple[tuple[str, ...], ...]
    key: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    prefix: str = ""


_JUDGED = (
    "verdict", "shape", "exception", "reach", "evidence", "effect", "chances", "value", "limit", "unit",
    "step", "call", "expected", "where",
)  # fmt: skip
_AUDIT = (
    ("system", "revision", "model_class", "regime", "rule"),
    ("rule", "family", "trace", "arm", "dtype", *_JUDGED),
)  # fmt: skip
_RUN = (
    ("incident", "revision", "family", "arm", "dtype", "device", "trace", "rule"),
    ("rule", "case", *_JUDGED),
)
_INPUTS = (
    ("source", "model_class", "input", "kind", "member", "line"),
    (
        "promise",
        "standing",
        "where",
        "warm_up",
        "later_calls",
        "change",
        "writers",
        "read_by",
        "verdict",
        "arm",
        "value",
        "limit",
        "steps",
        "guards",
        "influence",
    ),
)
_CASES = Part(
    (),
    ("case",),
    (
        "case", "group", "subject", "dtype", "trace", "ending", "distances", "graphs", "recompiles", "breaks",
        "code",
    ),
    "case ",
)  # fmt: skip
_STEPS = ("verdict", "value", "limit", "effect", "chances", "steps", "inputs", "guards", "problem")
_SELFTEST = (
    ("buffer", "arm", "region"),
    (
        "rule", "promise", "fault", "kind", "arms", "found", "holds", "caught_by", "check_found", "trace",
        "examples", "checked", "axes", "chances", "limit",
    ),
)  # fmt: skip

_EXAMPLES = (
    f"-m pytest -q -rA -c {os.devnull} --rootdir examples --disable-warnings -p no:cacheprovider "
    "-p no:randomly examples/steps examples/adapter examples/kernels"
)

VLLM = ("0.33.0", "0.22.1", "0.20.0", "0.23.0", "0.19.1", "0.20.1", "0.20.2", "0.21.0", "0.27.1", "0.11.2")
"""Those of `cases/test_audit_releases.py` and `cases/test_releases.py`."""
OTHERS = (
    "sglang==0.5.23", "transformers==5.23.0", "lmdeploy==0.18.0", "mbridge==0.15.1", "megatron-bridge==0.3.1",
    "ms-swift==4.6.0", "vllm-omni==0.30.0", "tpu-inference==0.32.0 over vllm==0.33.0",
    "vllm-ascend==0.23.0.post1",
)  # fmt: skip
"""The newest release of each other engine that the package index has; the rest is judged by path only."""
INPUTS = ("vllm==0.33.0", "vllm==0.22.1", "sglang==0.5.23", "sglang==0.5.14")
AFFECTED = (
    "vllm==0.10.2", "vllm==0.19.1", "vllm==0.22.1", "vllm==0.33.0", "sglang==0.5.14", "sglang==0.5.23",
    "vllm-omni==0.21.0", "transformers==5.23.0", "lmdeploy==0.18.0", "tpu-inference==0.32.0",
)  # fmt: skip


def parts() -> dict[str, Part]:
    """Return all parts by name, those that give most for their time first."""
    audits = [f"vllm=={release}" for release in VLLM]
    return {
        "list": Part(((*_HARNESS, "list"),)),
        "show": Part(((*_HARNESS, "show", "{incident}"),)),
        "affected": Part(tuple((*_HARNESS, "affected", release) for release in AFFECTED)),
        **{
            f"selftest-{kind}": Part((("-P", _PROGRAMS, "selftest", kind),), *_SELFTEST)
            for kind in ("mutants", "right", "regions")
        },
        "scripts": Part(
            (
                (*_HARNESS, "repro", "{incident}", "--quiet", "--script", "{tmp}/{incident}.py"),
                ("-P", _PROGRAMS, "scripts", "{tmp}"),
            ),
            ("script",),
            ("exit",),
        ),
        "steps": Part((("-P", _PROGRAMS, "steps"),), ("program", "arm", "promise"), _STEPS),
        **{
            name: Part((("-P", _PROGRAMS, name),), ("program",), ("differs", "regions", "decisive"))
            for name in ("watch", "captured")
        },
        "examples": Part(
            (
                (*_HARNESS, "watch", "--", "{python}", "examples/watch/server.py"),
                (*_HARNESS, "watch", "--", "{python}", "examples/watch/server.py", "--warm-up-with-image"),
                tuple(_EXAMPLES.split()),
            )
        ),
        "run-ci": Part(((*_HARNESS, "run", "--tier", "ci", "--out", "{tmp}", "--quiet"),), *_RUN),
        **{
            f"audit-{source.replace('==', '-').replace(' over ', '-over-')}": Part(
                ((*_HARNESS, "audit", "--source", source, "--json", "-"),), *_AUDIT
            )
            for source in (*audits, *OTHERS)
        },
        **{
            f"inputs-{source.replace('==', '-')}": Part(
                ((*_HARNESS, "audit", "--inputs", "--source", source, "--json", "-"),), *_INPUTS
            )
            for source in INPUTS
        },
    }


@dataclass(frozen=True)
class Tree:
    """A checkout that is measured, with the interpreter of its environment."""

    root: Path
    python: str

    def run(self, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the interpreter at the checkout; a timeout is an exit code of 124."""
        environment = {
            **os.environ, "PYTHONPATH": f"{self.root / 'harness'}{os.pathsep}{self.root}", "COLUMNS": "80",
            "NO_COLOR": "1", "PYTHONHASHSEED": "0", "TMPDIR": str(folder),
        }  # fmt: skip
        command = [self.python, *words]
        try:
            return subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"no end within {_TIMEOUT} s")

    def plain(self, text: str) -> str:
        """Return text without what differs between machines and runs: paths, addresses, ids, times."""
        for path, name in (
            (self.python, "PYTHON"),
            (self.root, "TREE"),
            (os.environ.get("DEEPSTACK_HARNESS_CACHE"), "CACHE"),
        ):
            text = text.replace(str(path), name) if path else text
        text = re.sub(r"/\S*/(?=site-packages/)|/tmp/\S*|/\S*/deepstack-\w+", "PATH/", text)
        text = re.sub(r"0x[0-9a-f]{6,}|(?<![\d.])\d{7,}\b|(?<=process )\d+", "NUMBER", text)
        return re.sub(
            r"\b[\d.,]*\d ?(processor seconds|seconds|us|ms|s)\b( \(\d+:[\d:]+\))?", r"TIME \1", text
        )


def measure(part: Part, tree: Tree, incidents: Sequence[str]) -> list[Facts]:
    """Return the line about a part, and its records.

    A refusal (exit code 2) is a record with its sentence. An exit code above 2, output that cannot
    be read, and no record at all are the error of a part.
    """
    records: list[Facts] = []
    ended: Counter[int] = Counter()
    with tempfile.TemporaryDirectory(prefix="freeze-") as name:
        folder = Path(name)

        def plain(text: str) -> str:
            return tree.plain(text.replace(name, "TMP"))

        for words in _filled(part.commands, incidents, folder, tree):
            done = tree.run(words, folder)
            ended[done.returncode] += 1
            what = plain(" ".join(words)).removeprefix("-m ")
            if done.returncode == 2:  # an incident without a script, a release without a class
                records.append({"key": what, "exit": 2, "lines": plain(done.stderr).splitlines()})
            elif done.returncode not in (0, 1):
                last = plain(done.stderr).splitlines()[-20:]
                return [{"error": f"'{what}' ended with {done.returncode}", "stderr": last}]
            elif part.key:
                try:
                    records += _reduced(part, done.stdout.splitlines(), plain)
                except json.JSONDecodeError as error:
                    return [
                        {"error": f"'{what}' printed no JSON: {error}", "stderr": [plain(error.doc[:200])]}
                    ]
            else:
                lines = plain(done.stdout).splitlines()
                records.append({"key": what, "exit": done.returncode, "lines": lines})
        for kind, of_kind in (("rows", part), ("cases", _CASES)):
            for path in folder.glob(f"{kind}*.jsonl"):
                records += _reduced(of_kind, path.read_text().splitlines(), plain)
    if not records:
        return [{"error": "no record was written", "stderr": []}]
    seen: Counter[str] = Counter()
    for each in sorted(records, key=lambda each: json.dumps(each, sort_keys=True)):
        seen[each["key"]] += 1
        if seen[each["key"]] > 1:  # two records of one key are told apart by their order
            each["key"] += f" #{seen[each['key']]}"
    return [{"exits": sorted(ended.items())}, *sorted(records, key=lambda each: each["key"])]


def _filled(
    commands: Iterable[Sequence[str]], incidents: Sequence[str], folder: Path, tree: Tree
) -> Iterator[list[str]]:
    """Yield the commands, one that names `{incident}` once for each."""
    for words in commands:
        for incident in incidents if any("{incident}" in word for word in words) else ("",):
            named = {"{incident}": incident, "{tmp}": str(folder), "{python}": tree.python}
            yield [
                functools.reduce(lambda text, name: text.replace(name, named[name]), named, word)
                for word in words
            ]


def _reduced(part: Part, lines: Iterable[str], plain: Callable[[str], str]) -> Iterator[Facts]:
    """Yield the key and the facts of rows of JSON; a fact that a row does not have is left out.

    The id of a case is never made plain: one of digits only looks like an address.
    """
    for line in lines:
        row = {
            name: value if name == "case" else _reduced_value(value, plain)
            for name, value in json.loads(line).items()
        }
        key = " | ".join(str(row[name]) for name in part.key if row.get(name) not in (None, ""))
        yield {
            "key": part.prefix + key,
            **{name: row[name] for name in part.facts if row.get(name) is not None},
        }


def _reduced_value(value: Any, plain: Callable[[str], str]) -> Any:  # noqa: ANN401  # any JSON
    """Return JSON with plain strings, numbers of 6 figures, and no sentences and times inside."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_reduced_value(each, plain) for each in value]
    if isinstance(value, dict):
        return {name: _reduced_value(value[name], plain) for name in sorted(value.keys() - _SENTENCES)}
    return value


_SENTENCES = frozenset(("detail", "seconds", "code_bytes"))


def make(out: Path, names: Sequence[str], tree: Tree, *, again: bool) -> int:
    """Measure parts that are not there yet, or failed; print what each took. Return 1 where one failed."""
    out.mkdir(parents=True, exist_ok=True)
    found = tree.run(["-c", "import deepstack_harness; print(deepstack_harness.__file__)"], out)
    listed = tree.run([*_HARNESS, "list", "incidents", "--json", "-"], out)
    if listed.returncode or not Path(found.stdout).is_relative_to(tree.root):
        print(f"{tree.root} has no harness that {tree.python} can run: {listed.stderr or found.stdout}")
        return 1
    incidents = [row["id"] for row in map(json.loads, listed.stdout.splitlines())]
    costs = out / "processor_seconds.json"
    failed = 0
    for name in names:
        path = out / (name + _SUFFIX)
        if path.exists() and not again and "error" not in read_part(path)[0]:
            continue
        before = _processor_seconds()
        lines = measure(parts()[name], tree, incidents)
        write_part(path, lines)
        error = lines[0].get("error", "")
        failed += bool(error)
        seconds = json.loads(costs.read_text()) if costs.exists() else {}
        seconds[name] = round(_processor_seconds() - before)
        costs.write_text(json.dumps(seconds, indent=1) + "\n")
        print(
            f"{name}: {error or f'{len(lines) - 1} records'}, {seconds[name]} processor seconds", flush=True
        )
    return int(bool(failed))


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_part(path: Path) -> list[Facts]:
    """Return the lines of a part; the first one is about the part itself."""
    return [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]


def write_part(path: Path, lines: Iterable[Facts]) -> None:
    """Write the lines of a part, the same bytes for the same lines."""
    text = "".join(json.dumps(each, sort_keys=True) + "\n" for each in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=1))


def differences(name: str, old: Sequence[Facts], new: Sequence[Facts]) -> Iterator[str]:
    """Yield each difference between two files of a part as one line."""
    if "error" in old[0] or "error" in new[0]:
        yield f"{name}: not compared: {old[0].get('error', 'made')} -> {new[0].get('error', 'made')}"
        return
    from deepstack_harness.runs.compare import compare as runs_compare

    before, after = ({each["key"]: each for each in lines[1:]} for lines in (old, new))
    if old[0] != new[0]:
        yield f"{name}: exit codes {old[0]['exits']} -> {new[0]['exits']}"
    judged = set()
    for change in runs_compare(_stored(old[1:]), _stored(new[1:])):
        judged.add((change.case, change.metric.removeprefix("verdict ")))
        if change.metric != "case":
            yield (
                f"{name}: {change.kind}: {change.metric} of {change.where}: {change.before} -> {change.after}"
            )
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            yield f"{name}: {key}: {'only in the new' if key in after else 'missing in the new'} snapshot"
            continue
        one, other = before[key], after[key]
        by_product = (
            _BY_PRODUCT if key.startswith("case ") or (_case_of(one), one.get("rule")) in judged else ()
        )
        for fact in sorted((one.keys() | other.keys()) - set(by_product)):
            yield from (
                f"{name}: {key}: {fact}: {text}"
                for text in _changed(fact, one.get(fact), other.get(fact), one.get("limit"))
            )


_BY_PRODUCT = ("verdict", "shape", "exception", "distances", "graphs", "recompiles", "breaks", "code")


def _changed(fact: str, one: Any, other: Any, limit: Any) -> Iterator[str]:  # noqa: ANN401  # any JSON
    """Yield how a fact changed: a line for each changed stretch of a text, or member of a list of strings."""
    if one == other:
        return
    if isinstance(one, int | float) and isinstance(other, int | float) and float in (type(one), type(other)):
        within = isinstance(limit, int | float) and max(abs(one), abs(other)) <= limit
        if within or math.isclose(one, other, rel_tol=0.01):
            return
    if (
        isinstance(one, list)
        and isinstance(other, list)
        and all(isinstance(each, str) for each in one + other)
    ):
        if fact == "lines":
            yield from _changed_words(one, other)
        else:
            yield from (line for line in difflib.ndiff(one, other) if line[0] in "+-")
    else:
        yield f"{json.dumps(one)} -> {json.dumps(other)}"


def _changed_words(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """Yield how a text changed, `old words -> new words`: where a line is broken is no difference."""
    for lines in _unequal(one, other):
        before, after = (" ".join(changed).split() for changed in lines)
        for words in _unequal(before, after):
            yield " -> ".join(" ".join(changed) for changed in words)


def _unequal(one: Sequence[str], other: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the stretches in which two sequences differ, the old one and the new one."""
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    for what, first, last, begin, end in matcher.get_opcodes():
        if what != "equal":
            yield one[first:last], other[begin:end]


def _case_of(record: Facts) -> str:
    return str(record.get("case") or record["key"].rpartition(" | ")[0])


# What `compare` does not read of a stored case.
_UNREAD: Facts = {
    "incident": None, "seconds": 0.0, "family": "", "buffer": {"kind": "registered", "name": ""}, "arm": "",
    "device": "cpu", "expected": None, "graph_budget": 0, "steps": [], "diagnosis": None, "script": None,
    "note": "", "output": "", "rows": 0,
}  # fmt: skip
_EMPTY: Facts = {
    "group": "", "ending": "played", "subject": "", "trace": "", "dtype": "", "distances": None,
    "graphs": None, "recompiles": None,
}  # fmt: skip


def _stored(records: Iterable[Facts]) -> StoredRun:
    """Return records as a run that the product reads; rows of an audit have no case but their own key."""
    import msgspec

    from deepstack_harness.contract.rules import Rule
    from deepstack_harness.contract.verdicts import Row
    from deepstack_harness.runs.records import CaseRecord
    from deepstack_harness.runs.store import StoredRun

    rows, cases = [], {}
    for record in records:
        if record["key"].startswith("case "):
            cases[record["case"]] = record
        elif "rule" in record and "verdict" in record:
            case = _case_of(record)
            rows.append({"revision": "", **record, "case": case})
            cases.setdefault(case, {"case": case, "subject": case})
    whole = [{**_UNREAD, **_EMPTY, **case} for case in cases.values()]
    return StoredRun(
        "", tuple(msgspec.convert(rows, list[Row[Rule]])), tuple(msgspec.convert(whole, list[CaseRecord]))
    )


def compare(old: Path, new: Path, names: Sequence[str], accepted: Path | None) -> int:
    """Print what differs between two snapshots; return 1 where something is not accepted, else 0."""
    listed = accepted or old.resolve().parent / ACCEPTED
    entries = read_accepted(listed) if accepted or listed.exists() else []
    used: Counter[int] = Counter()
    unexplained = 0
    for name in names:
        paths = [folder / (name + _SUFFIX) for folder in (old, new)]
        missing = [str(path) for path in paths if not path.exists()]
        if missing:
            found = [f"{name}: not compared: there is no {missing[0]}"]
        else:
            found = list(differences(name, *map(read_part, paths)))
        for line in found:
            matching = [number for number, entry in enumerate(entries) if entry.matches(name, line)]
            used.update(matching)
            if not matching:
                unexplained += 1
                print(line)
    made = [path.name.removesuffix(_SUFFIX) for path in old.glob("*" + _SUFFIX)]
    stale = [
        entry
        for number, entry in enumerate(entries)
        if not used[number] and {*selected(made, [entry.part])} <= {*names}  # all its parts were compared
    ]
    for entry in stale:
        print(f"{listed.name}: nothing differs as '{entry.pattern}' in {entry.part}: remove it")
    print(
        f"{len(names)} parts compared: {unexplained} differences, {used.total()} more that are accepted, "
        f"{len(stale)} entries of {listed.name} without one"
    )
    return int(bool(unexplained or stale))


@dataclass(frozen=True)
class Accepted:
    """Differences that are meant: the parts (`*` and `?`), a regular expression for their lines, and why."""

    part: str
    pattern: str
    reason: str

    def matches(self, name: str, line: str) -> bool:
        """Return whether a difference of a part is one of these."""
        return fnmatch.fnmatchcase(name, self.part) and re.search(self.pattern, line) is not None


def read_accepted(path: Path) -> list[Accepted]:
    """Read the `[[accepted]]` tables of a file; each needs a part, a pattern and a reason.

    Raises `ValueError` that quotes an entry without one of them.
    """
    entries = tomllib.loads(path.read_text()).get("accepted", [])
    for entry in entries:
        if entry.keys() != {"part", "pattern", "reason"} or not all(entry.values()):
            raise ValueError(f"{path}: {entry}: an accepted difference has a part, a pattern and a reason")
        re.compile(entry["pattern"])
    return [Accepted(**entry) for entry in entries]


def main(words: Sequence[str] | None = None) -> int:
    """Make parts of a snapshot, or compare two."""
    parser = argparse.ArgumentParser(prog="python -m tools.freeze", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("make", help="write the parts that OUT does not have, or that failed there")
    made.add_argument("out", type=Path, metavar="OUT")
    made.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure (default: this one)")
    made.add_argument("--python", default=sys.executable, help="the interpreter of its environment")
    made.add_argument("--again", action="store_true", help="also make parts again that are whole")
    held = commands.add_parser("compare", help="print what differs between two snapshots")
    held.add_argument("old", type=Path, metavar="A")
    held.add_argument("new", type=Path, metavar="B")
    held.add_argument("--accepted", type=Path, help=f"TOML file (default: {ACCEPTED} beside A)")
    for each in (made, held):
        each.add_argument("--part", action="append", metavar="NAME", help="NAME may have * and ?; repeatable")
    args = parser.parse_args(words)
    known = list(parts())
    if args.command == "compare":
        there = {
            path.name.removesuffix(_SUFFIX)
            for folder in (args.old, args.new)
            for path in folder.glob("*" + _SUFFIX)
        }
        known = [name for name in known if name in there] + sorted(there - set(known))
    names = selected(known, args.part)
    if not names:
        wanted = f" that is called {' or '.join(args.part)}" if args.part else ""
        parser.error(f"no part{wanted}; there are {', '.join(known) or 'none'}")
    if args.command == "make":
        return make(args.out, names, Tree(args.tree.resolve(), args.python), again=args.again)
    if unmade := [name for name in selected(parts(), args.part) if name not in names]:
        print(f"not compared, since neither snapshot has them: {', '.join(unmade)}")
    try:
        return compare(args.old, args.new, names, args.accepted)
    except (OSError, ValueError, re.error) as error:
        parser.error(str(error))


def selected(names: Iterable[str], wanted: Sequence[str] | None) -> list[str]:
    """Return the names that fit one of the patterns; all for None."""
    return [name for name in names if not wanted or any(fnmatch.fnmatchcase(name, each) for each in wanted)]


if __name__ == "__main__":
    sys.exit(main())

"""Frozen results: snapshots of one commit are equal, and each planted change between two is reported."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cases.by_day import by_day
from deepstack_harness.engines.known import RELEASED
from tools.freeze import INPUTS, OTHERS, ROOT, VLLM, Tree, main, parts, read_part, write_part

Lines = list[dict[str, Any]]
ROW = {
    "key": "43602 | pr43617 | qwen3_vl | eager | cap 4: set 2 | R1", "case": "c1", "rule": "R1",
    "verdict": "XFAIL", "shape": "missing rows", "reach": "default", "chances": 3, "value": 16.0,
    "limit": 4.0,
}  # fmt: skip
DISTANCES = {"eager": 1e-6, "zero_deepstack": 1.0, "effect": 1.0, "rounding": 1e-6, "no_deepstack": None}
CASE = {
    "key": "case c1", "case": "c1", "group": "qwen3_vl eager", "subject": "pr43617", "graphs": 1, "breaks": 0,
    "distances": DISTANCES,
    "code": {"dropped": [], "kernels": ["cpp_fused_add"]},
}  # fmt: skip
MUTANT = {
    "key": "none_when_empty | eager", "rule": "R1", "found": ["R1"], "holds": True,
    "caught_by": ["check", "fuzz"], "trace": "cap 1: get 0", "examples": 2,
}  # fmt: skip
SENTENCES = ["symptom   answers ignore the image", "cause     get answers None"]
PROGRAM = "cases.specimens.programs:attribute"
FINDING = {
    "key": f"{PROGRAM} | eager/drop_all | I1", "verdict": "FAIL", "effect": "output", "chances": 1,
    "value": 2.64289, "limit": 1.68e-05, "steps": [2], "inputs": ["self.factor"],
    "guards": ["L['self'].factor == 1.0"],
}  # fmt: skip
GUARD = "L['negated'] FALSE_MATCH decides: bool False -> bool True, call 2, 1 calls"
WATCHED = {"key": "programs:closure", "decisive": [GUARD], "differs": "True", "regions": [["turn", 2, 0]]}
CLASS = "deepstack | deepstack | Qwen3VLForConditionalGeneration | captured"
AUDITED = {
    "key": f"{CLASS} | R5", "rule": "R5",
    "verdict": "XFAIL", "shape": "cleared payload", "reach": "latent", "evidence": "read", "chances": 4,
    "where": "vllm/model_executor/models/qwen3_vl.py:12-40",
}  # fmt: skip
INPUT = {
    "key": "vllm==0.33.0 | MossAudioModel | deepstack_input_embeds", "promise": "I1", "standing": "open",
    "warm_up": "None", "read_by": ["forward"],
}  # fmt: skip
SNAPSHOT: Mapping[str, Lines] = {
    "scripts": [{"exits": [[0, 3]]}, {"key": "43602", "exit": 1}, {"key": "43602, fixed", "exit": 0}],
    "steps": [{"exits": [[0, 1]]}, FINDING],
    "watch": [{"exits": [[0, 1]]}, WATCHED],
    "audit-vllm-0.33.0": [{"exits": [[0, 1]]}, AUDITED],
    "inputs-vllm-0.33.0": [{"exits": [[0, 1]]}, INPUT],
    "run-ci": [{"exits": [[0, 1]]}, ROW, CASE],
    "selftest-mutants": [{"exits": [[0, 1]]}, MUTANT],
    "show": [{"exits": [[0, 1]]}, {"key": "show 43602", "exit": 0, "lines": SENTENCES}],
}


def write(folder: Path, snapshot: Mapping[str, Lines]) -> Path:
    folder.mkdir()
    for name, lines in snapshot.items():
        write_part(folder / f"{name}.jsonl.xz", lines)
    return folder


def changed(part: str, number: int, **facts: object) -> dict[str, Lines]:
    """The snapshot with facts of one line changed."""
    lines = [{**line, **(facts if at == number else {})} for at, line in enumerate(SNAPSHOT[part])]
    return {**SNAPSHOT, part: lines}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base", SNAPSHOT)


@pytest.fixture
def accepted(tmp_path: Path) -> Path:
    path = tmp_path / "accepted.toml"
    path.write_text("")
    return path


def compared(base: Path, new: Mapping[str, Lines], accepted: Path, *words: str) -> int:
    other = write(base.with_name("new"), new)
    return main(["compare", str(base), str(other), "--accepted", str(accepted), *words])


def test_equal_snapshots(base: Path, accepted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(base, SNAPSHOT, accepted) == 0
    unmade, summary = capsys.readouterr().out.splitlines()
    assert unmade.startswith(
        "not compared, since neither snapshot has them: list, affected, selftest-right, selftest-regions, "
    )
    assert summary == (
        "8 parts compared: 0 differences, 0 more that are accepted, 0 entries of accepted.toml without one"
    )


KEY, WHERE = ROW["key"], "pr43617 qwen3_vl eager  ''"
PLANTED: list[tuple[dict[str, Lines], list[str]]] = [
    (
        changed("selftest-mutants", 1, found=[], holds=False, caught_by=["check"]),
        [
            "selftest-mutants: none_when_empty | eager: caught_by: - fuzz",
            "selftest-mutants: none_when_empty | eager: found: - R1",
            "selftest-mutants: none_when_empty | eager: holds: true -> false",
        ],
    ),
    (
        changed("selftest-mutants", 1, rule="R2"),
        ['selftest-mutants: none_when_empty | eager: rule: "R1" -> "R2"'],
    ),
    (
        changed("selftest-mutants", 1, trace="cap 1: get 1"),
        ['selftest-mutants: none_when_empty | eager: trace: "cap 1: get 0" -> "cap 1: get 1"'],
    ),
    (
        changed("run-ci", 1, verdict="PASS", shape=None),
        [f"run-ci: improvement: verdict R1 of {WHERE}: broken -> kept"],
    ),
    (changed("run-ci", 1, verdict="FAIL"), [f'run-ci: {KEY}: verdict: "XFAIL" -> "FAIL"']),
    (
        changed("run-ci", 1, shape="another value"),
        [
            f"run-ci: regression: verdict R1 of {WHERE}: broken: missing rows -> broken: another value",
        ],
    ),
    (changed("run-ci", 1, reach="latent"), [f'run-ci: {KEY}: reach: "default" -> "latent"']),
    (changed("run-ci", 1, chances=2), [f"run-ci: {KEY}: chances: 3 -> 2"]),
    (changed("run-ci", 1, value=16.5), [f"run-ci: {KEY}: value: 16.0 -> 16.5"]),
    (
        changed("run-ci", 2, distances={**DISTANCES, "eager": 5e-6}),
        [f"run-ci: regression: distance of {WHERE}: 1e-06 -> 5e-06"],
    ),
    (
        changed("run-ci", 2, graphs=2),
        [f"run-ci: regression: graphs of {WHERE}: 1 -> 2"],
    ),
    (
        changed("run-ci", 2, code={"dropped": [], "kernels": ["extern_kernels.mm"]}),
        [f"run-ci: new behaviour: kernels of {WHERE}: cpp_fused_add -> extern_kernels.mm"],
    ),
    (
        changed("show", 1, lines=[SENTENCES[0], "cause     get returns None"]),
        ["show: show 43602: lines: answers -> returns"],
    ),
    (changed("show", 0, exits=[[1, 1]]), ["show: exit codes [[0, 1]] -> [[1, 1]]"]),
    (
        {**SNAPSHOT, "run-ci": [*SNAPSHOT["run-ci"][:1], CASE]},
        [f"run-ci: {KEY}: missing in the new snapshot"],
    ),
    (
        changed("selftest-mutants", 1, key="another | eager"),
        [
            "selftest-mutants: another | eager: only in the new snapshot",
            "selftest-mutants: none_when_empty | eager: missing in the new snapshot",
        ],
    ),
    (
        changed("scripts", 2, exit="ValueError: no shape"),
        ['scripts: 43602, fixed: exit: 0 -> "ValueError: no shape"'],
    ),
    (
        changed("steps", 1, verdict="PASS", value=None),
        [
            f"steps: {FINDING['key']}: value: 2.64289 -> null",
            f'steps: {FINDING["key"]}: verdict: "FAIL" -> "PASS"',
        ],
    ),
    (
        changed("steps", 1, guards=[]),
        [f"steps: {FINDING['key']}: guards: - L['self'].factor == 1.0"],
    ),
    (changed("watch", 1, decisive=[]), [f"watch: programs:closure: decisive: - {GUARD}"]),
    (
        changed("watch", 1, regions=[["turn", 1, 1]]),
        ['watch: programs:closure: regions: [["turn", 2, 0]] -> [["turn", 1, 1]]'],
    ),
    (
        changed("audit-vllm-0.33.0", 1, verdict="IMPROVED", shape=None),
        [
            f"audit-vllm-0.33.0: improvement: verdict R5 of {CLASS}   '': broken -> kept",
        ],
    ),
    (
        changed("audit-vllm-0.33.0", 1, where=None),
        [f'audit-vllm-0.33.0: {AUDITED["key"]}: where: "{AUDITED["where"]}" -> null'],
    ),
    (
        changed("inputs-vllm-0.33.0", 1, standing="closed"),
        [f'inputs-vllm-0.33.0: {INPUT["key"]}: standing: "open" -> "closed"'],
    ),
    (
        {**SNAPSHOT, "selftest-mutants": [{"error": "'selftest' ended with 4", "stderr": []}]},
        ["selftest-mutants: not compared: made -> 'selftest' ended with 4"],
    ),
]


def test_where_a_line_is_broken_is_no_difference(base: Path, accepted: Path) -> None:
    wrapped = ["symptom   answers ignore", "  the image", "cause get answers None"]
    assert compared(base, changed("show", 1, lines=wrapped), accepted) == 0


@pytest.mark.parametrize(("new", "lines"), by_day(PLANTED, count=6))
def test_a_planted_change_is_reported(
    base: Path, accepted: Path, new: dict[str, Lines], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(base, new, accepted) == 1
    _, *printed, last = capsys.readouterr().out.splitlines()
    assert sorted(printed) == sorted(lines)
    assert last.startswith(f"8 parts compared: {len(lines)} differences, ")


@pytest.mark.parametrize(
    "new",
    [
        changed("run-ci", 1, value=16.1),
        changed("run-ci", 2, distances={**DISTANCES, "eager": 2e-6}),
    ],
)
def test_rounding_is_no_difference(base: Path, accepted: Path, new: dict[str, Lines]) -> None:
    assert compared(base, new, accepted) == 0


def test_a_value_within_its_limit_is_rounding(base: Path, accepted: Path) -> None:
    write_part(base / "run-ci.jsonl.xz", changed("run-ci", 1, value=1.0)["run-ci"])
    assert compared(base, changed("run-ci", 1, value=3.0), accepted) == 0


def test_a_part_that_failed_in_both_is_not_equal(
    base: Path, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed: Lines = [{"error": "'selftest' ended with 3", "stderr": []}]
    write_part(base / "selftest-mutants.jsonl.xz", failed)
    assert compared(base, {**SNAPSHOT, "selftest-mutants": failed}, accepted) == 1
    assert "selftest-mutants: not compared: 'selftest' ended with 3 -> " in capsys.readouterr().out


def test_a_part_that_one_snapshot_does_not_have(
    base: Path, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = {name: lines for name, lines in SNAPSHOT.items() if name != "show"}
    assert compared(base, fewer, accepted) == 1
    assert "show: not compared: there is no " in capsys.readouterr().out
    other = str(base.with_name("new"))
    assert main(["compare", str(base), other, "--accepted", str(accepted), "--part", "*c*"]) == 0
    assert "\n3 parts compared: 0 differences" in capsys.readouterr().out


REASON = 'reason = "the sentence is plainer"'


def test_an_accepted_difference_with_its_reason(
    base: Path, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted.write_text(f"[[accepted]]\npart = 'sh*'\npattern = 'answers -> returns'\n{REASON}\n")
    assert (
        compared(base, changed("show", 1, lines=[SENTENCES[0], "cause     get returns None"]), accepted) == 0
    )
    assert "0 differences, 1 more that are accepted" in capsys.readouterr().out


def test_an_accepted_difference_that_is_not_there_any_more(
    base: Path, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted.write_text(f"[[accepted]]\npart = 'show'\npattern = 'get returns None'\n{REASON}\n")
    assert compared(base, SNAPSHOT, accepted) == 1
    assert (
        "accepted.toml: nothing differs as 'get returns None' in show: remove it" in capsys.readouterr().out
    )
    other = str(base.with_name("new"))
    assert main(["compare", str(base), other, "--accepted", str(accepted), "--part", "selftest-*"]) == 0
    accepted.write_text(f"[[accepted]]\npart = 's*'\npattern = 'get returns None'\n{REASON}\n")
    assert main(["compare", str(base), other, "--accepted", str(accepted), "--part", "selftest-*"]) == 0
    assert main(["compare", str(base), other, "--accepted", str(accepted), "--part", "s*"]) == 1
    assert main(["compare", str(base), other]) == 1  # by the list in its folder
    accepted.unlink()
    assert main(["compare", str(base), other]) == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[[accepted]]\npart = 'show'\npattern = 'x'\n",
            "an accepted difference has a part, a pattern and a",
        ),
        ("[[accepted]]\npart = 'show'\npattern = 'x'\nreason = ''\n", "an accepted difference has a part"),
        (f"[[accepted]]\npart = 'show'\npattern = '('\n{REASON}\n", "unterminated subpattern"),
        ("[[accepted", "Expected"),
    ],
)
def test_a_list_of_accepted_differences_with_an_error(
    base: Path, accepted: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        compared(base, SNAPSHOT, accepted)
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--part", "shwo"], []])
def test_nothing_to_compare_is_a_wrong_call(
    tmp_path: Path, accepted: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = write(tmp_path / "base", SNAPSHOT if words else {})
    with pytest.raises(SystemExit, match="2"):
        compared(base, SNAPSHOT if words else {}, accepted, *words)
    there = "show, " if words else "none"
    assert re.search(f"no part.*; there are .*{there}", capsys.readouterr().err)


@pytest.mark.slow  # 3 s
def test_two_snapshots_of_this_commit_are_equal(
    tmp_path: Path, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        assert main(["make", str(folder), "--part", "list"]) == 0
    name = "list.jsonl.xz"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    assert "none-while-profiling" in str(read_part(one / name))
    words = ["compare", str(one), str(other), "--accepted", str(accepted)]
    assert main(words) == 0
    about, listed = read_part(one / name)
    write_part(other / name, [about, {**listed, "lines": listed["lines"][:-1]}])
    assert main(words) == 1
    capsys.readouterr()
    assert main(["make", str(other), "--part", "list"]) == 0  # it is there, so it is not made again
    assert not capsys.readouterr().out
    assert main(["make", str(other), "--part", "list", "--again"]) == 0
    assert main(words) == 0


LISTS = """
import sys
if sys.argv[1] == "list":
    print('{"id": "1"}')
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose harness lists one incident and does nothing else."""
    package = tmp_path / "tree/harness/deepstack_harness"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(LISTS)
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("", "no record was written"),
        (
            "else:\n    sys.exit(4)",
            "'deepstack_harness audit --source mbridge==0.15.1 --json -' ended with 4",
        ),
        (
            "else:\n    print('a line')",
            "'deepstack_harness audit --source mbridge==0.15.1 --json -' printed no JSON: Expecting value",
        ),
    ],
)
def test_a_part_that_fails_is_recorded_and_made_again(
    tree: Path, command: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, out = "audit-mbridge-0.15.1", tree / "out"
    program = tree / "harness/deepstack_harness/__main__.py"
    program.write_text(LISTS + command)
    words = ["make", str(out), "--tree", str(tree), "--part", name]
    assert main(words) == 1
    assert f"{name}: {error}" in capsys.readouterr().out
    assert read_part(out / f"{name}.jsonl.xz")[0]["error"].startswith(error)
    row = {"system": "mbridge", "shape": "none", "seconds": 1.5, "trace": f"in {tree}/a at 0x7f0012345678"}
    program.write_text(f"{LISTS}else:\n    print({json.dumps(json.dumps(row))})")
    assert main(words) == 0
    _, record = read_part(out / f"{name}.jsonl.xz")
    assert record == {"key": "mbridge", "shape": "none", "trace": "in TREE/a at NUMBER"}
    assert json.loads((out / "processor_seconds.json").read_text()).keys() == {name}


def test_a_refusal_is_a_record_with_its_sentence(tree: Path) -> None:
    refuses = "else:\n    print('mbridge 0.15.1 has no class', file=sys.stderr)\n    sys.exit(2)"
    (tree / "harness/deepstack_harness/__main__.py").write_text(LISTS + refuses)
    assert main(["make", str(tree / "out"), "--tree", str(tree), "--part", "audit-mbridge-*"]) == 0
    about, record = read_part(tree / "out/audit-mbridge-0.15.1.jsonl.xz")
    assert about == {"exits": [[2, 1]]}
    assert record["lines"] == ["mbridge 0.15.1 has no class"]


def test_cases_whose_ids_are_digits_have_their_own_keys(tree: Path) -> None:
    """An address is left out of a row, and an id of a case that looks like one is not."""
    ids = ["647694859881", "771755441574", "1c0195604955"]
    program = """else:
    from pathlib import Path
    folder = Path(sys.argv[sys.argv.index("--out") + 1])
    (folder / "cases.jsonl").write_text("".join(f'{{"case": "{id}"}}\\n' for id in IDS))
    (folder / "rows.jsonl").write_text("".join(
        f'{{"case": "{id}", "rule": "R1", "trace": "140012345678 of {at}"}}\\n' for at, id in enumerate(IDS)
    ))
""".replace("IDS", str(ids))
    (tree / "harness/deepstack_harness/__main__.py").write_text(LISTS + program)
    assert main(["make", str(tree / "out"), "--tree", str(tree), "--part", "run-ci"]) == 0
    _, *records = read_part(tree / "out/run-ci.jsonl.xz")
    rows = [(f"NUMBER of {at} | R1", id_) for at, id_ in enumerate(ids)]
    cases = [(f"case {id_}", id_) for id_ in ids]
    assert {(record["key"], record["case"]) for record in records} == {*rows, *cases}


@pytest.mark.parametrize("text", ["4 passed in 8.05s", "4 passed in 106.12s (0:01:46)", "4 passed in 1 s"])
def test_a_time_is_left_out(text: str) -> None:
    assert Tree(ROOT, "python").plain(text) == "4 passed in TIME s"


def test_a_checkout_that_does_not_run_is_not_measured(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where another harness is installed, which would run instead."""
    make = ["make", str(tmp_path / "out"), "--part", "list", "--tree"]
    assert main([*make, str(tmp_path)]) == 1
    assert f"{tmp_path} has no harness that " in capsys.readouterr().out
    (tree / "harness/deepstack_harness/__main__.py").write_text("import nothing_of_this_name")
    assert main([*make, str(tree)]) == 1
    assert "No module named 'nothing_of_this_name'" in capsys.readouterr().out
    assert not list((tmp_path / "out").iterdir())


def test_the_releases_of_the_cases_and_one_of_each_engine_are_measured() -> None:
    texts = [(ROOT / "cases" / name).read_text() for name in ("test_audit_releases.py", "test_releases.py")]
    assert {release for text in texts for release in re.findall(r'"(\d+\.\d+\.\d+)"', text)} == set(VLLM)
    packages = {source.partition("==")[0] for source in OTHERS}
    assert packages | {"vllm"} == {engine.package.name for engine in RELEASED}
    assert {f"inputs-{source.replace('==', '-')}" for source in INPUTS} <= parts().keys()

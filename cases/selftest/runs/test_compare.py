"""`compare` names a planted change for what it is, against the last run and over the history."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.runs.written_results import about, case, write
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.run import close
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.runs.compare import Change, ChangeKind, compare, seconds
from deepstack_harness.runs.machine import environment
from deepstack_harness.runs.records import Files, Shard
from deepstack_harness.runs.report.page import render_page
from deepstack_harness.runs.report.run_data import load_run
from deepstack_harness.runs.report.texts import render_markdown
from deepstack_harness.runs.store import RunWriter, read_stored

BASE = {"a": ("PASS", "PASS"), "b": ("PASS", "XFAIL")}


def changes(
    tmp_path: Path, old: dict[str, tuple[str, str]], new: dict[str, tuple[str, str]]
) -> list[tuple[str, str, str]]:
    actual = compare(read_stored(write(tmp_path / "old", old)), read_stored(write(tmp_path / "new", new)))
    return [(change.kind, change.metric, change.case) for change in actual]


def test_an_equal_run_is_unchanged(tmp_path: Path) -> None:
    assert changes(tmp_path, BASE, BASE) == []


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    by_day(
        [
            ("PASS", "FAIL", ChangeKind.REGRESSION),
            ("PASS", "XFAIL", ChangeKind.REGRESSION),
            ("PASS", "ERROR", ChangeKind.REGRESSION),
            ("XFAIL", "ERROR", ChangeKind.REGRESSION),
            ("SKIP", "FAIL", ChangeKind.REGRESSION),
            ("ERROR", "FAIL", ChangeKind.REGRESSION),
            ("XFAIL", "IMPROVED", ChangeKind.IMPROVEMENT),
            ("FAIL", "PASS", ChangeKind.IMPROVEMENT),
            ("ERROR", "PASS", ChangeKind.IMPROVEMENT),
            ("PASS", "SKIP", ChangeKind.MISSING),
            ("XFAIL", "SKIP", ChangeKind.MISSING),
            ("SKIP", "PASS", ChangeKind.NEW),
            ("FAIL", "XFAIL", None),
            ("IMPROVED", "PASS", None),
        ],
        count=6,
    ),
)
def test_a_verdict_that_changed(tmp_path: Path, old: str, new: str, kind: ChangeKind | None) -> None:
    actual = changes(tmp_path, {"a": ("PASS", old)}, {"a": ("PASS", new)})
    assert actual == ([] if kind is None else [(kind, "verdict R2", "a")])


def test_a_change_of_a_rule_has_its_promise(tmp_path: Path) -> None:
    old, new = (write(tmp_path / verdict, {"a": (verdict, "PASS")}) for verdict in ("PASS", "FAIL"))
    assert main(["compare", str(old), str(new), "--json", str(tmp_path / "changes")]) == ExitCode.BROKEN
    (change,) = map(json.loads, (tmp_path / "changes").read_text().splitlines())
    assert (change["metric"], change["promise"]) == ("verdict R0", "I1")


def test_cases_that_are_gone_and_that_are_new(tmp_path: Path) -> None:
    actual = changes(tmp_path, {**BASE, "gone": BASE["a"]}, {**BASE, "came": BASE["a"]})
    assert actual == [(ChangeKind.MISSING, "case", "gone"), (ChangeKind.NEW, "case", "came")]


@pytest.mark.parametrize(
    ("metric", "before", "now", "kind"),
    by_day(
        [
            ("distance", 1e-5, 5e-5, ChangeKind.REGRESSION),
            ("distance", 1e-5, 3e-5, None),
            ("distance", 5e-5, 1e-5, ChangeKind.IMPROVEMENT),
            ("distance", 0.0, 3e-6, None),  # rounding is 1e-6
            ("distance", 0.0, 5e-6, ChangeKind.REGRESSION),
            ("graphs", 1, 2, ChangeKind.REGRESSION),
            ("graphs", 3, 2, ChangeKind.IMPROVEMENT),
            ("recompiles", 0, 1, ChangeKind.REGRESSION),
            ("recompiles", 1, 0, ChangeKind.IMPROVEMENT),
            ("seconds", 1.0, 100.0, None),
        ],
        count=5,
    ),
)
def test_a_figure_that_changed(
    tmp_path: Path, metric: str, before: float, now: float, kind: ChangeKind | None
) -> None:
    old, new = (
        read_stored(write(tmp_path / name, {"a": BASE["a"]}, {"a": case("a", **{metric: value})}))  # type: ignore[arg-type]
        for name, value in (("old", before), ("new", now))
    )
    actual = compare(old, new)
    assert [(change.kind, change.metric) for change in actual] == ([] if kind is None else [(kind, metric)])


def test_seconds_that_grew_most_come_first(tmp_path: Path) -> None:
    old = write(tmp_path / "old", BASE, {"a": case("a", seconds=1.0), "b": case("b", seconds=1.0)})
    new = write(tmp_path / "new", BASE, {"a": case("a", seconds=1.0), "b": case("b", seconds=3.0)})
    assert [change[1:] for change in seconds(read_stored(old), read_stored(new))] == [(1.0, 3.0), (1.0, 1.0)]


def nights(tmp_path: Path, distances: list[float], verdicts: list[str]) -> list[Change]:
    """The last is NEW, the one before it OLD."""
    runs = []
    for number, (distance, verdict) in enumerate(zip(distances, verdicts, strict=True)):
        written = {"a": replace(case("a"), distances=case("a", distance=distance).distances)}
        runs.append(
            read_stored(write(tmp_path / str(number), {"a": ("PASS", verdict)}, written, started=f"{number}"))
        )
    *history, old, new = runs
    return compare(old, new, history)


def test_a_drift_too_slow_for_two_runs_is_seen_over_the_history(tmp_path: Path) -> None:
    actual = nights(tmp_path, [1e-5, 1e-5, 1e-5, 2e-5, 4e-5, 8e-5], ["PASS"] * 6)
    assert [(change.kind, change.metric, change.since) for change in actual] == [
        (ChangeKind.REGRESSION, "distance", "the last 5 runs")
    ]
    assert (actual[0].before, actual[0].after) == ("1e-05", "8e-05")


def test_what_broke_last_night_is_still_broken_tonight(tmp_path: Path) -> None:
    actual = nights(tmp_path, [0.0] * 5, ["PASS", "PASS", "PASS", "FAIL", "FAIL"])
    assert [(change.kind, change.metric, change.since) for change in actual] == [
        (ChangeKind.REGRESSION, "verdict R2", "the last 4 runs")
    ]


def test_what_was_mended_last_night_is_not_reported_again(tmp_path: Path) -> None:
    assert nights(tmp_path, [0.0] * 5, ["FAIL", "FAIL", "FAIL", "PASS", "PASS"]) == []


def test_one_bad_night_in_the_history_is_no_baseline(tmp_path: Path) -> None:
    assert nights(tmp_path, [1e-5, 1e-2, 1e-5, 1e-5, 1e-5], ["PASS", "ERROR", "PASS", "PASS", "PASS"]) == []


def test_a_case_that_was_gone_last_night_is_still_missing(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "history" / str(number), BASE, started=f"2026-01-0{number}")
    old, new = (write(tmp_path / name, {"a": BASE["a"]}) for name in ("old", "new"))
    assert main(["compare", str(old), str(new), "--quiet"]) == ExitCode.HOLDS
    words = ["--history", str(tmp_path / "history"), "--quiet"]
    assert main(["compare", str(old), str(new), *words]) == ExitCode.BROKEN


def test_a_case_that_was_there_in_a_minority_of_nights_is_not_missed(tmp_path: Path) -> None:
    played = [BASE, {"a": BASE["a"]}, {"a": BASE["a"]}]
    runs = [
        read_stored(write(tmp_path / str(n), verdicts, started=str(n))) for n, verdicts in enumerate(played)
    ]
    assert compare(runs[1], runs[2], runs[:1]) == []


@pytest.mark.parametrize(
    ("new", "sentence", "code"),
    [
        ({**BASE, "a": ("PASS", "FAIL")}, "regression: R2 boundary: broken", ExitCode.BROKEN),
        (
            {**BASE, "b": ("PASS", "IMPROVED")},
            "improvement: kept now, R2 boundary: broken before",
            ExitCode.BROKEN,
        ),
        ({**BASE, "a": ("PASS", "SKIP")}, "missing: R2: no longer put to the test", ExitCode.BROKEN),
        ({**BASE, "a": ("ERROR", "ERROR")}, "regression: not judged: played", ExitCode.BROKEN),
        ({"a": BASE["a"]}, "missing: cases that are gone", ExitCode.BROKEN),
        ({**BASE, "c": ("PASS", "PASS")}, "new: cases that are new", ExitCode.HOLDS),
        (BASE, "nothing changed", ExitCode.HOLDS),
    ],
)
def test_the_command_names_each_change_and_exits(
    tmp_path: Path,
    new: dict[str, tuple[str, str]],
    sentence: str,
    code: ExitCode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folders = [str(write(tmp_path / name, verdicts)) for name, verdicts in (("old", BASE), ("new", new))]
    assert main(["compare", *folders]) == code
    assert sentence in capsys.readouterr().out


def test_all_lists_each_change_under_its_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = {**BASE, "a": ("PASS", "FAIL"), "c": ("PASS", "PASS")}
    folders = [str(write(tmp_path / name, verdicts)) for name, verdicts in (("old", BASE), ("new", new))]
    assert main(["compare", *folders, "--all"]) == ExitCode.BROKEN
    said = capsys.readouterr().out
    assert said.startswith("2 findings: 1 regression, 1 new (2 changes in 2 cases)\n")
    assert "regression  verdict R2  kept -> broken" in said
    assert re.search(r"new +case +not there -> there", said)


def test_both_sides_are_shown_with_their_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (write(tmp_path / name, BASE) for name in ("old", "new"))
    record = json.loads((old / "run.json").read_text())
    record["environment"]["torch"] = "2.10.0"
    (old / "run.json").write_text(json.dumps(record))
    assert main(["compare", str(old), str(new)]) == ExitCode.HOLDS
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("OLD  old: torch 2.10.0, ")
    here = read_stored(new).abouts[0].versions
    assert second.startswith(f"NEW  new: {here[0]}, ")
    assert main(["compare", str(new), str(new)]) == ExitCode.HOLDS
    assert capsys.readouterr().out.splitlines()[1] == "NEW  new: the same versions"


NOT_APPLIED = "guard policy drop_all was not applied: of {} guards 0 should be kept, torch checks {}"


def with_details(folder: Path, *details: str) -> None:
    """Give the rows of a run that were not judged these reasons, in their order."""
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    reasons = iter(details)
    for line in lines:
        line["detail"] = next(reasons) if line["verdict"] == "ERROR" else line["detail"]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_cases_that_were_not_measured_for_one_reason_are_one_finding_which_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"a": ("PASS", "ERROR"), "b": ("PASS", "ERROR"), "c": ("PASS", "ERROR")}
    old = write(tmp_path / "old", dict.fromkeys(broken, ("PASS", "PASS")))
    new = write(tmp_path / "new", broken)
    with_details(
        new, NOT_APPLIED.format(12, 12), NOT_APPLIED.format(7, 3), "step 2 'get 4': no graph was built"
    )
    assert main(["compare", str(old), str(new)]) == ExitCode.BROKEN
    said = capsys.readouterr().out
    assert "regression: not judged: guard policy drop_all was not applied\n  in        2 cases" in said
    assert "regression: not judged: no graph was built\n  in        1 case" in said
    last = said.splitlines()[-1]
    assert last == "2 regressions (3 changes in 3 cases); not judged: guard policy drop_all was not applied"


def test_the_last_line_of_a_run_names_the_cause_that_a_comparison_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write(
        tmp_path,
        {"a": ("PASS", "ERROR"), "b": ("PASS", "ERROR"), "c": ("XFAIL", "FAIL"), "d": ("PASS", "IMPROVED")},
    )
    with_details(new, NOT_APPLIED.format(12, 12), NOT_APPLIED.format(7, 3))
    stored = read_stored(new)
    assert not Output(None, quiet=False).show(close(stored.rows, stored.cases, "here"))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        "4 cases; 4 did not come to their end: 1 FAIL, 2 ERROR, 1 IMPROVED, 1 XFAIL, 3 PASS; "
        "2 times not judged: guard policy drop_all was not applied and 2 other causes; see here"
    )


def with_settings(folder: Path, **settings: str) -> Path:
    record = json.loads((folder / "run.json").read_text())
    record["environment"]["settings"] = settings
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_settings_that_differ_are_shown_and_named_in_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = with_settings(write(tmp_path / "old", BASE), TORCHDYNAMO_VERBOSE="1", TRITON_CACHE_DIR="/a")
    new = with_settings(
        write(tmp_path / "new", BASE), TORCHINDUCTOR_CPP_WRAPPER="1", TORCHDYNAMO_VERBOSE="0",
        OMP_NUM_THREADS="7", TORCH_LOGS="output_code",
    )  # fmt: skip
    assert main(["compare", str(old), str(new)]) == ExitCode.HOLDS
    said = capsys.readouterr().out.splitlines()
    assert "     setting TORCHINDUCTOR_CPP_WRAPPER: not set before, '1' now" in said
    assert "     setting TORCHDYNAMO_VERBOSE: '1' before, '0' now" in said
    assert not [line for line in said if "OMP" in line or "CACHE" in line or "LOGS" in line]
    assert said[-1] == "nothing changed; other settings: TORCHDYNAMO_VERBOSE, TORCHINDUCTOR_CPP_WRAPPER"
    assert main(["compare", str(old), str(old)]) == ExitCode.HOLDS
    assert "setting" not in capsys.readouterr().out


def test_a_page_names_the_settings_that_differ(tmp_path: Path) -> None:
    with_settings(write(tmp_path / "1", BASE, started="2026-01-01"), TORCHDYNAMO_VERBOSE="1")
    new = with_settings(write(tmp_path / "2", BASE, started="2026-01-02"), TORCHINDUCTOR_CPP_WRAPPER="1")
    run = load_run(new, tmp_path)
    for page in (render_page(run), render_markdown(run)):
        for name in ("TORCHDYNAMO_VERBOSE", "TORCHINDUCTOR_CPP_WRAPPER"):
            assert f"Another setting, {name}: " in page.replace("\\_", "_")


def test_a_run_goes_on_under_the_settings_that_it_began_with(tmp_path: Path) -> None:
    begun = about(2)
    RunWriter(Files(tmp_path), begun, resume=False).close()
    other = replace(
        begun.environment, settings={**begun.environment.settings, "TORCHINDUCTOR_CPP_WRAPPER": "1"}
    )
    with pytest.raises(
        UsageError, match="other settings: TORCHINDUCTOR_CPP_WRAPPER: not set before, '1' now"
    ):
        RunWriter(Files(tmp_path), replace(begun, environment=other), resume=True)
    same = replace(begun.environment, settings={**begun.environment.settings, "CUDA_VISIBLE_DEVICES": "1"})
    RunWriter(Files(tmp_path), replace(begun, environment=same), resume=True).close()


def test_shards_with_other_settings_are_not_one_run(tmp_path: Path) -> None:
    for index in (1, 2):
        write(tmp_path, {f"{index}": ("PASS", "PASS")}, shard=Shard(index, 2))
        file = Files(tmp_path, Shard(index, 2)).about  # as written on another machine, and copied here
        record = json.loads(file.read_text())
        record["environment"]["settings"]["TORCHINDUCTOR_CPP_WRAPPER"] = f"{index}"
        file.with_name(f"{index}").write_text(json.dumps(record))
    for index in (1, 2):
        (tmp_path / f"{index}").replace(Files(tmp_path, Shard(index, 2)).about)
    mixed = "its shards ran with other settings: TORCHINDUCTOR_CPP_WRAPPER: '1' before, '2' now"
    assert read_stored(tmp_path).mixed == mixed


@pytest.mark.parametrize(
    "name",
    ["TORCHINDUCTOR_CPP_WRAPPER", "TORCH_COMPILE_DEBUG", "ATEN_CPU_CAPABILITY", "TENSORIFY_PYTHON_SCALARS"],
)
def test_a_variable_that_changes_what_is_compiled_is_stored(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert environment().settings[name] == "1"


def unfinished(folder: Path, cases: int) -> None:
    """As a run that was killed leaves its folder."""
    record = json.loads((folder / "run.json").read_text())
    record |= {"finished": None, "planned": {"groups": 1, "cases": cases}}
    (folder / "run.json").write_text(json.dumps(record))


def test_cases_missing_from_an_unfinished_run_are_neither_gone_nor_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = write(tmp_path / "whole", BASE), write(tmp_path / "part", {"a": BASE["a"]})
    unfinished(part, 3888)
    assert compare(read_stored(part), read_stored(whole)) == []
    assert main(["compare", str(part), str(whole)]) == ExitCode.HOLDS
    assert "unfinished: 1 of 3,888 cases have run" in capsys.readouterr().out
    assert main(["compare", str(whole), str(part)]) == ExitCode.BROKEN  # nobody knows about the rest
    said = capsys.readouterr().out
    assert "unfinished: 1 of 3,888 cases have run" in said
    assert said.splitlines()[-1] == "nothing changed; NEW is unfinished"


def test_a_missing_shard_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"a": BASE["a"]}, shard=Shard(1, 3))
    assert read_stored(tmp_path).unfinished == "1 of 1 cases have run, and 2 of 3 shards are not here"


def test_changes_are_json_for_programs(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old", BASE), write(tmp_path / "new", {"a": BASE["a"]})
    main(["compare", str(old), str(new), "--json", str(tmp_path / "changes.jsonl"), "--quiet"])
    (line,) = (tmp_path / "changes.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "missing"
    assert json.loads(line)["schema_version"] == 1
    assert json.loads(line)["cause"] == "cases that are gone"
    assert json.loads(line)["consequence"] is False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "nowhere"], "'nowhere' holds no run"),
        (["old", "new", "--history", "/nowhere"], "history '/nowhere' is neither"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    tmp_path: Path,
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        write(tmp_path / name, BASE)
    assert main(["compare", *words, "--quiet"]) == ExitCode.USAGE
    assert sentence in capsys.readouterr().err


def test_a_run_of_two_versions_of_torch_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (write(tmp_path / name, BASE) for name in ("old", "new"))
    path = new / "rows.jsonl"
    path.write_text(path.read_text().replace('"torch":"2.13.0"', '"torch":"2.15.0"', 2))
    assert main(["compare", str(old), str(new)]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "is not one run: its rows were measured 2 with torch" in said
    assert main(["report", str(new)]) == ExitCode.HOLDS
    assert "nothing unexpected; not one environment" in capsys.readouterr().out.splitlines()[-1]


def test_the_command_shows_the_seconds_that_grew_and_judges_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"old": case("a", seconds=1.0), "new": case("a", seconds=2.5)}
    folders = [
        str(write(tmp_path / name, {"a": ("PASS", "PASS")}, {"a": item})) for name, item in runs.items()
    ]
    assert main(["compare", *folders]) == ExitCode.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert "nothing changed" in lines[-1]
    (grew,) = [line for line in lines[-3:] if line.startswith("  2.50 s, before 1.00 s: ")]
    assert "reference" in grew


def test_the_command_reports_what_of_the_history_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = tmp_path / "nights"
    old, new = (str(write(nights / name, BASE, started=name)) for name in ("2026-01-01", "2026-01-02"))
    (nights / "torn").mkdir()
    (nights / "torn" / "run.json").write_text("{")
    assert main(["compare", old, new, "--history", str(nights)]) == ExitCode.HOLDS
    assert "torn" in capsys.readouterr().out.splitlines()[0]

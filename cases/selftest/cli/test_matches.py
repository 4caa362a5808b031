"""Words in place of a name: `list incidents`, `show` and `repro` print what fits, and play nothing."""

import json
from pathlib import Path

import pytest

from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "words", [["list", "incidents"], ["list", "--quiet", "incidents"], ["show"], ["show", "--quiet"]]
)
def test_words_give_a_ranked_list(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert main([*words, "answers", "ignore", "the", "image", "--json", str(path)]) == ExitCode.HOLDS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["place"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["name"] == "43602"
    assert rows[0]["reasons"] == ["symptom: answers ignore the image"]
    assert rows[0]["command"] == "deepstack-harness repro 43602"


def test_repro_plays_nothing_for_words_and_names_the_best_command(capsys: Capture) -> None:
    assert main(["repro", "CUDA error: illegal memory access"]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert "    deepstack-harness repro 40038\n" in out
    assert "names no incident; the best fit: deepstack-harness repro 40038" in err
    assert main(["repro", "answers ignore the image", "--bisect", "--quiet"]) == ExitCode.BISECT_SKIP


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_lines_fit_and_commands_stay_whole(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    main(["show", "garbage with FULL cudagraph in vllm 0.33.0, mlx-vlm too"])
    out = capsys.readouterr().out
    assert all(len(line) <= columns for line in out.splitlines() if "deepstack-harness " not in line)
    assert "mlx-vlm cannot be judged: its payload is an argument of MLX arrays" in " ".join(out.split())


def test_faults_and_reports_are_marked_as_what_they_are(capsys: Capture) -> None:
    assert main(["show", "masked_scatter drops payload rows"]) == ExitCode.HOLDS
    assert "fault F10-lmdeploy of lmdeploy 0.18.0, unknown: " in " ".join(capsys.readouterr().out.split())
    assert main(["show", "FlashComm removed, enable_sp read"]) == ExitCode.HOLDS
    assert "not covered: vllm-ascend 13946" in capsys.readouterr().out
    assert main(["show", "F14"]) == ExitCode.HOLDS
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(
        "1 entry fits 'F14'; the best first 1 fault F14 of vllm 0.24.0 .. 0.33.0, shown by"
    )


def test_an_exact_name_among_the_words_of_list_is_that_incident(capsys: Capture) -> None:
    assert main(["list", "incidents", "vllm", "43617"]) == ExitCode.HOLDS
    assert "1 entry fits 'vllm 43617'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "list arms eager",
            "words search only incidents, not arms: write 'list incidents eager'",
        ),
        ("list answers ignore", "'answers' is no kind: to search write 'list incidents answers ignore'"),
        ("list incidents how do we", "nothing in the catalogue fits 'how do we'"),
        ("show 43603", "unknown incident '43603'; nearest are 43602 (none-while-profiling), "),
        ("repro 43603", "unknown incident '43603'; nearest are 43602 (none-while-profiling), "),
        ("repro 43602 --arm fast", "unknown arm 'fast'; nearest are "),
    ],
)
def test_what_fits_nothing_is_one_line(words: str, sentence: str, capsys: Capture) -> None:
    assert main(words.split()) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1

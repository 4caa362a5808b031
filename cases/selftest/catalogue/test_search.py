"""Search by the words of users: which place an incident takes, and what is read out of a query."""

import sqlite3

import pytest
from packaging.version import Version

from cases.selftest.catalogue.reported_sentences import WRITTEN_FIRST, WRITTEN_LAST
from deepstack_harness.catalogue.incidents import INCIDENTS, Incident
from deepstack_harness.catalogue.known import LIVE_FAULTS, LiveFault, Report
from deepstack_harness.catalogue.search import find_or_search, parse_query, search
from deepstack_harness.errors import MachineError, UsageError


def names(text: str) -> list[str]:
    return [match.name for match in search(text)]


@pytest.mark.parametrize(("sentence", "incident"), [(query[1], query[2]) for query in WRITTEN_FIRST])
def test_a_reported_sentence_finds_its_incident_first(sentence: str, incident: str) -> None:
    assert names(sentence)[0] == incident


@pytest.mark.parametrize(("sentence", "incident"), [(query[1], query[2]) for query in WRITTEN_LAST])
def test_a_sentence_that_nothing_was_made_for_finds_its_incident(sentence: str, incident: str) -> None:
    assert incident in names(sentence)[:2]


@pytest.mark.parametrize(
    ("reference", "incident"), [(query[0], query[2]) for query in WRITTEN_FIRST + WRITTEN_LAST]
)
def test_the_report_of_a_sentence_belongs_to_its_incident_or_to_no_other(
    reference: str, incident: str
) -> None:
    owners = [entry.id for entry in INCIDENTS.entries if reference in entry.references]
    assert owners in ([incident], [])


@pytest.mark.parametrize("incident", INCIDENTS.entries, ids=lambda incident: incident.id)
def test_an_incident_is_found_by_its_own_words(incident: Incident) -> None:
    for text in (*incident.symptoms, *incident.errors):
        assert incident.id in names(text)[:3], text


def test_words_in_another_form_find_the_same() -> None:
    assert names("the answer ignored images")[0] == names("answers ignore the image")[0] == "43602"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("wrong answers Qwen3-VL 0.22", "43602"),
        ("wrong answers Qwen3-VL vllm==0.22.1", "43602"),
        ("Guard failed L['deepstack_input_embeds'] is None", "43602"),
        ("CUDA error: illegal memory access with LoRA", "40038"),
        ("CUDA error: illegal memory access after one long request", "5962"),
        ("AttributeError: 'NoneType' object has no attribute 'size'", "50891"),
        ("vllm 0.33.0 MOSS-Audio ignores the audio", "43602"),
    ],
)
def test_symptoms_models_releases_and_errors_lead_to_an_incident(text: str, first: str) -> None:
    assert names(text)[0] == first


def test_a_release_without_the_fault_speaks_against_it() -> None:
    assert names("wrong answers Qwen3-VL vllm==0.33.0")[0] != "43602"
    (score,) = [match.score for match in search("wrong answers vllm==0.22.1") if match.name == "43602"]
    (less,) = [match.score for match in search("wrong answers vllm==0.19.1") if match.name == "43602"]
    assert less < score


def test_each_match_gives_its_reason() -> None:
    best = search("wrong answers Qwen3-VL 0.22")[0]
    assert best.reasons == (
        "symptom: wrong answers with torch.compile, right with --enforce-eager",
        "model: Qwen3-VL",
        "release: vllm 0.20.0 .. before 0.23.0 (default settings)",
    )
    assert best.command == "deepstack-harness repro 43602"


def test_only_an_engine_and_a_model_list_what_they_have() -> None:
    assert set(names("Qwen3-Omni tpu-inference 0.32.0")) >= {"payload-on-model", "F2", "F2-audio"}


def test_faults_of_other_engines_and_reports_without_an_incident_take_part() -> None:
    entries = {match.name: match.entry for match in search("masked_scatter drops payload rows lmdeploy")}
    assert isinstance(entries["F10-lmdeploy"], LiveFault)
    (report,) = [
        match for match in search("FlashComm removed, enable_sp read") if match.name == "vllm-ascend 13946"
    ]
    assert isinstance(report.entry, Report)
    assert not report.command


@pytest.mark.parametrize(
    ("text", "models", "versions"),
    [
        ("Qwen/qwen3_vl-8b", ("Qwen3-VL",), ()),
        ("Qwen3-VL-30B-A3B-Instruct", ("Qwen3-VL", "Qwen3-VL-MoE"), ()),
        ("qwen3vl on vLLM v0.22.1", ("Qwen3-VL",), (("vllm", "0.22.1"),)),
        ("vllm-omni==0.22.0", (), (("vllm-omni", "0.22.0"),)),
        ("sglang 0.5.13.post1", (), (("sglang", "0.5.13.post1"),)),
        ("since 0.22 it fails", (), (("", "0.22"),)),
        ("gemma4 e4b", ("Gemma 4",), ()),
        ("gemma 40", (), ()),
        ("a path/to/vllm-thing", (), ()),
    ],
)
def test_models_and_releases_are_read_out_of_a_query(
    text: str, models: tuple[str, ...], versions: tuple[tuple[str, str], ...]
) -> None:
    query = parse_query(text)
    assert query.models == models
    assert query.versions == tuple((package, Version(version)) for package, version in versions)
    assert not {"qwen3", "vl", "gemma4", "30b", "8b"} & set(query.words)


def test_an_exact_name_is_no_search() -> None:
    entry = find_or_search("43617")
    assert isinstance(entry, Incident)
    assert entry.id == "43602"
    fault = find_or_search("f14")
    assert isinstance(fault, list)
    assert [match.entry for match in fault] == [entry for entry in LIVE_FAULTS.entries if entry.id == "F14"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("43603", "unknown incident '43603'; nearest are 43602 (none-while-profiling), "),
        ("none-while-profilling", "unknown incident 'none-while-profilling'; nearest are 43602 (none-while-"),
        ("qqq", "unknown incident 'qqq'; nearest are "),
        ("how can we do it", "nothing in the catalogue fits 'how can we do it': say what is seen"),
        ('"; UNION NEAR(xyz) * --', "nothing in the catalogue fits"),
        ("\x00 \x1b", "nothing in the catalogue fits"),
    ],
)
def test_no_match_is_reported_in_one_line(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_or_search(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_python_without_full_text_search_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        def execute(self, *_: object) -> None:
            raise sqlite3.OperationalError("no such module: fts5")

        def close(self) -> None: ...

    monkeypatch.setattr(sqlite3, "connect", lambda _: Connection())
    with pytest.raises(MachineError, match="SQLite has no full-text search: no such module: fts5"):
        search("answers ignore the image")


def test_matches_come_best_first_and_weak_ones_are_left_out() -> None:
    matches = search("answers ignore the image")
    scores = [match.score for match in matches]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] >= scores[0] / 4
    assert all(match.reasons for match in matches)

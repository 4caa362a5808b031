"""Names, as they are read from the files of their classes, and those that other packages declare."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from cases.selftest.catalogue.declared_packages import declare, forget
from deepstack_harness.catalogue.buffers import REVISIONS, _makes_buffers
from deepstack_harness.catalogue.incidents import catalogue, clashes, find
from deepstack_harness.catalogue.registry import CALLERS, FAMILIES, ReadClass, read_classes
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.names import Names, imported
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles import judge
from deepstack_harness.contract.oracles.judge import refined
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.models.engine import Engine, SequenceParallel
from deepstack_harness.models.engine_faults import MadeElsewhere

TEXT = '''
class SkipsSet(Engine):
    """Engine that never sets.

    More of it.
    """

    faulty: ClassVar[bool] = True
    rule = Rule.STRUCTURE
    arm = "eager"
    levels = 3
    rows: int


class Other:
    name = "other_2"


def function(): ...
'''


def test_classes_are_read_with_what_they_state_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text(TEXT)
    skips, other = read_classes(tmp_path / "faults.py", "acme.engines")
    assert skips == ReadClass(
        "acme.engines.faults:SkipsSet",
        "skips_set",
        "Engine that never sets.",
        {"faulty": True, "rule": "STRUCTURE", "arm": "eager"},
    )
    assert other == ReadClass("acme.engines.faults:Other", "other_2", "", {"name": "other_2"})


def engines(base: type[Engine]) -> set[type[Engine]]:
    return {base}.union(*(engines(subclass) for subclass in base.__subclasses__()))


def test_every_engine_is_a_caller_but_for_two_bases() -> None:
    named = {imported(entry.target) for entry in CALLERS.own.values()}
    ours = {engine for engine in engines(Engine) if engine.__module__.startswith("deepstack_harness.models.")}
    assert ours - named == {SequenceParallel, MadeElsewhere}
    assert next(iter(CALLERS)) == "engine"


@pytest.mark.parametrize("name", CALLERS.own)
def test_a_caller_is_faulty_if_the_catalogue_states_it_for_a_right_buffer(name: str) -> None:
    subject = f"reference@{name}"
    incidents = catalogue()
    faulty = any(subject in incident.faulty for incident in incidents)
    fixed = any(subject in incident.fixed for incident in incidents)
    assert getattr(imported(CALLERS[name].target), "faulty") is bool(CALLERS[name].fault)  # noqa: B009
    assert not (faulty and fixed)
    if faulty or fixed:
        assert bool(CALLERS[name].fault) == faulty


@pytest.mark.parametrize("name", REVISIONS.own)
def test_a_revision_is_described_by_a_whole_sentence(name: str) -> None:
    assert REVISIONS[name].summary.endswith(".")
    assert callable(imported(REVISIONS[name].target))


RING = """
class Ring:
    pass

BUFFER = Ring()
"""
INCIDENT = """
[[incident]]
id = "{id}"
name = "{name}"
title = "a title"
references = ["acme 7"]
families = ["qwen3_vl"]
rules = ["R1"]
faulty = ["pr40932"]
fixed = ["reference"]
symptom = "a symptom"
cause = "a cause"

[[incident.run]]
trace = "cap 16: get 4"
arms = ["eager"]
broken = {{ pr40932 = ["R1"] }}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    forget()
    for name in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[name]


def revisions() -> Names:
    return Names("revision", REVISIONS.own, "revisions")


def load(names: Names, name: str) -> object:
    return names.load(name, _makes_buffers, "a class that makes buffers")


def test_names_of_other_packages_come_after_ours_and_nothing_is_imported(place: Path) -> None:
    (place / "acme.py").write_text("raise RuntimeError('imported')")
    declare(place, "acme-one", {"revisions": {"b": "acme:Ring", "a": "acme:Ring"}})
    names = revisions()
    assert list(names) == [*REVISIONS.own, "a", "b"]
    assert "a" in names
    assert names["a"].summary == "of acme-one 1.0 (acme:Ring)"
    assert "acme" not in sys.modules


def test_a_name_is_loaded_when_it_is_used(place: Path) -> None:
    (place / "acme_inner").mkdir()
    (place / "acme_inner" / "ring.py").write_text(RING)
    declare(place, "acme-one", {"revisions": {"ring": "acme_inner.ring:Ring"}})
    assert getattr(load(revisions(), "ring"), "__name__", "") == "Ring"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("acme", "cannot be loaded: 'acme' is not MODULE:ATTRIBUTE"),
        ("acme Ring", "cannot be loaded: 'acme Ring' is not MODULE:ATTRIBUTE"),
        ("acme_missing:Ring", "cannot be loaded: module 'acme_missing' is not installed"),
        ("acme.inner:Ring", "cannot be loaded from acme.inner:Ring: ModuleNotFoundError: No module named"),
        ("acme:Square", "cannot be loaded from acme:Square: AttributeError: module 'acme' has no attribute"),
        ("acme_raises:Ring", "cannot be loaded from acme_raises:Ring: ZeroDivisionError: division by zero"),
        ("acme:BUFFER", "is not a class that makes buffers: acme:BUFFER"),
    ],
)
def test_a_broken_entry_point_is_one_sentence_when_it_is_used(place: Path, value: str, sentence: str) -> None:
    (place / "acme.py").write_text(RING)
    (place / "acme_raises.py").write_text("1 / 0")
    declare(place, "acme-one", {"revisions": {"ring": value}})
    names = revisions()
    assert load(names, "reference") is not None
    with pytest.raises(UsageError, match=re.escape(f"revision 'ring' of acme-one 1.0 {sentence}")):
        load(names, "ring")


def test_a_name_of_ours_is_refused_once_another_package_declares_it(place: Path) -> None:
    declare(place, "acme-one", {"revisions": {"reference": "acme:Ring"}})
    names = revisions()
    assert len(names) == len(REVISIONS.own)
    assert load(names, "pr43617") is not None
    sentence = (
        "revision 'reference' is declared by deepstack-harness and by acme-one 1.0: rename its entry point"
    )
    with pytest.raises(UsageError, match=sentence):
        load(names, "reference")


def test_a_name_of_two_other_packages_is_refused(place: Path) -> None:
    declare(place, "acme-two", {"revisions": {"ring": "acme:Ring"}})
    declare(place, "acme-one", {"revisions": {"ring": "acme:Ring"}})
    with pytest.raises(UsageError, match=r"'ring' is declared by acme-one 1\.0 and by acme-two 1\.0"):
        load(revisions(), "ring")


def test_a_group_does_not_see_the_names_of_another(place: Path) -> None:
    declare(place, "acme-one", {"callers": {"reference": "acme:Caller"}})
    assert load(revisions(), "reference") is not None


def write_incidents(place: Path, package: str, text: str) -> None:
    (place / package).mkdir()
    (place / package / "__init__.py").write_text("raise RuntimeError('imported')")
    (place / package / "incidents.toml").write_text(f"schema_version = 1\n{text}")
    declare(place, f"{package}-buffers", {"incidents": {package: f"{package}:incidents.toml"}})


def test_incidents_are_read_without_an_import(place: Path) -> None:
    write_incidents(place, "acme", INCIDENT.format(id="acme-7", name="ring-is-none"))
    assert find("ring-is-none") is find("acme-7") is find("acme#7") is catalogue()[-1]
    assert "acme" not in sys.modules


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[incident]", "is not a catalogue of incidents"),
        (INCIDENT.format(id="x", name="y").replace("get 4", "get four"), "get four"),
        (INCIDENT.format(id="x", name="y").replace('arms = ["eager"]', 'arms = ["egaer"]'), "'egaer'"),
    ],
)
def test_a_broken_file_of_incidents_stops_runs_but_ours_are_still_shown(
    place: Path, text: str, sentence: str
) -> None:
    write_incidents(place, "acme", text)
    whose = "incidents 'acme' of acme-buffers 1.0 cannot be read: "
    assert find("43602").name == "none-while-profiling"
    for use in (catalogue, lambda: find("acme-7")):
        with pytest.raises(UsageError, match=f"{whose}.*{sentence}"):
            use()


def test_a_number_of_two_projects_is_ambiguous(place: Path) -> None:
    for package in ("acme", "other"):
        text = INCIDENT.format(id=f"{package}-1", name=f"{package}-fault").replace("acme 7", f"{package} 7")
        write_incidents(place, package, text)
    assert find("other 7").name == "other-fault"
    with pytest.raises(UsageError, match="^incident '7' is ambiguous: write one of acme 7, other 7$"):
        find("7")


def test_clashes_of_a_package_are_only_its_own(place: Path) -> None:
    for package, name in (("acme", "dual-stream"), ("other", "other-fault")):
        write_incidents(place, package, INCIDENT.format(id=f"{package}-1", name=name))
    (sentence,) = clashes("acme-buffers 1.0")
    assert sentence.startswith(
        "incident 'dual-stream' is declared by deepstack-harness and by acme-buffers 1.0"
    )
    assert list(clashes("other-buffers 1.0")) == []


def test_a_module_without_a_spec_is_installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("acme_made")
    monkeypatch.setattr(made, "Ring", type("Ring", (), {}), raising=False)
    monkeypatch.setitem(sys.modules, "acme_made", made)
    declare(place, "acme-one", {"revisions": {"ring": "acme_made:Ring"}})
    assert load(revisions(), "ring") is made.__dict__["Ring"]


def test_incidents_may_lie_in_an_inner_package(place: Path) -> None:
    (place / "acme_deep" / "data").mkdir(parents=True)
    text = INCIDENT.format(id="deep-1", name="lies-deep")
    (place / "acme_deep" / "data" / "faults.toml").write_text(f"schema_version = 1\n{text}")
    declare(place, "acme-deep", {"incidents": {"deep": "acme_deep.data:faults.toml"}})
    assert find("deep-1").name == "lies-deep"
    assert "acme_deep" not in sys.modules


def test_a_missing_file_of_incidents_is_named(place: Path) -> None:
    write_incidents(place, "acme", "")
    (place / "acme" / "incidents.toml").unlink()
    with pytest.raises(UsageError, match="package 'acme' has no file 'incidents.toml'"):
        catalogue()


@pytest.mark.parametrize(
    ("id_", "name", "taken"), [("43602", "other", "43602"), ("x", "dual-stream", "dual-stream")]
)
def test_an_incident_that_two_packages_have_is_refused(place: Path, id_: str, name: str, taken: str) -> None:
    write_incidents(place, "acme", INCIDENT.format(id=id_, name=name))
    sentence = f"incident '{taken}' is declared by deepstack-harness and by acme-buffers 1.0"
    for use in (catalogue, lambda: find(taken)):
        with pytest.raises(UsageError, match=sentence):
            use()
    assert find("S9").name == "stale-rows"


ORACLE = """
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict

def fails(observed):
    return Judgement(Rule.BOUNDARY, Verdict.FAIL, detail="a row is wrong")

def passes(observed):
    return Judgement(Rule.BOUNDARY, Verdict.PASS)

def raises(observed):
    raise ZeroDivisionError("by zero")

def judges_another_rule(observed):
    return Judgement(Rule.FRESHNESS, Verdict.FAIL)

def answers_nothing(observed):
    return None
"""
CASE = Case("qwen3_vl", registered("reference"), Trace.parse("cap 4: get 4"), EAGER)
SEEN = Observation("float32", "cpu", levels=3, hidden=8, torch="2.13", steps=())


def judged(place: Path, monkeypatch: pytest.MonkeyPatch, function: str, ours: Verdict) -> Judgement:
    """R2, of which ours is marked with `ours`, with a function of another package as an oracle of R2."""
    (place / "acme.py").write_text(ORACLE)
    declare(place, "acme-one", {"oracles": {"R2.acme": f"acme:{function}"}})
    monkeypatch.setattr(judge, "EXTRA_ORACLES", Names("oracle", {}, "oracles"))
    return refined(Judgement(Rule.BOUNDARY, ours, detail="ours"), ObservedCase(CASE, SEEN))


@pytest.mark.parametrize(
    ("function", "ours", "verdict", "sentence"),
    [
        ("fails", Verdict.PASS, Verdict.FAIL, "R2.acme of acme-one 1.0: a row is wrong"),
        ("fails", Verdict.SKIP, Verdict.FAIL, "R2.acme of acme-one 1.0: a row is wrong"),
        ("fails", Verdict.ERROR, Verdict.FAIL, "R2.acme of acme-one 1.0: a row is wrong"),
        ("fails", Verdict.FAIL, Verdict.FAIL, "ours"),
        ("passes", Verdict.FAIL, Verdict.FAIL, "ours"),
        ("passes", Verdict.SKIP, Verdict.SKIP, "ours"),
        ("raises", Verdict.PASS, Verdict.ERROR, "R2.acme of acme-one 1.0: raised ZeroDivisionError: by zero"),
        ("raises", Verdict.FAIL, Verdict.FAIL, "ours"),
        ("judges_another_rule", Verdict.PASS, Verdict.ERROR, "which is no judgement of R2"),
        ("answers_nothing", Verdict.PASS, Verdict.ERROR, "answered None, which is no judgement of R2"),
    ],
)
def test_an_oracle_of_another_package_can_only_make_a_judgement_worse(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    ours: Verdict,
    verdict: Verdict,
    sentence: str,
) -> None:
    actual = judged(place, monkeypatch, function, ours)
    assert (actual.rule, actual.verdict) == (Rule.BOUNDARY, verdict)
    assert sentence in actual.detail


def test_an_oracle_does_not_change_other_rules(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(place, monkeypatch, "fails", Verdict.PASS)
    ours = Judgement(Rule.CLEAR, Verdict.PASS)
    assert refined(ours, ObservedCase(CASE, SEEN)) is ours


@pytest.mark.parametrize("name", ["acme", "R2", "R2.", "R12.acme", "R99.acme"])
def test_an_oracle_is_named_after_a_rule_of_the_buffer(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    declare(place, "acme-one", {"oracles": {name: "acme:fails"}})
    monkeypatch.setattr(judge, "EXTRA_ORACLES", Names("oracle", {}, "oracles"))
    with pytest.raises(UsageError, match=rf"oracle '{name}' of acme-one 1\.0 is not called RULE\.NAME"):
        refined(Judgement(Rule.BOUNDARY, Verdict.PASS), ObservedCase(CASE, SEEN))


def test_this_environment_declares_nothing() -> None:
    # What else is installed here must not decide what the other tests see.
    assert dict(FAMILIES) == dict(FAMILIES.own)

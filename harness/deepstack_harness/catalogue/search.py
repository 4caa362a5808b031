"""Search of the catalogue by what users have: a symptom in their words, an error text, a model, a release.

Words are ranked by BM25 in SQLite's full-text search (FTS5), each phrase of an entry as a document of its
own, so that the best one is the reason of a match. Models and releases are facts, which raise or lower what
the words gave: a release that default settings bring to the fault counts most, one that is outside of an
entry's range speaks against it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from deepstack_harness.catalogue.affected import (
    Sighting,
    models_named,
    models_of,
    packages,
    sightings_of,
)
from deepstack_harness.catalogue.incidents import Incident, UnknownIncident, find, readable_incidents
from deepstack_harness.catalogue.known import LIVE_FAULTS, UPSTREAM, LiveFault, Report
from deepstack_harness.catalogue.orders import covers
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.text import one_line, shortened

MOST = 8
"""Matches that are returned at most: they fit on a terminal, with two lines each."""


@dataclass(frozen=True)
class Match:
    """An entry that fits a query: an incident, a live fault, or a report that is no incident.

    `reasons` are phrases of the entry, the best first; `score` is comparable only within one query.
    """

    entry: Incident | LiveFault | Report
    score: float
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name that `show` and `repro` take."""
        return self.entry.reference if isinstance(self.entry, Report) else self.entry.id

    @property
    def title(self) -> str:
        """One line."""
        return self.entry.reason if isinstance(self.entry, Report) else self.entry.title

    @property
    def command(self) -> str:
        """The command that shows it; empty where none does."""
        if isinstance(self.entry, Incident):
            return f"deepstack-harness repro {self.entry.id}"
        if isinstance(self.entry, LiveFault) and self.entry.commands:
            return f"deepstack-harness {self.entry.commands[0]}"
        return ""


@dataclass(frozen=True)
class Query:
    """A query taken apart: words to rank by, models, and versions by their package ("" for one without)."""

    words: tuple[str, ...]
    models: tuple[str, ...]
    versions: tuple[tuple[str, Version | None], ...]


_NO_WORDS = frozenset(
    """
    a an and any are as at be been but by can do does for from has have i if in into is it its my no not of on
    or our so some than that the their them then there they this to up was we were what when which while why
    will with without you your s t
    """.split()  # noqa: SIM905  # a list of 70 quoted words is harder to read
)
_ALIASES: Mapping[str, str] = MappingProxyType({"paddle": "fastdeploy", "trtllm": "tensorrt-llm"})
_NUMBER = r"v?(\d+(?:\.\d+)+(?:\.?(?:post|dev|rc|a|b)\d+)*)"
_BARE_VERSION = re.compile(rf"(?<![\w.=+-]){_NUMBER}(?![\w.]*\w)", re.IGNORECASE)


def parse_query(text: str) -> Query:
    """Take a query apart; the words of models, packages and versions do not count as words again."""
    models = models_named(text)
    rest = text.lower()
    versions: list[tuple[str, Version | None]] = []
    for package in sorted({*packages(), *_ALIASES}, key=len, reverse=True):
        name = r"[-_. ]?".join(map(re.escape, package.split("-")))
        pattern = re.compile(rf"(?<![\w/.-]){name}(?![\w])(?:\s*(?:==|[ :@/])\s*{_NUMBER})?")
        found = pattern.finditer(rest)
        versions.extend((_ALIASES.get(package, package), _version(match[1])) for match in found)
        rest = pattern.sub(" ", rest)
    versions.extend(("", _version(found[1])) for found in _BARE_VERSION.finditer(rest))
    rest = _BARE_VERSION.sub(" ", rest)
    for model in models:
        rest = re.sub(r"[-_. ]?".join(re.findall(r"[a-z]+|\d+", model.lower())), " ", rest)
    # One digit or a size of a model, `30b`, describes no fault.
    words = [
        word
        for word in re.findall(r"[^\W_]+", rest)
        if word not in _NO_WORDS and not re.fullmatch(r"\d|a?\d+b", word)
    ]
    return Query(tuple(dict.fromkeys(words)), models, tuple(dict.fromkeys(versions)))


def _version(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        return None


def search(text: str) -> list[Match]:
    """Return the entries that fit a query, the best first.

    Raises `MachineError` for an SQLite without full-text search.
    """
    query = parse_query(text)
    entries: list[Incident | LiveFault | Report] = [
        *readable_incidents(),
        *LIVE_FAULTS.entries,
        *(report for report in UPSTREAM.entries if report.reason),
    ]
    phrases = [(number, *phrase) for number, entry in enumerate(entries) for phrase in _phrases(entry)]
    ranked: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for row, score in _ranked_by_words(query.words, [phrase[3] for phrase in phrases]):
        number, kind, weight, phrase = phrases[row]
        ranked[number].append((weight * score, f"{kind}: {phrase}"))
    matches = []
    for number, entry in enumerate(entries):
        best = sorted(ranked[number], key=lambda ranking: -ranking[0])
        facts = list(_facts(entry, query))
        words = sum(score / 2**place for place, (score, _) in enumerate(best[:3]))
        if words or any(factor > 1 for factor, _ in facts):
            reasons = [text for score, text in best[:2] if score > best[0][0] / 2]
            score = (words or 1.0) * prod(factor for factor, _ in facts)
            matches.append(Match(entry, score, (*reasons, *(text for _, text in facts))))
    matches.sort(key=lambda match: -match.score)
    return [match for match in matches if match.score >= matches[0].score / 4][:MOST]


def find_or_search(text: str) -> Incident | list[Match]:
    """Return the incident of that name or reference, or what fits the words of a user, the best first.

    Raises `UsageError` for a name that is spelled much like one, and for words that fit nothing.
    """
    try:
        return find(text)
    except UnknownIncident as error:
        faults = [fault for fault in LIVE_FAULTS.entries if fault.id.lower() == text.strip().lower()]
        if faults:
            return [Match(fault, 1.0, (f"name: {fault.id}",)) for fault in faults]
        matches = [] if error.is_near else search(text)
        if matches:
            return matches
        if len(text.split()) < 2:
            raise
        raise UsageError(
            f"nothing in the catalogue fits '{shortened(one_line(text), 200)}': say what is seen, and the "
            "model, the engine and its version, or paste the error text"
        ) from None


def _phrases(entry: Incident | LiveFault | Report) -> Iterator[tuple[str, float, str]]:
    """Yield what an entry is ranked by: kind of phrase, weight, text.

    Weights were chosen on the first half of `cases/selftest/catalogue/reported_sentences.py`, and hold on the
    second. They order the matches, and leave none out.
    """
    match entry:
        case Incident():
            yield from (("symptom", 1.5, text) for text in entry.symptoms)
            yield from (("error text", 1.5, text) for text in entry.errors)
            yield "title", 1.0, entry.title
            yield "symptom", 1.0, entry.symptom
            yield "cause", 0.7, entry.cause
        case LiveFault():
            yield "title", 1.0, entry.title
            yield "reach", 0.7, entry.reach
        case Report():
            yield "not covered", 0.7, entry.reason


def _ranked_by_words(words: Sequence[str], phrases: Sequence[str]) -> Iterator[tuple[int, float]]:
    """Yield the place and the score of each phrase that has one of the words, or another form of it."""
    if not words:
        return
    try:
        import sqlite3
    except ImportError as error:
        raise MachineError(f"this Python has no SQLite to search with: {error}") from None
    asked = " OR ".join(f'"{word}"' for word in words)
    with closing(sqlite3.connect(":memory:")) as base:
        try:
            base.execute("CREATE VIRTUAL TABLE phrases USING fts5(text, tokenize = 'porter unicode61')")
        except sqlite3.OperationalError as error:
            raise MachineError(f"this Python's SQLite has no full-text search: {error}") from None
        base.executemany("INSERT INTO phrases(rowid, text) VALUES (?, ?)", enumerate(phrases))
        yield from base.execute("SELECT rowid, -bm25(phrases) FROM phrases WHERE phrases MATCH ?", (asked,))


def _facts(entry: Incident | LiveFault | Report, query: Query) -> Iterator[tuple[float, str]]:
    """Yield how the models and releases of the query fit an entry: a factor of its score, and a sentence."""
    if isinstance(entry, Report):
        return
    sightings: Sequence[Sighting]
    sightings = sightings_of(entry) if isinstance(entry, Incident) else (Sighting(entry),)
    models = models_of(sightings)
    named = [model for model in query.models if model in models]
    if named:
        yield 1.2, f"model: {', '.join(named)}"
        sightings = [
            sighting
            for sighting in sightings
            if not sighting.releases.models or set(named) & set(sighting.releases.models)
        ]
    elif query.models and models:
        yield 0.7, f"known of {', '.join(models)} alone"
    for package, version in query.versions:
        yield from _release_facts(sightings, package, version)


def _release_facts(
    sightings: Sequence[Sighting], package: str, version: Version | None
) -> Iterator[tuple[float, str]]:
    """Yield how one engine, with or without a version, or a version without an engine fits."""
    ours = [seen for seen in sightings if package in ("", canonicalize_name(seen.releases.package))]
    having = [seen for seen in ours if version is not None and _has_of_series(seen, version)]
    if having:
        reaches = ", ".join(dict.fromkeys(_REACHES[seen.releases.reach_kind] for seen in having))
        factor = max(_FACTORS[seen.releases.reach_kind] for seen in having)
        yield factor, f"release: {_in_words(having)} ({reaches})"
    elif ours and package and version is None:
        yield 1.2, f"engine: {_in_words(ours)}"
    elif ours and package and all(seen.releases.versions for seen in ours):
        yield 0.5, f"not known of {version}: {_in_words(ours)}"
    elif sightings and not ours:
        yield 0.7, f"not known of {package}: {_in_words(sightings)}"


# A user who does not know the cause most likely runs default settings.
_FACTORS: Mapping[str, float] = MappingProxyType({"default": 1.6, "flag": 1.3, "latent": 1.1, "unknown": 1.1})
_REACHES: Mapping[str, str] = MappingProxyType(
    {
        "default": "default settings",
        "flag": "with a setting",
        "latent": "in no order that the engine calls",
        "unknown": "not known how",
    }
)


def _in_words(sightings: Sequence[Sighting]) -> str:
    each = (f"{sighting.releases.package} {sighting.releases.in_words}" for sighting in sightings)
    return "; ".join(dict.fromkeys(each))


def _has_of_series(sighting: Sighting, version: Version) -> bool:
    """Return whether a release that begins with `version` is affected: 0.22 means 0.22.0, 0.22.1, .."""
    releases = sighting.releases.versions
    if not releases:
        return False
    bounds = (Version(bound.version) for bound in SpecifierSet(releases))
    series = (bound for bound in bounds if bound.release[: len(version.release)] == version.release)
    return any(covers(releases, release) for release in (version, *series))

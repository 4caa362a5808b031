"""Pages that are made from the catalogue at each build: one for an incident, one for an engine.

`fixtures/` and the engines' own files are the source; nothing is played.  The pages are written below
`docs/gallery` and `docs/engines`, which git ignores.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from sphinx.application import Sphinx

from deepstack_harness.audit.class_verdicts import RULES
from deepstack_harness.catalogue.affected import (
    Sighting,
    audit_command,
    every_sighting,
    looked_at,
    sightings_of,
)
from deepstack_harness.catalogue.incidents import Incident, RegionRun, Run, readable_incidents
from deepstack_harness.catalogue.known import (
    KNOWN_CARRIERS,
    KNOWN_FAILURES,
    LIVE_FAULTS,
    FaultyReleases,
    KnownFailure,
    LiveFault,
    link_of,
    state_of,
)
from deepstack_harness.catalogue.orders import covers
from deepstack_harness.catalogue.registry import HISTORIES
from deepstack_harness.catalogue.scripts import render_script
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.verdicts import Effect, FaultKind
from deepstack_harness.engines.discover import SplitFiles
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.known import NOT_JUDGED, all_engines

Lines = Iterator[str]


def prose(text: str) -> str:
    """Return text of the catalogue as Markdown; names with underscores and `<` stay as they are."""
    return re.sub(r"(?<!\\)([<>*_|\[\]])", r"\\\1", text)


def sentence(text: str) -> str:
    """Return text that begins with a capital letter and ends with a full stop."""
    return prose(text[:1].upper() + text[1:]) + ("" if text.endswith((".", "?")) else ".")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """Yield a table of Markdown, and nothing where there are no rows."""
    body = [f"| {' | '.join(cell.replace(chr(10), ' ') for cell in row)} |" for row in rows]
    if body:
        yield from (f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *body, "")


def commands(*lines: str) -> Lines:
    """Yield a block of commands."""
    yield from ("```console", *(f"$ deepstack-harness {line}" for line in lines), "```", "")


def linked(reference: str) -> str:
    """Return a reference with its address, where it is upstream."""
    link = link_of(reference)
    return f"[{reference}]({link})" if link else reference


def rule_link(rule: Rule | Promise) -> str:
    """Return the name of a rule or promise with its word, as a link to its page."""
    page = f"rules/{rule}" if isinstance(rule, Rule) else "promises"
    anchor = "" if isinstance(rule, Rule) else f"#{rule.lower()}-{rule.word.replace(' ', '-')}"
    return f"[{rule} {rule.word}](../reference/{page}.md{anchor})"


def named(rules: Iterable[Rule | Promise]) -> str:
    """Return rules as links, in a row."""
    return ", ".join(rule_link(rule) for rule in rules)


def releases_rows(sightings: Iterable[Sighting], *, of_engine: bool = False) -> Iterator[list[str]]:
    """Yield the cells of releases with a fault.

    These are the engine and the models (on the page of an engine one cell with the fault and the models),
    then the releases, reach, evidence and effect.
    """
    for sighting in sightings:
        its = sighting.releases
        models = ", ".join(its.models) or "all"
        first = [f"{fault_cell(sighting)}<br>{models}"] if of_engine else [engine_link(its.package), models]
        yield [
            *first,
            releases_cell(sighting),
            reach_cell(its),
            str(its.seen),
            effects_cell(sighting.effects),
        ]


def releases_cell(sighting: Sighting) -> str:
    """Return the releases, and the first one without the fault."""
    words = prose(sighting.releases.in_words)
    if sighting.fixed_in:
        return f"{words}<br>fixed in {sighting.fixed_in}"
    return f"{words}<br>no fix known" if sighting.releases.versions else words


def effects_cell(effects: Iterable[Effect]) -> str:
    """Return what users notice as code, in a row."""
    return ", ".join(f"`{effect}`" for effect in effects) or "not measured"


def reach_cell(its: FaultyReleases) -> str:
    """Return how an engine comes there, the kind in bold."""
    rest = its.reach.removeprefix(its.reach_kind)
    return f"**{its.reach_kind}**{with_settings(rest)}"


_SETTING = re.compile(r"--[a-z][\w.-]*(?:=\w+)?|\b[A-Z]+(?:_[A-Z0-9]+)+(?:=\w+)?|\b\w+_\w+(?:=\w+)?")
"""An option, an environment variable, a name of Python; the last two with a value or without."""


def with_settings(text: str) -> str:
    """Return text as Markdown with its settings as code."""
    parts, end = [], 0
    for found in _SETTING.finditer(text):
        parts += [prose(text[end : found.start()]), f"`{found.group()}`"]
        end = found.end()
    return "".join([*parts, prose(text[end:])])


def fault_cell(sighting: Sighting) -> str:
    """Return the title of a fault, linked to its incident."""
    incident = sighting.incident
    return f"[{prose(sighting.title)}](../gallery/{incident.id}.md)" if incident else prose(sighting.title)


def engine_link(package: str) -> str:
    """Return a package, linked to its page where it has one."""
    known = {canonicalize_name(engine.package.name) for engine in all_engines()}
    name = canonicalize_name(package)
    return f"[{package}](../engines/{name}.md)" if name in known else package


def incident_page(incident: Incident) -> Lines:
    """Yield the page of one incident."""
    failures = [each for each in KNOWN_FAILURES.entries if each.reference in incident.references]
    faults = [each for each in LIVE_FAULTS.entries if each.incident == incident.id]
    yield from (f"# {incident.id}: {prose(incident.title)}", "", f"*Also called `{incident.name}`.*", "")
    yield from (" · ".join(links_of(incident)), "")
    yield from ("## What users see", "", sentence(incident.symptom), "")
    yield from (f"- {sentence(each)}" for each in incident.symptoms)
    yield ""
    if incident.errors:
        yield from (
            "The message is one of these, or much like it:",
            "",
            "```text",
            *incident.errors,
            "```",
            "",
        )
    yield from ("## Cause", "", sentence(incident.cause), "")
    yield from ("## Who has it", "")
    rows = list(releases_rows(sightings_of(incident)))
    yield from table(("engine", "models", "releases", "reach", "evidence", "effect"), rows)
    if failures and not rows:
        yield from ("Its releases are known class by class: see below.", "")
    elif not rows:
        yield from ("Nobody wrote down which releases have it.", "")
    if faults:
        yield from ("## Alive in the newest releases", "", *live_lines(faults), "")
    yield from ("## What shows it", "", f"It breaks {named(incident.promised)}.", "")
    yield from (
        f"Its {{term}}`effect`, where its program shows it: {effects_cell(incident.effects)}.",
        "",
    )
    yield from runs_lines(incident)
    if failures:
        yield from ("In released classes:", "", *failure_lines(failures, with_engine=True))
    yield from ("## See it here", "", *commands(*see_it(incident)))
    yield from program_lines(incident)
    yield from ("## Reports", "")
    for reference in incident.references:
        state = state_of(reference)
        yield f"- {linked(reference)}" + (f" ({state})" if state else "")
    if all(reference.startswith("sequence ") for reference in incident.references):
        yield from ("", "No user reported it: it is a sequence of calls that was found here.")
    yield ""


def links_of(incident: Incident) -> Iterator[str]:
    """Yield where a reader goes on: the reports, the program, and the guides about releases."""
    upstream = [linked(reference) for reference in incident.references if link_of(reference)]
    if upstream:
        yield f"Reported as {', '.join(upstream)}"
    if incident.script is not None:
        yield "[the program](#the-program)"
    yield "[is my release affected?](../how-to/is-my-release-affected.md)"


def see_it(incident: Incident) -> Lines:
    """Yield the commands of an incident."""
    yield f"repro {incident.id}"
    if incident.script is not None:
        yield f"repro {incident.id} --script show.py"
    for package in packages_of(incident) if incident.about_sources else ():
        known = next((each for each in all_engines() if each.package.name == package), None)
        _, newest = looked_at(canonicalize_name(package))
        if known and newest and not (known.by_path or known.overlay):
            yield f"repro {incident.id} --source {package}=={newest}"
            return


def live_lines(faults: Iterable[LiveFault]) -> Lines:
    """Yield what became of each live fault, with the commands that show it."""
    for fault in faults:
        releases = f"{engine_link(fault.package)} {prose(fault.in_words)}"
        yield f"**{prose(fault.title)}**: {releases}, {fault.state}."
        yield f"Reach: {with_settings(fault.reach)}. Evidence: {fault.seen}."
        if fault.upstream:
            yield f"There is [a draft of a report](../{fault.upstream.removeprefix('docs/')})."
        yield ""
        if fault.commands:
            yield from commands(*fault.commands)
        elif fault.why:
            yield from (sentence(fault.why), "")


def arms_cell(arms: Iterable[str]) -> str:
    """Return arms as code, in a row."""
    return ", ".join(f"`{arm}`" for arm in arms)


def broken_cell(broken: Mapping[str, Sequence[Rule | Promise]]) -> str:
    """Return who breaks what, each on a line of its own."""
    return "<br>".join(f"`{name}`: {' '.join(rules)}" for name, rules in broken.items()) or "nothing"


def runs_lines(incident: Incident) -> Lines:
    """Yield the recorded runs of an incident: the trace, the arms, and what each revision breaks there."""
    rows = [[played_cell(f"`{run.trace}`", run), broken_cell(run.broken)] for run in incident.run]
    if rows:
        yield "A {term}`trace` is a list of operations, and an {term}`arm` a way to run it. The names on the"
        yield "right are buffers of ours; `@CALLER` is the code that calls one."
        yield ""
    yield from table(("trace, and the arms under which it is run", "who breaks what"), rows)
    rows = [
        [played_cell(f"the input `{run.input}`" if run.input else "", run), broken_cell(run.broken)]
        for run in incident.region
    ]
    if rows:
        yield from ("An {term}`arm` is a way to run a program.", "")
    yield from table(("input that is named, and the arms", "who breaks what"), rows)
    for title, subjects in (("With the fault", incident.faulty), ("Without it", incident.fixed)):
        if incident.region:
            yield f"{title}:"
            yield ""
            yield from (f"- `{name}`: {sentence(HISTORIES[name].summary)}" for name in subjects)
            yield ""
        elif subjects:
            yield from (f"{title}: {', '.join(f'`{name}`' for name in subjects)}.", "")


def played_cell(what: str, run: Run | RegionRun) -> str:
    """Return what is run, the arms, and what the run shows, each on a line of its own."""
    note = f"*{prose(run.note)}*" if run.note else ""
    return "<br>".join(filter(None, (what, f"under {arms_cell(run.arms)}", note)))


def failure_lines(failures: Iterable[KnownFailure], *, with_engine: bool) -> Lines:
    """Yield what released classes are known to break."""
    rows = [
        [*([engine_link(each.package)] if with_engine else []), each.releases.replace(",", ", ").join("``"),
         ", ".join(f"`{name}`" for name in each.classes), shapes_cell(each), effects_by_rule(each)]
        for each in failures
    ]  # fmt: skip
    heads = ("releases", "classes", "what is wrong", "rules, each with its effect")
    yield from table(("engine", *heads) if with_engine else heads, rows)


def shapes_cell(failure: KnownFailure) -> str:
    """Return what is wrong: the shapes of the fault, of which "none" is an answer."""
    return (
        ", ".join("the answer is None" if each is FaultKind.NONE else each for each in failure.shapes)
        or "any"
    )


def effects_by_rule(failure: KnownFailure) -> str:
    """Return what users notice of each rule, rules with the same effects together."""
    effects = {rule: effects_cell(failure.effects.get(rule, ())) for rule in failure.rules}
    rules = {cell: [rule for rule in effects if effects[rule] == cell] for cell in effects.values()}
    return "<br>".join(f"{' '.join(of)}: {cell}" for cell, of in rules.items())


def program_lines(incident: Incident) -> Lines:
    """Yield the standalone program of an incident, folded."""
    if incident.script is None:
        return
    family = incident.families[0] if incident.families else ""
    yield from (
        "## The program", "",
        f"It needs {prose(incident.script.needs)} alone. It exits with 1 where the fault shows.", "",
        f":::{{literalinclude}} programs/{incident.id}.py", ":language: python", ":class: program", ":::", "",
    )  # fmt: skip
    assert family or not incident.run


def programs() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each program."""
    for incident in readable_incidents():
        if incident.script is not None:
            yield (
                f"gallery/programs/{incident.id}.py",
                render_script(incident, incident.families[0] if incident.families else ""),
            )


def gallery_index() -> Lines:
    """Yield the list of all incidents, and the table from symptoms to them."""
    incidents = readable_incidents()
    yield from (
        "# Incidents", "",
        f"{len(incidents)} faults of the real world, each of which this harness shows on a CPU.",
        "Look for what you see in the table below, or use the search of this site: error texts, models and",
        "releases are found too. `deepstack-harness show 'wrong answers Qwen3-VL 0.22'` ranks them by words.",
        "",
        "## From what you see", "",
    )  # fmt: skip
    rows = sorted(
        ([sentence(symptom), f"[{incident.id}]({incident.id}.md)", ", ".join(packages_of(incident))]
         for incident in incidents for symptom in incident.symptoms or (incident.symptom,)),
        key=lambda row: row[0].lower(),
    )  # fmt: skip
    yield from table(("what users say", "incident", "engines"), rows)
    yield from ("## All incidents", "")
    yield from table(
        ("incident", "what happens", "breaks"),
        ([f"[{each.id}]({each.id}.md)", sentence(each.title), " ".join(each.promised)] for each in incidents),
    )
    yield from (
        "```{toctree}",
        ":hidden:",
        ":maxdepth: 1",
        "",
        *(f"{each.id} {each.name} <{each.id}>" if each.id != each.name else each.id for each in incidents),
        "```",
        "",
    )


def packages_of(incident: Incident) -> list[str]:
    """Return the engines that have an incident, or where it was reported."""
    having = [sighting.releases.package for sighting in sightings_of(incident)]
    reported = [reference.partition(" ")[0] for reference in incident.references]
    names = (name for name in (*having, *reported) if name != "sequence")
    return list({canonicalize_name(name): name for name in names}.values())  # spelled as in the report


def engine_page(engine: KnownEngine) -> Lines:
    """Yield the page of one engine."""
    package = engine.package.name
    name = canonicalize_name(package)
    first, last = looked_at(name)
    sightings = [each for each in every_sighting() if canonicalize_name(each.releases.package) == name]
    failures = [each for each in KNOWN_FAILURES.entries if canonicalize_name(each.package) == name]
    carriers = [each for each in KNOWN_CARRIERS.entries if canonicalize_name(each.package) == name]
    yield from (f"# {package}", "", f"{sentence(engine.how)} Since {engine.since}.", "")
    if engine.by_path:
        yield from (sentence(engine.by_path), "")
    if first is not None:
        yield from (f"Releases from {first} to {last} were looked at.", "")
        yield from commands(f"affected {package}=={last}", audit_command(name, str(last)))
    yield from (
        "How to [find out whether your release is affected](../how-to/is-my-release-affected.md), and how to",
        "[judge an engine](../how-to/judge-an-engine.md).",
        "",
    )
    yield from (
        "## Known faults",
        "",
        "The glossary explains {term}`reach`, {term}`evidence` and {term}`effect`,",
        "and [the list of engines](index.md) their values.",
        "",
    )
    rows = list(releases_rows(sightings, of_engine=True))
    yield from table(("fault, and models", "releases", "reach", "evidence", "effect"), rows)
    if not rows:
        yield from ("None is known.", "")
    yield from ("## Release by release", "", *matrix_lines(engine, failures))
    if failures:
        yield from ("## Classes that break a rule", "", *failure_lines(failures, with_engine=False))
    faults = [each for each in LIVE_FAULTS.entries if canonicalize_name(each.package) == name]
    if faults:
        yield from ("## Read or seen in the newest releases", "", *live_lines(faults))
    yield from ("## What is not judged", "")
    if engine.inapplicable:
        rows = [[rule_link(rule), sentence(why)] for rule, why in engine.inapplicable.items()]
        yield from table(("rule", "why it cannot be asked"), rows)
    rows = [
        [
            ", ".join(f"`{each}`" for each in carrier.carriers if each != "*")
            or f"all of {', '.join(f'`{file}`' for file in carrier.files)}",
            prose(carrier.releases),
            sentence(carrier.reason),
        ]
        for carrier in carriers
    ]
    yield from table(("class or function", "releases", "why it is not driven"), rows)
    if not (carriers or engine.inapplicable):
        yield from ("Everything that carries a payload is judged.", "")


def matrix_lines(engine: KnownEngine, failures: Sequence[KnownFailure]) -> Lines:
    """Yield the rules that some class breaks, for each span of releases between two changes."""
    edges = sorted({Version(each.version) for failure in failures for each in SpecifierSet(failure.releases)})
    rules = [rule for rule in Rule if any(rule in failure.rules for failure in failures)]
    unbroken = [rule for rule in RULES if rule not in rules and rule not in engine.inapplicable]
    was_looked_at = looked_at(canonicalize_name(engine.package.name))[0] is not None
    if unbroken and was_looked_at and not isinstance(engine.payload, SplitFiles):
        yield from (f"No class of a release that was looked at is known to break {named(unbroken)}.", "")
    if not rules:
        return
    rows: list[list[str]] = []
    for edge in edges:
        having = [each for each in failures if covers(each.releases, edge)]
        cells = [breaking(rule, having) for rule in rules]
        if not rows or rows[-1][1:] != cells:
            rows.append([str(edge), *cells])
    yield from (
        "How many classes break a rule from a release on, until the next line, and the effects that audits",
        "measured; beside a number alone none was measured. `live` or `captured` stands where a rule is",
        "broken in that {term}`regime` alone. An empty cell is a rule that no class is known to break there.",
        "A rule without a column is broken nowhere, or cannot be asked.",
        "",
    )  # fmt: skip
    yield from table(("from", *(rule_link(rule) for rule in rules)), rows)


def breaking(rule: Rule, failures: Iterable[KnownFailure]) -> str:
    """Return how many classes break a rule, in which regime where it is one alone, and the effects."""
    about = [failure for failure in failures if rule in failure.rules]
    classes = sorted({name for failure in about for name in failure.classes})
    regimes = (
        {regime for failure in about for regime in failure.regimes}
        if all(f.regimes for f in about)
        else set()
    )
    if not classes:
        return ""
    count = "all" if "*" in classes else str(len(classes))
    words = f"{count} {next(iter(regimes))}" if len(regimes) == 1 else count
    effects = {effect for failure in about for effect in failure.effects.get(rule, ())}
    in_order = [effect for effect in Effect if effect in effects]
    return f"{words}: {effects_cell(in_order)}" if effects else words


def engines_index() -> Lines:
    """Yield the list of engines, and those that cannot be judged."""
    engines = all_engines()
    yield from (
        "# Engines", "",
        "What each engine keeps and breaks, release by release. *Reach* says how an engine comes to a fault:",
        "`default` by its own call order, `flag` with a setting, `latent` by no order that it makes today.",
        "*Evidence* says what that rests on: seen in a running `engine`, `emulated`, its functions `run`,",
        "its source `read`, or `reported` by users.",
        "*Effect* is [what a user notices](../how-to/judge-an-engine.md#1-its-classes-by-the-contract):",
        "`output`, `padding`, `crash` or `cost`. That of a fault was measured on the decoder of its program,",
        "and that of a class by audits of its releases; `not measured`: no fact tells it.", "",
    )  # fmt: skip
    faults = {
        engine.package.name: sum(
            canonicalize_name(each.releases.package) == canonicalize_name(engine.package.name)
            for each in every_sighting()
        )
        for engine in engines
    }
    rows = [
        [
            f"[{engine.package.name}]({engine.package.name}.md)", sentence(engine.how),
            str(faults[engine.package.name]),
        ]
        for engine in engines
    ]  # fmt: skip
    yield from table(("engine", "its payload", "known faults"), rows)
    yield from ("## Engines that cannot be judged", "")
    yield from table(("package", "why"), ([name, sentence(why)] for name, why in NOT_JUDGED.items()))
    names = (engine.package.name for engine in engines)
    yield from ("```{toctree}", ":hidden:", ":maxdepth: 1", "", *names, "```", "")


def every_page() -> Iterator[tuple[str, str]]:
    """Yield the path below docs/ and the text of each page and program."""
    yield "gallery/index.md", "\n".join(gallery_index())
    yield "engines/index.md", "\n".join(engines_index())
    for incident in readable_incidents():
        yield f"gallery/{incident.id}.md", "\n".join(incident_page(incident))
    for engine in all_engines():
        yield f"engines/{engine.package.name}.md", "\n".join(engine_page(engine))
    yield from programs()


def write(app: Sphinx) -> None:
    """Write pages that changed, so that Sphinx reads no other, and remove those of earlier builds."""
    folder, current = Path(app.srcdir), set()
    for name, text in every_page():
        path = folder / name
        current.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in (each for name in ("gallery", "engines") for each in (folder / name).rglob("*.*")):
        if path not in current and path.is_file():
            path.unlink()


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

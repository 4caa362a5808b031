"""What fits the words of a user, for `list incidents WORDS`, `show WORDS` and `repro WORDS`: never played."""

from collections.abc import Sequence

from packaging.utils import canonicalize_name

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.catalogue.known import LiveFault, Report
from deepstack_harness.catalogue.search import Match
from deepstack_harness.document.blocks import BLANK, Document, Heading, Line
from deepstack_harness.text import one_line, plural, shortened


def show_matches(text: str, matches: Sequence[Match]) -> Document:
    """Print entries with their reasons and the command to copy, the best first; record a row for each."""
    asked = shortened(one_line(text), 200)
    fit = "fits" if len(matches) == 1 else "fit"
    yield Heading(f"{plural(len(matches), 'entry')} {fit} '{asked}'; the best first")
    for place, match in enumerate(matches, 1):
        kind, heading = _kind_and_heading(match)
        yield {
            "kind": "match",
            "place": place,
            "entry": kind,
            "name": match.name,
            "title": match.title,
            "reasons": match.reasons,
            "command": match.command,
        }
        yield BLANK
        yield Line(heading, "bold", lead=f"{place:2}  ")
        yield Line(match.title, lead="    ")
        for reason in match.reasons:
            yield Line(reason, lead="    - ")
        if match.command:
            yield Line("    ", command=match.command)
    yield BLANK
    from deepstack_harness.engines.known import NOT_JUDGED

    words = {canonicalize_name(word.partition("==")[0].strip(",.:;")) for word in asked.split()}
    for name in words & NOT_JUDGED.keys():
        yield Line(f"{name} cannot be judged: {NOT_JUDGED[name]}")


def _kind_and_heading(match: Match) -> tuple[str, str]:
    match match.entry:
        case Incident(id=number, name=name):
            return "incident", f"incident {number} ({name})"
        case LiveFault() as fault:
            state = f"shown by incident {fault.incident}" if fault.incident else f"{fault.state}: {fault.why}"
            return "fault", f"fault {fault.id} of {fault.package} {fault.in_words}, {state}"
        case Report() as report:
            return "not covered", f"not covered: {report.reference}"

"""The report of a watch in words, from facts of `watch_facts.region_facts`. Nothing here imports torch."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepstack_harness.text import one_line, plural

Facts = Mapping[str, Any]
WRITTEN = "WRITTEN"
"""The kind of what each run of captured code writes, and a replay does not."""


def words_of(text: str, most: int) -> str:
    """Return the first words of a text as one line of at most `most` characters, and '..' for others."""
    text = one_line(text)
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    whole = cut.rpartition(" ")[0] if text[most - 3] != " " else cut
    return f"{whole.rstrip(' ,;:') or cut} .."


def place(where: str) -> str:
    """Return FILE:LINE relative to the working directory, for a file below it."""
    return os.path.relpath(where) if where.startswith(f"{Path.cwd()}{os.sep}") else where


@dataclass
class FailureGroup:
    """One failed guard, or the same one in several layers or regions.

    `guard` is the one with the largest effect, under a name with `[*]` for what differs.
    """

    region: Facts
    guard: dict[str, Any]
    names: set[tuple[str, str]] = field(default_factory=set)
    regions: set[int] = field(default_factory=set)
    calls: list[int] = field(default_factory=list)


def findings(failed: Sequence[tuple[Facts, Facts]]) -> list[FailureGroup]:
    """Return failed guards with their regions, those of equal layers as one."""
    found: dict[tuple[object, ...], FailureGroup] = {}
    for region, guard in failed:
        name = _INDEX.sub("[*]", guard["name"])
        key = (
            region["name"], region["where"], name, _INDEX.sub("[*]", guard["rule"]), guard["then"],
            guard["now"], guard["where"],
        )  # fmt: skip
        finding = found.setdefault(key, FailureGroup(region, dict(guard)))
        if (guard["distance"] or 0) > (finding.guard["distance"] or 0):
            finding.guard = dict(guard)
        finding.names.add((guard["name"], guard["rule"]))
        finding.regions.add(id(region))
        finding.calls.append(guard["calls"])
    for finding in found.values():
        if len({name for name, _ in finding.names}) > 1:
            for key_ in ("name", "rule"):
                finding.guard[key_] = _INDEX.sub("[*]", finding.guard[key_])
    return list(found.values())


_INDEX = re.compile(r"\[\d+\](?!$)|(?<=s)\[\d+\]$")
"""An index inside a name: a layer. The last one may be a dimension, as in `x.shape[0]`."""


def finding_text(finding: FailureGroup, who: str = "") -> str:
    """Return a finding in one sentence; `who` is its process, where there are several."""
    region, guard = finding.region, finding.guard
    calls = plural(region["calls"], "replay" if region["captured"] else "call")
    least, most = min(finding.calls), max(finding.calls)
    often = f"{most} of {calls}" if least == most else f"{least} to {most} of {calls}"
    was = "were" if " and " in guard["name"] else "was"
    moment = "captured" if region["captured"] else "compiled"
    names, regions = len({name for name, _ in finding.names}), len(finding.regions)
    several = [f"{names} of them"] if names > 1 else []
    several += [f"in {regions} regions"] if regions > 1 else []
    name = f"{region['name']}: `{guard['name']}`" + (f" ({', '.join(several)})" if several else "")
    ends = [f"{name} {was} {guard['then']} when {moment}, and {guard['now']} in {often}"]
    if guard["kind"] == WRITTEN:
        ends = [f"{name} was {guard['then']} before the capture, and {guard['now']} after it"]
        ends.append(f"each run of the code writes it, and none of {calls} does")
    elif region["captured"]:
        ends.append("a replay reads what was captured")
    elif guard["assumed"]:
        reason, code = guard["reason"], words_of(guard["code"], 70)
        by = f", by `{code}` ({place(guard['where'])})" if code else f" ({reason})"
        ends += [
            f"{guard['assumed']} was assumed{by}",
            "the guard was dropped, so the graph computes as it was traced",
        ]
    else:
        rule = f" '{guard['rule']}'" if len(guard["rule"]) <= _LONGEST_RULE else ""
        where = place(guard["where"] or region["where"])
        ends.append(f"the guard{rule} ({where}) was dropped, so the graph computes as it was traced")
    if not region["captured"]:
        ends.append(guard["effect"])
    return "; ".join(ends) + (f" ({who})" if who else "")


_LONGEST_RULE = 80
"""Characters; torch's text of a guard on a tensor is longer, and has no more facts."""


def to_do(finding: FailureGroup) -> tuple[str, str]:
    """Return what a user can do about a finding, and the argument of `torch.compile` for it, if any."""
    region, guard = finding.region, finding.guard
    name = guard["name"]
    if guard["kind"] == WRITTEN:
        return f"to do: write {name} outside of what is captured, or hold it in a tensor", ""
    if region["captured"]:
        return "to do: capture one graph for each, or copy what changes into what was captured", ""
    keep = f"or keep the guard {guard['restored_by']}"
    if guard["is_setting"]:
        return f"to do: compile under the {name} that serving uses, {keep}", ""
    if guard["assumed"]:
        decide = f"take the decision on {name} before the compiled call"
        return (
            f"to do: {decide if guard['code'] else 'warm up with other sizes'}, or keep the guard SHAPE_ENV",
            "",
        )
    if " and " in name:
        return f"to do: compile with {name} as serving passes them, {keep}", ""
    if "[*]" in name:
        return f"to do: compile with {name} as in serving, or keep its guard", ""
    kept = f"guard_filter_fn=lambda guards: [guard.name == {guard['source']!r} for guard in guards]"
    return f"to do: compile with {name} as in serving, or keep its guard:", kept


def region_lines(regions: Sequence[Facts]) -> Iterator[str]:
    """Yield a line for each region by name, equal ones as one, with calls and dropped guards."""
    alike: dict[tuple[str, str, bool], list[Facts]] = {}
    for region in regions:
        if not region["uncompiled"]:
            alike.setdefault((region["name"], region["where"], region["captured"]), []).append(region)
    for (name, where, captured), group in alike.items():
        calls = sum(region["calls"] for region in group)
        several = f", {plural(len(group), 'region')}" if len(group) > 1 else ""
        dropped, kept = (sum(sum(region[key].values()) for region in group) for key in ("dropped", "kept"))
        what = (
            plural(calls, "replay") if captured
            else f"{plural(calls, 'call')}, {plural(dropped, 'guard')} dropped, {kept} kept"
        )  # fmt: skip
        yield f"  {name} ({place(where)}){several}: {what}"

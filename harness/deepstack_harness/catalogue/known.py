"""Known failures of releases, known carriers, upstream reports and live faults, read from `fixtures/`.

`known_failures.toml` has the rules that released classes are known to break, `known_carriers.toml` what
carries a payload and cannot be called by the harness. `upstream.toml` has the state of upstream issues and
pull requests. `live_faults.toml` has faults that were read in the code of the newest engines, each with its
verdict. `seen_inputs.toml` has what a running engine showed of inputs that an audit finds at risk.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from deepstack_harness.catalogue.orders import DEFAULT, FLAG, LATENT, UNKNOWN, covers
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Evidence, FaultKind
from deepstack_harness.files import DataFile

UNREPORTED = "unreported"
"""The reference of a known failure that has no report upstream."""


def _is_there(since: Mapping[str, str], name: str, version: Version) -> bool:
    return name not in since or version >= Version(since[name])


def _check_since(since: Mapping[str, str], names: Iterable[str]) -> None:
    if others := set(since).difference(names):
        raise ValueError(f"since of {', '.join(sorted(others))}, which is not among the names")
    for release in since.values():
        Version(release)


def names_since(names: Iterable[str], since: Mapping[str, str]) -> str:
    """Return names in one line, with the first release of those that came later: `Cosmos3 (from 0.23.0)`."""
    return ", ".join(f"{name} (from {since[name]})" if name in since else name for name in names)


class KnownFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules that classes (`*`: all) of some releases break, and the upstream issue that they wait for.

    `regimes` are those in which they are broken, and `shapes` the kinds of fault. Any other fault of the
    same rule is new. Empty `shapes` mean every kind, empty `regimes` either regime or both. `traces` are the
    shortest ones that show each rule on releases: they identify a fault of a source without a version.
    `effects` are those that audits of the releases measured; a rule without any has none that was measured.
    `worst_reach` is `flag` where no release comes to a fault of it with default settings: in a tree a fault
    that default settings lead to is then a new one.
    `since` names the first release of each class that came later than the first of `releases`.
    """

    package: str
    releases: str
    classes: tuple[str, ...]
    rules: tuple[Rule, ...]
    reference: str
    regimes: tuple[Regime, ...] = ()
    shapes: tuple[FaultKind, ...] = ()
    traces: Mapping[Rule, tuple[str, ...]] = msgspec.field(default_factory=dict)
    effects: Mapping[Rule, tuple[Effect, ...]] = msgspec.field(default_factory=dict)
    worst_reach: Literal["flag", "default"] = "default"
    since: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a range that cannot be parsed; msgspec adds its place in the file."""
        SpecifierSet(self.releases)
        for field, by_rule in (("traces", self.traces), ("effects", self.effects)):
            if others := set(by_rule) - set(self.rules):
                raise ValueError(f"{field} of {', '.join(sorted(others))}, which is none of its rules")
        _check_since(self.since, self.classes)

    def is_about(self, package: str, version: Version | None, model_class: str) -> bool:
        """Return whether this entry is about that class of that version; see `releases.covers`.

        For an unknown version (None) it is, whatever its releases are: see `KnownRules`.
        """
        named = "*" in self.classes or model_class in self.classes
        if not named or package != self.package or version is None:
            return named and package == self.package
        return covers(self.releases, version) and _is_there(self.since, model_class, version)


class KnownRules(dict[Rule, str]):
    """The known failures of one class, rule -> reference, and which faults of a rule they are about.

    Of a source whose version is unknown, such as a git checkout, these are the failures of any release. A
    fault of it is known where class, rule, regime, shape and trace are those of an entry; nothing has to be
    broken.
    """

    def __init__(self, entries: Iterable[KnownFailure], *, of_any_release: bool = False) -> None:
        """Take the entries that are about the class."""
        self.of_any_release = of_any_release
        self._entries = tuple(entries)
        super().__init__({rule: entry.reference for entry in self._entries for rule in entry.rules})

    @property
    def matched_by(self) -> str:
        """How a fault is matched with an entry where that is not by the version; empty otherwise."""
        return "by class, rule and trace: the tree has no version" if self.of_any_release else ""

    def covers(self, rule: Rule, regime: Regime, shape: str | None, trace: str = "") -> bool:
        """Return whether a fault of a rule is a known one; `trace` is the shortest one that shows it."""
        return self.reference_of(rule, regime, shape, trace) is not None

    def reference_of(self, rule: Rule, regime: Regime, shape: str | None, trace: str = "") -> str | None:
        """Return the reference of the entry that a fault of a rule belongs to; None for a new fault."""
        entry = self.entry_of(rule, regime, shape, trace)
        return entry.reference if entry else None

    def entry_of(self, rule: Rule, regime: Regime, shape: str | None, trace: str = "") -> KnownFailure | None:
        """Return the entry that a fault of a rule belongs to; None for a new fault."""
        return next(
            (
                entry
                for entry in self._entries
                if rule in entry.rules
                and regime in (entry.regimes or (regime,))
                and shape in (entry.shapes or (shape,))
                and (not self.of_any_release or trace in entry.traces.get(rule, ()))
            ),
            None,
        )

    def states(self, rule: Rule, regime: Regime) -> bool:
        """Return whether an entry names this regime: a rule that passes in it has then been mended."""
        return any(rule in entry.rules and regime in entry.regimes for entry in self._entries)


KNOWN_FAILURES = DataFile(
    "fixtures/known_failures.toml", "a file of known failures", "failure", KnownFailure, version=4
)


def known_rules_of(
    package: str, version: Version | None, model_class: str, entries: Iterable[KnownFailure] | None = None
) -> KnownRules:
    """Return rule -> reference of the known failures of one class; of any release for an unknown version."""
    chosen = KNOWN_FAILURES.entries if entries is None else entries
    about = (entry for entry in chosen if entry.is_about(package, version, model_class))
    return KnownRules(about, of_any_release=version is None)


class KnownCarrier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Classes or functions of some releases that carry a payload and cannot be called, with the reason.

    `carriers` are their names and `files` the files that define them, both as patterns of `fnmatch`.
    """

    package: str
    releases: str
    files: tuple[str, ...]
    carriers: tuple[str, ...]
    reason: str

    def __post_init__(self) -> None:
        """Refuse a range that cannot be parsed, and an entry without a reason."""
        SpecifierSet(self.releases)
        if not self.reason.strip():
            raise ValueError(f"{', '.join(self.carriers)}: a known carrier needs a reason")

    def is_about(self, package: str, version: Version | None) -> bool:
        """Return whether this entry is about that version, or an unknown one; see `releases.covers`."""
        return package == self.package and (version is None or covers(self.releases, version))

    def names(self, carrier: str, member: str) -> bool:
        """Return whether this entry is about the class or function `carrier` of the file `member`."""
        return any(fnmatchcase(carrier, pattern) for pattern in self.carriers) and any(
            fnmatchcase(member, pattern) for pattern in self.files
        )


KNOWN_CARRIERS = DataFile(
    "fixtures/known_carriers.toml", "a file of known carriers", "carrier", KnownCarrier, version=1
)


class SeenInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a running engine showed of an input that is at risk in `releases` for one reason.

    `evidence`: ENGINE where it changed there as the audit reads, READ where the requests of `seen` did not
    show it. `seen` names the release that ran, its runner, the settings, the request, and what came of it.
    """

    package: str
    releases: str
    model_class: str
    input: str
    evidence: Evidence
    seen: str


SEEN_INPUTS = DataFile(
    "fixtures/seen_inputs.toml", "a file of inputs seen in engines", "input", SeenInput, version=1
)


def seen_input(package: str, version: Version | None, model_class: str, name: str) -> SeenInput | None:
    """Return what a running engine showed of an input; None where nobody looked or no version is known."""
    wanted = (package, model_class, name)
    found = (seen for seen in SEEN_INPUTS.entries if (seen.package, seen.model_class, seen.input) == wanted)
    return next((seen for seen in found if covers(seen.releases, version)), None)


_REPOSITORIES: Mapping[str, str] = MappingProxyType(
    {
        "vllm": "vllm-project/vllm",
        "vllm-ascend": "vllm-project/vllm-ascend",
        "vllm-omni": "vllm-project/vllm-omni",
        "tpu-inference": "vllm-project/tpu-inference",
        "sglang": "sgl-project/sglang",
        "pytorch": "pytorch/pytorch",
        "FastDeploy": "PaddlePaddle/FastDeploy",
        "Qwen3-VL": "QwenLM/Qwen3-VL",
        "mlx-vlm": "Blaizzy/mlx-vlm",
        "mlx-engine": "lmstudio-ai/mlx-engine",
        "mbridge": "ISEEKYAN/mbridge",
        "Megatron-Bridge": "NVIDIA-NeMo/Megatron-Bridge",
        "ms-swift": "modelscope/ms-swift",
        "onnxruntime-genai": "microsoft/onnxruntime-genai",
        "LightLLM": "ModelTC/LightLLM",
        "MNN": "alibaba/MNN",
        "sonar": "dphnAI/sonar",
        "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
        "transformers": "huggingface/transformers",
        "torchtitan": "pytorch/torchtitan",
    }
)


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An issue or a pull request, and its state in the month `seen` (`2026-08`).

    `reason` is why the catalogue has no incident of it; it is empty where one has the reference.
    """

    reference: str
    kind: Literal["issue", "pull request"]
    state: Literal["open", "closed", "merged"]
    seen: str
    reason: str = ""


UPSTREAM = DataFile("fixtures/upstream.toml", "a file of upstream reports", "report", Report)


def state_of(reference: str) -> str | None:
    """Return `pull request, open in 2026-08`; None for a reference whose state nobody wrote down."""
    report = next((report for report in UPSTREAM.entries if report.reference == reference), None)
    return f"{report.kind}, {report.state} in {report.seen}" if report else None


def link_of(reference: str) -> str | None:
    """Return the address of a reference such as `vllm 43602`; None for one that is not upstream.

    GitHub leads from the address of an issue to the pull request of that number.
    """
    project, _, number = reference.partition(" ")
    repository = _REPOSITORIES.get(project)
    return f"https://github.com/{repository}/issues/{number}" if repository and number.isdecimal() else None


class FaultState(StrEnum):
    """Verdict on a fault that was read or seen in an engine's code."""

    REPRODUCED = "reproduced"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    NOT_COVERED = "not covered"


class Seen(StrEnum):
    """Way in which a fault of an engine's own code came to be known.

    ENGINE: seen in a running engine. EMULATED: likewise, where replays of its graphs were emulated.
    RUN: its functions were cut out and run, or its classes judged. READ: read in its source.
    REPORTED: users of the engine report it, and nobody looked at those releases here.
    """

    ENGINE = "engine"
    EMULATED = "emulated"
    RUN = "run"
    READ = "read"
    REPORTED = "reported"


REACHES = (DEFAULT, FLAG.rstrip(": "), LATENT, UNKNOWN)
"""Kinds of reach, the most urgent first."""


class FaultyReleases(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Releases of a package that have a fault, and what it takes to meet it there.

    `versions` is a range as in a requirement, `>=0.20.0,<0.23.0`: `<` names the first release without the
    fault, `<=` the newest one that was looked at; a range without either means that no fix is known. It is
    empty where nobody knows the releases; `commits` are versions of a repository that were read.
    `models` are the names that users give them, such as `Qwen3-VL`, and `since` names the first release of
    each that came later than the first of `versions`. `reach` is that of the rows of `audit`.
    """

    package: str
    versions: str = ""
    commits: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    since: Mapping[str, str] = msgspec.field(default_factory=dict)
    reach: str
    seen: Seen

    def __post_init__(self) -> None:
        """Refuse a range that cannot be parsed and a reach of no kind; msgspec adds the place in the file."""
        SpecifierSet(self.versions)
        if not self.reach.startswith((DEFAULT, FLAG, LATENT, UNKNOWN)):
            raise ValueError(
                f"'{self.reach}' is no reach: begin with default, flag: SETTING, latent or unknown"
            )
        _check_since(self.since, self.models)

    def models_of(self, version: Version) -> tuple[str, ...]:
        """Return the models that a version has."""
        return tuple(name for name in self.models if _is_there(self.since, name, version))

    @property
    def reach_kind(self) -> str:
        """`default`, `flag`, `latent` or `unknown`, the first word of `reach`."""
        return next(kind for kind in REACHES if self.reach.startswith(kind))

    @property
    def in_words(self) -> str:
        """`0.22.0 .. 0.30.0`, `0.20.0 .. before 0.23.0`, `0.5.23`; commits; or "releases not known"."""
        bounds = {bound.operator: bound.version for bound in SpecifierSet(self.versions)}
        first = bounds.get("==") or bounds.get(">=", "")
        last = bounds.get("<=") or (f"before {bounds['<']}" if "<" in bounds else "")
        span = (
            " .. ".join(filter(None, (first, last))) if last else f"{first} .." if ">=" in bounds else first
        )
        return ", ".join(filter(None, (span, *self.commits))) or "releases not known"


class LiveFault(FaultyReleases, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault of some versions of a package, and the commands that show its mechanism.

    `incident` is the entry of the catalogue with that mechanism. `why` is what refutes the fault, or what
    would have to be known. `upstream` is the text that could be sent to the project.
    """

    id: str
    title: str
    state: FaultState
    incident: str = ""
    commands: tuple[str, ...] = ()
    why: str = ""
    upstream: str = ""

    def __post_init__(self) -> None:
        """Refuse a reproduced fault without a command or an incident, and any other without a reason."""
        super().__post_init__()
        if self.state is FaultState.REPRODUCED:
            if not (self.commands and self.incident):
                raise ValueError(
                    f"fault {self.id} is reproduced: say in 'commands' and 'incident' by what and as which"
                )
        elif not self.why or self.commands:
            raise ValueError(f"fault {self.id} is {self.state}: say why, and leave 'commands' out")

    @property
    def outcome(self) -> str:
        """The command that shows the fault, or the reason why none does."""
        if self.state is FaultState.REPRODUCED:
            return f"reproduced: deepstack-harness {self.commands[0]}"
        return f"{self.state}: {self.why}"


LIVE_FAULTS = DataFile("fixtures/live_faults.toml", "a file of live faults", "fault", LiveFault, version=2)

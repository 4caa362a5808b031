"""The orders in which an engine calls a model class, as traces, and how an engine comes to break a rule.

An order is a trace for a class that is called through its own `embed_input_ids` and `forward`
(`deepstack_harness.engines.bind`): `set N` embeds a step with N visual tokens, `set 0` one without,
`forward P` embeds text where nothing was embedded and runs the outer forward over P padded tokens, `profile
P` only runs the forward, and `get P; clear P` is one micro-batch of a step.

Orders that a running engine made are recorded in `fixtures/orders/` (`deepstack-harness engine --record
FILE`; recording again gives an equal file). Those of this file were read, in
vllm/v1/worker/gpu_model_runner.py and gpu_ubatch_wrapper.py (V1), and in vllm/v1/worker/gpu/ (V2), which is
the default of 0.32 where Triton is there: for releases without a recording, and for padding, which an
engine on a CPU does not have.

A fault that no order shows has reach `unknown`, unless there is an argument for `latent`: why no order of
an engine leads to it, with file and line. Lines are those of vLLM 0.32.0 where no release is named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Evidence
from deepstack_harness.files import data, load_file

SCHEMA_VERSION = 1
"""The version of a file of orders; another one is refused."""


class RecordedOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One distinct order: its trace, the schedule that showed it first, and the settings that lead there.

    `settings` are alternatives, each a set of flags that are needed together; an empty one is the default.
    `replayed` is True where steps of it are replays of a graph, which were emulated.
    """

    trace: str
    how: str
    settings: tuple[tuple[str, ...], ...]
    replayed: bool


class EngineRecording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The distinct orders of one engine.

    `deciding` has the SHA-256 of the text of each function that decides which calls a step makes, with which
    counts, and whether it is replayed, by its name `module.Class.method`. The scheduler is not among them:
    it decides which batches come when, and every batch of a recording is one that some requests lead to.
    """

    package: str
    version: str
    runner: str
    deciding: Mapping[str, str]
    orders: tuple[RecordedOrder, ...]
    schema_version: int = SCHEMA_VERSION

    def applies_to(self, hashes: Mapping[str, str]) -> bool:
        """Return whether a source with these functions has the same orders: all deciding ones are equal."""
        return bool(self.deciding) and all(
            hashes.get(name) == digest for name, digest in self.deciding.items()
        )


@cache
def recordings(package: str) -> tuple[EngineRecording, ...]:
    """Return the recordings of a package, in the order of their file names.

    Raises `UsageError` for a file that is no recording.
    """
    files = sorted(data("fixtures/orders").glob("*.json"))
    loaded = [load_file(file, EngineRecording, "a recording of orders", SCHEMA_VERSION) for file in files]
    return tuple(recording for recording in loaded if recording.package == package)


def deciding_functions(package: str) -> frozenset[str]:
    """Return the names of all functions by which a recording is inherited; none without a recording."""
    return frozenset(name for recording in recordings(package) for name in recording.deciding)


AND = " and "
"""Between flags that are needed together; alternatives are joined by "or"."""


@dataclass(frozen=True)
class OrderSetting:
    """A setting that leads to an order, and the range of releases that have it (all where it is empty)."""

    text: str
    releases: str = ""


@dataclass(frozen=True)
class Order:
    """One order of calls, and what an engine needs to come to it.

    `setting` is what has to be switched on, each of `others` leads there as well; `releases` is the range
    that has the order (all where it is empty); `taken` is False for an order that no release takes.
    `evidence` is the way it was seen. `covered` is True for an order that was read and that a recording
    has too: it is for sources that no recording is about.
    """

    trace: Trace
    how: str
    setting: str | None = None
    releases: str = ""
    taken: bool = True
    others: tuple[OrderSetting, ...] = ()
    evidence: Evidence = Evidence.READ
    covered: bool = False


@dataclass(frozen=True)
class Orders:
    """All orders of one engine.

    In `live` ones the class's Python runs at every call. In `replayed` ones the Python of get
    and clear runs at capture only (`deepstack_harness.engines.bind`).
    """

    live: tuple[Order, ...] = ()
    replayed: tuple[Order, ...] = ()


def orders_of(package: str, hashes: Mapping[str, str] = MappingProxyType({})) -> Orders:
    """Return the orders of an engine by its package; none for an engine whose runner nobody has read.

    `hashes` has the SHA-256 of the functions of a source, by their names. A recording is about that source
    where all functions that decide it are equal (`EngineRecording.applies_to`); its orders come first, in
    place of those that were read and that it covers.
    """
    read = _ORDERS.get(package, Orders())
    applying = (recording for recording in recordings(package) if recording.applies_to(hashes))
    recorded = [order for recording in applying for order in recording.orders]
    return Orders(
        (
            *(_seen_order(order) for order in recorded if not order.replayed),
            *_not_recorded(read.live, recorded),
        ),
        (
            *(_seen_order(order) for order in recorded if order.replayed),
            *_not_recorded(read.replayed, recorded),
        ),
    )


def _not_recorded(orders: Iterable[Order], recorded: Sequence[RecordedOrder]) -> list[Order]:
    """Return the orders that were read, without those that recordings cover."""
    return [order for order in orders if not (recorded and order.covered)]


def _seen_order(order: RecordedOrder) -> Order:
    """Return an order that was seen: in a running engine, or with its graphs emulated."""
    settings = [AND.join(flags) for flags in order.settings if flags]
    default = len(settings) < len(order.settings)
    settings += [text.replace(*_TURNED_ON_BY) for text in settings if _TURNED_ON_BY[0] in text]
    first = None if default else settings[0]
    return Order(
        Trace.parse(order.trace), order.how, first, releases=_SINCE.get(first or "", ""),
        others=tuple(OrderSetting(text, _SINCE.get(text, "")) for text in settings[1:]),
        evidence=Evidence.EMULATED if order.replayed else Evidence.ENGINE,
    )  # fmt: skip


def _order(
    trace: str,
    how: str,
    *,
    setting: str | None = None,
    releases: str = "",
    taken: bool = True,
    others: tuple[OrderSetting, ...] = (),
    covered: bool = False,
) -> Order:
    return Order(Trace.parse(trace), how, setting, releases, taken, others, covered=covered)


_LIVE = (
    _order(
        "cap 16: profile 16; set 9; forward 16; forward 16",
        "profile run, a visual step padded to a capture size, a text-only step",
    ),
    _order(
        "cap 16: profile 16; set 16; forward 16; forward 1; forward 1",
        "a visual step that fills the token budget, then decode steps",
        covered=True,
    ),
    _order(
        "cap 16: profile 16; forward 8; set 9; forward 16; set 3; forward 4; forward 16",
        "text first, then a long visual step and a short one",
    ),
    _order(
        "cap 16: profile 16; set 12 spans=1-5+7-10; forward 16; forward 12",
        "text around two images, then a text-only step",
        covered=True,
    ),
    _order(
        "cap 16: profile 16; profile 8; profile 1; set 12; forward 12; profile 16; set 5; forward 8",
        "runs for capture sizes, and one that keeps an idle rank in step, between scheduled ones",
    ),
    _order(
        "cap 16: profile 16; set 1; forward 1; forward 1; set 1; forward 1; forward 16",
        "prefill chunks of one visual token, then a decode step and a prefill of text",
        # By default the decode graph of one token is replayed for them; see _CHUNKS.
        setting="--enforce-eager",
        others=(OrderSetting("--compilation-config.cudagraph_mode=PIECEWISE"),),
    ),
    _order(
        "cap 16: profile 16; set 8; get 4; clear 4; get 4; clear 4; forward 8",
        "two micro-batches of one visual step, then a text-only step",
        # The V2 runner of 0.32 refuses DBO with multimodal models; the flag falls back to V1.
        setting="--enable-dbo (V1 runner)",
    ),
    _order(
        "cap 16: profile 16; set 16; forward 20",
        "a full step padded to a multiple of the tensor-parallel size, above the token budget",
        # Padding above the budget needs a remainder: 8192 is a multiple of every usual number of ranks.
        setting="--compilation-config.pass_config.enable_sp and a budget that is no multiple of the ranks",
        releases="<0.32",
    ),
    _order(
        "cap 16: profile 16; set 9; set 0; forward 16",
        "a text-only step is embedded before the visual step was run",
        taken=False,
    ),
    _order(
        "cap 16: profile 16; set 9; set 3; forward 9",
        "a visual step is embedded before the one in front of it was run",
        taken=False,
    ),
    _order(
        "cap 16: profile 16; set 9; forward 16; set 20; forward 20",
        "a visual step above the token budget",
        taken=False,
    ),
)

# FULL replays visual steps of any captured size. Breakable graphs are taken around the outer model, so
# that they replay prefill as FULL does; from 0.32 on VLLM_BATCH_INVARIANT turns them on (config/vllm.py:824).
# The default mode, FULL_AND_PIECEWISE, replays what `_is_uniform_decode` calls a decode
# (gpu_model_runner.py:3654 in 0.32.0): every request has one token. It counts only tokens, and its text is
# the same from 0.19.1 to 0.33.0, so a prefill chunk of one visual token is replayed too.
_FULL = "--compilation-config.cudagraph_mode=FULL"
_AS_FULL = (
    OrderSetting("VLLM_USE_BREAKABLE_CUDAGRAPH=1", ">=0.22"),
    OrderSetting("VLLM_BATCH_INVARIANT=1", ">=0.32"),
)
_CHUNKS = OrderSetting("--max-num-batched-tokens of running decodes + 1", ">=0.19.1")
_TURNED_ON_BY = ("VLLM_USE_BREAKABLE_CUDAGRAPH=1", "VLLM_BATCH_INVARIANT=1")
"""A setting, and one that turns it on."""
_SINCE: Mapping[str, str] = {setting.text: setting.releases for setting in (*_AS_FULL, _CHUNKS)}
_REPLAYED = (
    _order(
        "cap 16: profile 16; set 12; forward 16; forward 16",
        "FULL graphs: captured with nothing set, replayed for a visual step and for a text-only one",
        setting=_FULL,
        others=_AS_FULL,
    ),
    _order(
        "cap 16: profile 16; set 12; forward 16; set 5; forward 16",
        "FULL graphs: replayed for a long visual step and for a short one",
        setting=_FULL,
        others=_AS_FULL,
    ),
    _order(
        "cap 16: profile 16; profile 4; set 4 spans=3-4; forward 4; forward 4",
        "decode graphs: a prefill chunk of one visual token beside three decodes, then decodes alone",
        setting=_FULL,
        others=(*_AS_FULL, _CHUNKS),
        covered=True,
    ),
    _order(
        "cap 16: profile 8; set 6; forward 8; set 0; forward 12; set 0; forward 10",
        "FULL graphs: a visual step is replayed, then texts above the largest capture size run in Python",
        setting=_FULL,
        others=_AS_FULL,
    ),
    _order(
        "cap 16: profile 16; set 12; forward 16; set 20; forward 16",
        "FULL graphs: storage grows after the capture, above the token budget",
        taken=False,
    ),
)

VLLM_ORDERS = Orders(_LIVE, _REPLAYED)

# vLLM-Omni's runner is derived from vLLM's, embeds every scheduled step before its forward and dispatches
# graphs by vLLM's modes (vllm_omni/worker/gpu_model_runner.py:83 and :1647, gpu_ar_model_runner.py:1097 and
# :1134 in 0.30.0). Nobody has seen one of its releases run, and vLLM's other settings were not read there.
_OMNI = Orders(
    _LIVE[:6],
    tuple(replace(order, others=(), covered=False) for order in _REPLAYED if order.setting == _FULL),
)

# SGLang writes the payload while it runs a step, so that nothing runs between set and forward. Its rules
# turn prefill graphs off for multimodal models outside an allowlist, but an explicit backend locks it and
# skips the rules (arg_groups/cuda_graph_hook.py:70, :143 and :261 in 0.5.23).
_PREFILL_GRAPHS: Any = {
    "setting": "--cuda-graph-backend-prefill full",
    "others": (OrderSetting("--cuda-graph-backend-prefill breakable"),),
}
_SGLANG = Orders(
    (
        _order("cap 16: set 9; forward 16; forward 16", "a padded visual step, then a text-only one"),
        _order("cap 16: set 16; forward 16; set 3; forward 4; forward 1", "two visual steps, then a decode"),
    ),
    (
        _order(
            "cap 16: profile 16; set 12; forward 16; forward 16",
            "prefill graphs: replayed for a visual step and for a text-only one",
            **_PREFILL_GRAPHS,
        ),
        _order(
            "cap 16: profile 16; profile 4; set 4; forward 4; set 9; forward 12; set 3; forward 4",
            "prefill graphs of two sizes: visual steps of either",
            **_PREFILL_GRAPHS,
        ),
    ),
)
# All three write the payload of a step right before the text model runs
# (transformers 5.23.0 models/qwen3_vl/modeling_qwen3_vl.py, lmdeploy 0.18.0 pytorch/models/qwen3_vl.py,
# TensorRT-LLM tensorrt_llm/_torch/models/modeling_qwen3vl.py of commit 002f3cc3).
_MARKED = Orders(_SGLANG.live)
# One forward embeds, gets and clears the same tokens (fastdeploy/model_executor/models/qwen3_vl/qwen3_vl.py
# of commit 0003e60b); its runner, which pads and captures, was not read.
_FASTDEPLOY = Orders(
    (
        _order("cap 16: set 9; forward 9; forward 16", "a visual step, then a text-only one"),
        _order("cap 16: set 12 spans=1-5+7-10; forward 12; forward 12", "text around two images, then text"),
        _order(
            "cap 16: set 16; forward 16; set 3; forward 3; forward 9", "a long visual step, a short one, text"
        ),
    )
)
# tpu-inference calls a jitted function at every step, which was compiled for the hidden size and every padded
# size before it serves (runner/compilation_manager.py `_precompile_backbone_with_inputs_embeds` in 0.32.0);
# JAX runs it uncompiled under a setting of its own. `set 0` is a step with embeddings of audio only:
# a step of text passes its token ids (runner/tpu_runner.py:3231).
_NOT_JITTED: Any = {"setting": "JAX_DISABLE_JIT=1"}
_TPU = Orders(
    (
        _order(
            "cap 16: set 9; forward 16; forward 16",
            "a padded visual step, then a text-only one",
            **_NOT_JITTED,
        ),
        _order(
            "cap 16: set 16; forward 16; set 3; forward 4",
            "a long visual step and a short one",
            **_NOT_JITTED,
        ),
        _order("cap 16: set 9; forward 16; set 0; forward 16", "an image, then audio alone", **_NOT_JITTED),
    ),
    (
        _order("cap 16: profile 16; set 12; forward 16; forward 16", "compiled steps: an image, then text"),
        _order(
            "cap 16: profile 16; profile 4; set 4; forward 4; set 9; forward 12; set 3; forward 4",
            "compiled steps of two sizes: visual ones of either",
        ),
    ),
)
_ORDERS: Mapping[str, Orders] = {
    "vllm": VLLM_ORDERS,
    "vllm-omni": _OMNI,
    "sglang": _SGLANG,
    "transformers": _MARKED,
    "lmdeploy": _MARKED,
    "fastdeploy": _FASTDEPLOY,
    "tensorrt-llm": _MARKED,
    "tpu-inference": _TPU,
}


def covers(releases: str, version: Version | None) -> bool:
    """Return whether a range such as `>=0.20.0,<0.23.0` includes a version.

    What is known was measured on releases, and holds for other builds by packaging's order
    (PEP 440), pre-releases included:

    - a local build, `0.22.1+cu129`, counts as its release;
    - a build between two releases lies between them: `0.22.2.dev5+g1a2b3c4` is later than 0.22.1
      and earlier than 0.22.2, so a range that has both has it, and `<=0.22.1` does not have it;
    - a build towards the release that changed something counts as changed: `<0.23.0` has neither
      0.23.0rc1 nor 0.23.0.dev7;
    - of an unknown version nothing is known: no range has None.
    """
    return version is not None and SpecifierSet(releases).contains(version, prereleases=True)


DEFAULT = "default"
"""Default settings lead there."""

FLAG = "flag: "
"""What follows has to be set."""

LATENT = "latent"
"""No order that an engine takes leads there: there is a written argument (`catalogue.latent`)."""

UNKNOWN = "unknown"
"""No order that was tried leads there and nobody has argued that none does, or none could be played."""

REACHES = (DEFAULT, UNKNOWN, FLAG, LATENT)
"""How an engine comes to a fault, the worst first."""


def reach_kind(reach: str | None) -> str:
    """Return the one of `REACHES` that the reach of a broken rule belongs to."""
    if reach is not None and reach.startswith(FLAG):
        return FLAG
    return reach if reach in (DEFAULT, LATENT) else UNKNOWN


def reach_of(orders: Iterable[Order], version: Version | None) -> str:
    """Return how an engine of this version comes to break a rule that breaks on `orders`.

    That is `default`, `flag: SETTING` with several settings joined by "or", or `latent` where
    none of the orders is taken. Of an unknown version every order is taken that any release takes.
    """
    taken = [order for order in orders if order.taken and _in_release(order, version)]
    if any(order.setting is None for order in taken):
        return DEFAULT
    texts: list[str] = []
    for order in taken:
        texts += [order.setting] if order.setting else []
        texts += [setting.text for setting in order.others if _is_in_range(setting.releases, version)]
    # A setting that needs all flags of another one, and more, is left out.
    flags = {text: frozenset(text.split(AND)) for text in dict.fromkeys(texts)}
    settings = [text for text, own in flags.items() if not any(other < own for other in flags.values())]
    return f"{FLAG}{' or '.join(settings)}" if settings else LATENT


def evidence_of(orders: Iterable[Order], version: Version | None) -> Evidence:
    """Return what the reach by these orders rests on: the best evidence among those of this version."""
    seen = {order.evidence for order in orders if order.taken and _in_release(order, version)}
    return next(evidence for evidence in Evidence if evidence in seen | {Evidence.READ})


def _in_release(order: Order, version: Version | None) -> bool:
    return _is_in_range(order.releases, version)


def _is_in_range(releases: str, version: Version | None) -> bool:
    return not releases or version is None or covers(releases, version)


_WITHIN_BUDGET = (
    "buffers have max_num_batched_tokens rows (models/qwen3_vl.py:2032, granite4_vision.py:568), and no step "
    "has more tokens (v1/core/sched/scheduler.py:611) or is padded above them"
)
_ARGUMENTS: Mapping[str, Mapping[Rule, str]] = MappingProxyType(
    {
        "vllm": {
            Rule.FRESHNESS: (
                "set takes all rows of a step, zeros of text included (models/qwen3_vl.py:3161), and each "
                "embed is followed by the forward of its step (v1/worker/gpu_model_runner.py:3342, :4207)"
            ),
            Rule.CAPACITY: _WITHIN_BUDGET,
            Rule.ADDRESS: f"storage moves where a call is above the capacity only; {_WITHIN_BUDGET}",
            Rule.REJECTION: (
                "get and clear are given the rows of a tensor (models/qwen3_vl.py:3202, :3217), and set a "
                "payload of the class's own (:3161)"
            ),
        },
        "vllm-ascend": {
            Rule.SHARDING: (
                "the runner pads a step to a multiple of the ranks where they share it "
                "(vllm_ascend/worker/model_runner_v1.py:2876 and :2949 in 0.23.0.post1)"
            ),
        },
    }
)


def latent_argument(package: str, rule: Rule) -> str | None:
    """Return why no order of an engine breaks a rule; None where nobody has argued that."""
    return _ARGUMENTS.get(package, {}).get(rule)

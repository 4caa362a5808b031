"""Call the code of inputs at risk, in the worker that runs the code of a source: measure, and judge nothing.

The `forward` of a class runs over stand-ins for its parts.  First it is called uncompiled with every value
that the annotation of the input allows, until one changes the result: without such a value nothing can be
judged.  Then it runs under `compile_steps`: a warm-up as the engine's profile run calls it, and a step that
sees the input.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from traceback import walk_tb
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.audit.driven_forward import (
    STAGE,
    LoadedCaller,
    LoadedRegion,
    RegionMaker,
    required_of,
)
from deepstack_harness.audit.driven_inputs import DrivenFacts
from deepstack_harness.audit.driven_values import (
    ABSENT,
    TOKENS,
    SeenValues,
    changed_values,
    pairs_of_argument,
    pairs_of_attribute,
)
from deepstack_harness.audit.inputs.rows import InputChange, InputStanding
from deepstack_harness.compile.torch_compat import structures
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.steps import SteppedRegion
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.load import loaded_of
from deepstack_harness.engines.stand_ins import ForwardBuffer
from deepstack_harness.engines.syntax import arguments_of
from deepstack_harness.engines.text_decoder import HIDDEN, LAYERS, TextHost, TextPart, furnish, set_part
from deepstack_harness.engines.text_model import ELEMENT, Path
from deepstack_harness.errors import Reason, UsageError, passes_through, reason_of, text_of
from deepstack_harness.play.call_differences import largest_distance
from deepstack_harness.play.region_calls import Call, Program, Step, StepOptions, described
from deepstack_harness.play.region_state import Region
from deepstack_harness.play.steps import measure_steps
from deepstack_harness.sources.source import Source
from deepstack_harness.workers.child import Channel


def measure_input(channel: Channel, text: str, wanted: InputStanding, *, captured: bool) -> DrivenFacts:
    """Run the region of an input of the source that `text` names; `captured` where an engine replays it."""
    torch.set_num_threads(1)
    channel.phase(f"the import of {wanted.model_class}")
    try:
        maker = RegionMaker(loaded_of(_source(text)))
        driver = _Driver(maker, maker.region(wanted), wanted, captured=captured)
    except UsageError as error:
        return DrivenFacts(blocked=reason_of(error))
    channel.phase(f"{wanted.model_class}.forward")
    return driver.measure()


@cache
def _source(text: str) -> Source:
    return open_source(text)


_OF_STAGE = frozenset({"is_first_rank", "is_last_rank"})
_IDS, _EMBEDS = "input_ids", frozenset({"inputs_embeds", "input_embeds"})


class _Setting(NamedTuple):
    """What a region is built from, and which of ids and embeddings it is given.

    With `own_parts` the parts that receive the input run their own code; with `complete` parts that may
    be missing are there; the part at `by_level` returns a row for each layer; layers may return
    without a residual.
    """

    own_parts: bool
    complete: bool
    by_level: Path
    embedded: bool
    adds_residual: bool = False


class _Outcome(NamedTuple):
    """The result of an uncompiled call, or why there is none, with file and line of the innermost frame."""

    answer: object = None
    reason: Reason | None = None
    at: tuple[str, int] = ("", 0)


class _Choice(NamedTuple):
    """A setting and a pair of values under which the input changes the result by `effect`."""

    setting: _Setting
    pair: SeenValues
    effect: float


class _Driver:
    """One region, to be built again and again in an equal state."""

    def __init__(
        self, maker: RegionMaker, region: LoadedRegion, wanted: InputStanding, *, captured: bool
    ) -> None:
        self._maker, self._region, self._wanted, self._captured = maker, region, wanted, captured
        self._callers = maker.callers(wanted, region)
        self._given_first: object = ABSENT

    def measure(self) -> DrivenFacts:
        """Find a value that matters, and measure the region with it."""
        if not self._region.uses and self._wanted.is_attribute:
            text = f"{self._region.made.__name__}.forward, and what it calls of its object, does not read it"
            return DrivenFacts(blocked=replace(self._region.place, text=text))
        if not self._region.uses:
            return DrivenFacts(unread=True)
        given = [_given_in_profile_run(caller) for caller in self._callers]
        if given and all(value is not None and value is not ABSENT for value in given):
            self._given_first = given[0]
        without = [
            caller.where for caller, value in zip(self._callers, given, strict=True) if value is ABSENT
        ]
        choice = self._choose()
        if isinstance(choice, DrivenFacts):
            return choice
        value = described(choice.pair.warm_up() if self._wanted.given_first else choice.pair.step())
        if self._wanted.is_lost:
            return self._measure_stages(choice, value)
        arms = ("eager/full",) if self._captured else ("eager/stock", "eager/drop_all")
        if self._wanted.change is InputChange.STORAGE and not self._captured:
            arms = (*arms, "eager/full")
        options = StepOptions(arms)
        region = self._steps(partial(self._program, choice), options)
        given_by = "" if self._given_first is ABSENT else self._callers[0].where
        stood_in = () if choice.setting.own_parts else tuple(self._region.parts)
        return DrivenFacts(
            region, value=value, given_by=given_by, without_by=without[0] if without else "",
            read_at=self._region.uses[0], stood_in=stood_in, effect=choice.effect,
        )  # fmt: skip

    def _steps(self, program: Program, options: StepOptions) -> SteppedRegion:
        """Measure steps that have run without meeting a stub; the state of the package may have some."""
        with self._maker.loaded.absent.permissive():
            return measure_steps(program, options, self._wanted.model_class)

    def _program(self, choice: _Choice) -> tuple[Region, Sequence[Step]]:
        """Return the region and its steps: the warm-up, and a step that sees the input."""
        region = self._build(choice.setting)
        warm, later = choice.pair.warm_up(), choice.pair.step()
        if not self._wanted.is_attribute:
            return region, [Call(**self._arguments(choice.setting, value)) for value in (warm, later)]
        _assign(region, self._wanted.name, warm)
        call = self._arguments(choice.setting)
        return region, [
            Call(**call),
            lambda region: _assign(region, self._wanted.name, choice.pair.step()),
            Call(**self._arguments(choice.setting)),
        ]

    def _choose(self) -> _Choice | DrivenFacts:
        """Return the first setting and values that change the uncompiled result, or why there are none."""
        reason = None
        runs = False
        for own_parts in (True, False) if self._region.parts else (False,):
            refusal = None
            for setting, pair in product(self._settings(own_parts=own_parts), self._pairs()):
                without, given = self._run(setting, pair.warm_up()), self._run(setting, pair.step())
                if self._wanted.given_first:
                    without, given = given, without
                if given.reason is not None:
                    reason = reason or given.reason
                elif without.reason is not None:
                    refused = self._maker.is_refusal(*without.at, self._wanted.name, str(without.reason))
                    refusal = refusal or (without.reason if refused else None)
                    reason = reason or without.reason
                else:
                    runs = True
                    effect = largest_distance(given.answer, without.answer, {})
                    if effect and effect < NOT_FINITE:
                        return _Choice(setting, pair, effect)
            if refusal is not None:
                return DrivenFacts(refusal=refusal)
        place, _, line = self._region.uses[-1].rpartition(":")
        idle = f"no value that was tried for `{self._wanted.name}` changes the answer over stand-ins"
        return DrivenFacts(blocked=reason if reason and not runs else Reason(idle, place, int(line)))

    def _settings(self, *, own_parts: bool) -> Iterator[_Setting]:
        parameters = set(arguments_of(self._region.forward))
        embedded = [True] * bool(parameters & _EMBEDS) + [False] * (_IDS in parameters) or [True]
        attributes = self._region.attributes
        shaped = [path for path, count in attributes.called.items() if count == 1 and ELEMENT not in path]
        complete = [False] + [True] * (self._region.complete != attributes or bool(self._region.parts))
        for by_level, whole, embeds in product(((), *shaped), complete, embedded):
            yield _Setting(own_parts, whole, by_level, embeds)

    def _pairs(self) -> Iterator[SeenValues]:
        name, given_first = self._wanted.name, self._wanted.given_first
        if self._given_first is not ABSENT:
            return iter([changed_values(self._given_first)])
        if self._wanted.is_attribute:
            return pairs_of_attribute(
                name, self._region, given_first=given_first, moves=self._wanted.change is InputChange.STORAGE
            )
        return pairs_of_argument(name, self._region, given_first=given_first, lost=self._wanted.is_lost)

    def _build(self, setting: _Setting, region: LoadedRegion | None = None) -> nn.Module:
        """Return an object of the class, with equal weights each time."""
        region = region or self._region
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            instance = _bare(region)
            attributes = region.complete if setting.complete else region.attributes
            furnish(instance, attributes, setting.by_level, adds_residual=setting.adds_residual)
        for path in (*attributes.tested, *attributes.numbers):
            if path[-1] in _OF_STAGE and len(path) == 2:  # SGLang's models keep the group
                _assign(instance, path[0], STAGE)
        for name, part in region.parts.items() if setting.own_parts else ():
            _assign(instance, name, self._build(setting, part))
        return instance.eval().requires_grad_(False)

    def _arguments(self, setting: _Setting, value: object = ABSENT) -> dict[str, object]:
        """Return the arguments of a call: those that are required, the input, and ids or embeddings."""
        region = self._region
        call = _call_arguments(region, region.annotations, embedded=setting.embedded)
        if not self._wanted.is_attribute:
            call.pop(self._wanted.name, None)
        if value is not ABSENT:
            call[self._wanted.name] = value
        elif self._wanted.name in required_of(region.forward) and not self._wanted.is_attribute:
            call[self._wanted.name] = None
        return call

    @torch.no_grad()
    def _run(self, setting: _Setting, value: object) -> _Outcome:
        """Call the region uncompiled, with one value of the input."""
        try:
            with self._maker.loaded.without_stubs():
                region = self._build(setting)
                if self._wanted.is_attribute:
                    _assign(region, self._wanted.name, value)
                    return _Outcome(region(**self._arguments(setting)))
                return _Outcome(region(**self._arguments(setting, value)))
        except BaseException as error:
            if passes_through(error) or not isinstance(error, Exception):
                raise
            ended = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
            at = self._maker.loaded.raised_at(error)
            *_, (innermost, line) = walk_tb(error.__traceback__)
            reason = Reason(f"forward ends with {ended}", *at)
            return _Outcome(reason=reason, at=(innermost.f_code.co_filename, line))

    def _measure_stages(self, choice: _Choice, value: str) -> DrivenFacts:
        """Measure two pipeline stages against one, the later stage without the input and then with it."""
        attributes = self._region.attributes
        if not (attributes.first and attributes.last):
            text = "its forward runs no layers from a first one to a last"
            return DrivenFacts(blocked=replace(self._region.place, text=text))
        for adds_residual in (False, True):
            tried = choice._replace(setting=choice.setting._replace(adds_residual=adds_residual))
            without, given = (self._stages(tried, hands_on=hands_on) for hands_on in (False, True))
            if all(call.split == 0 for arm in given.arms for call in arm.calls):
                break  # two stages that are both given the input are one: the stand-ins fit
        return DrivenFacts(without, given, value=value, read_at=self._region.uses[0], effect=choice.effect)

    def _stages(self, choice: _Choice, *, hands_on: bool) -> SteppedRegion:
        attributes = self._region.attributes

        def program() -> tuple[Region, Sequence[Step]]:
            model = self._build(choice.setting)
            stages = _Stages(
                model, (*attributes.first,), (*attributes.last,), "" if hands_on else self._wanted.name
            )
            calls = [Call(0, **self._arguments(choice.setting, choice.pair.step())) for _ in range(2)]
            return stages, calls

        options = StepOptions((), split=lambda _, **inputs: [Call(stage, **inputs) for stage in (1, 2)])
        stages, _ = program()
        with self._maker.loaded.without_stubs(), torch.no_grad():
            for stage in (1, 2):
                stages(stage, **self._arguments(choice.setting, choice.pair.step()))
        return self._steps(program, options)


class _Stages(nn.Module):
    """A model as one pipeline stage (0), or as the first or last of two (1, 2)."""

    def __init__(self, model: nn.Module, first: Sequence[Path], last: Sequence[Path], lost: str) -> None:
        super().__init__()
        self.model, self._first, self._last, self._lost = model, first, last, lost

    @override
    def forward(self, stage: int, **inputs: Any) -> object:
        """Return the result of the last stage; the first of two returns no rows.

        What one stage passes to the next belongs to the stage: it is no state of the region.
        """
        if stage == 2:
            inputs["intermediate_tensors"] = STAGE.passed
            inputs |= dict.fromkeys(inputs.keys() & {_IDS, *_EMBEDS, self._lost})
        answer = self._run(stage, inputs)
        if stage != 1:
            return answer
        STAGE.passed = answer
        whole = self._run(0, inputs)
        return structures.map_leaves(lambda leaf: leaf[:0] if isinstance(leaf, Tensor) else leaf, whole)

    def _run(self, stage: int, inputs: Mapping[str, Any]) -> object:
        STAGE.is_first_rank, STAGE.is_last_rank = stage < 2, stage != 1
        try:
            self._set_layers(*((0, LAYERS), (0, LAYERS // 2), (LAYERS // 2, LAYERS))[stage])
            return self.model(**inputs)
        finally:
            STAGE.is_first_rank = STAGE.is_last_rank = True
            self._set_layers(0, LAYERS)

    def _set_layers(self, begins: int, ends: int) -> None:
        for paths, value in ((self._first, begins), (self._last, ends)):
            for path in paths:
                set_part(self.model, path, value)


def _bare(loaded: LoadedRegion) -> TextHost:
    """Return an empty module of a class; its own `__init__` is not run."""
    instance = loaded.made.__new__(loaded.made)
    nn.Module.__init__(instance)
    return instance


def _call_arguments(
    loaded: LoadedRegion, annotations: Mapping[str, str], *, embedded: bool
) -> dict[str, object]:
    """Return the arguments of a call as a runner makes it: those that are required, and ids or embeddings."""
    parameters = set(arguments_of(loaded.forward))
    call = {name: _required_value(name, annotations.get(name, "")) for name in required_of(loaded.forward)}
    if _IDS in parameters:
        call[_IDS] = None if embedded and parameters & _EMBEDS else torch.arange(TOKENS) + 1
    return call | {name: _hidden() if embedded else None for name in parameters & _EMBEDS}


class _RegionCalled(Exception):
    """The caller has called its region."""


class _Recorder(nn.Module):
    """A region that stores what it is given as one parameter, and runs nothing."""

    def __init__(self, caller: LoadedCaller) -> None:
        super().__init__()
        self._parameter, self._position = caller.parameter, caller.position
        self.given: object = None
        self.is_own = True
        """False where a stand-in was called before: the value may be its result, and not the caller's."""

    def note_part(self, *_: object) -> None:
        """Note that a stand-in is called."""
        self.is_own = False

    @override
    def forward(self, *inputs: object, **named: object) -> object:
        """Keep the value, and raise `_RegionCalled`."""
        by_place = inputs[self._position] if self._position < len(inputs) else None
        self.given = named.get(self._parameter, by_place)
        raise _RegionCalled


@torch.no_grad()
def _given_in_profile_run(caller: LoadedCaller) -> object:
    """Return what a caller gives to its region in a profile run, right after its `__init__`.

    `ABSENT` for None; None where the caller cannot be run, so that nothing is known.  The class is run with
    what its `__init__` allocates, over a language model that records its arguments, or without that.
    """
    for bound in caller.whole:
        try:
            cpu = torch.device("cpu")
            host = bound.model(2 * TOKENS, HIDDEN, LAYERS, dtype=torch.float32, device=cpu, convention=None)
            ForwardBuffer(host).get(TOKENS)
        except Exception:  # noqa: BLE001  # over stand-ins a caller may raise anything
            continue
        if given := host.language_model.arguments:
            value = given.get(caller.parameter, given.get(caller.position))
            return ABSENT if value is None else value
        break
    return _given_by_forward(caller) if caller.is_known else None


@torch.no_grad()
def _given_by_forward(caller: LoadedCaller) -> object:
    """Run the `forward` of a caller whose attributes begin as literals; no value of a stand-in counts."""
    try:
        instance = _bare(caller.of)
        furnish(instance, caller.of.attributes)
        for name, value in caller.initial.items():
            _assign(instance, name, value)
        recorder = _Recorder(caller)
        for part in instance.modules():
            if isinstance(part, TextPart):
                part.register_forward_pre_hook(recorder.note_part)
        set_part(instance, caller.path, recorder)
        instance(**_call_arguments(caller.of, {}, embedded=True))
    except _RegionCalled:
        given = ABSENT if recorder.given is None else recorder.given
        return given if recorder.is_own else None
    except Exception:  # noqa: BLE001  # over stand-ins a caller may raise anything: then nothing is known of it
        return None
    return None


def _assign(region: Any, name: str, value: object) -> None:  # noqa: ANN401  # any module
    """Give an attribute of a module another value, whatever it held."""
    if hasattr(region, name):
        delattr(region, name)
    setattr(region, name, value)


def _hidden() -> Tensor:
    return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(3))


_WHOLE = ("ids", "positions", "indices", "lens", "loc", "slots", "types", "mapping")


def _required_value(name: str, annotation: str) -> object:
    """Return a value for an argument that has no default, by its annotation and its name."""
    if "None" in annotation or "Optional" in annotation or name == "intermediate_tensors":
        return None
    plain: Mapping[str, object] = {"int": 1, "bool": False, "float": 1.0, "str": ""}
    if annotation in plain:
        return plain[annotation]
    return torch.arange(TOKENS) if name.endswith(_WHOLE) else _hidden()

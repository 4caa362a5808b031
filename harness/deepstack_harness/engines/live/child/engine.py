"""Start a real vLLM in this process, serve schedules of requests, and report what was seen.

This file runs under the interpreter of an engine: it imports vLLM, torch and the standard library, and
nothing of the harness.  Nothing is judged here.

`Replay` emulates CUDA graphs on a CPU.  The dispatcher is the engine's class, and the rule for uniform
batches is the runner's: both run on this runner's own batches.  Only the graph is emulated, and the
capture sizes are those of an engine of 256 requests.  Rows of padding are not: an uncompiled step on a CPU
has none.
"""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module, util
from pathlib import Path
from typing import Any

# Before vLLM is imported: its caches go where this process may write.
os.environ.setdefault("VLLM_CACHE_ROOT", str(Path(tempfile.gettempdir(), "vllm")))

# Functions of vLLM's runner: a step, what it embeds and which rows are visual, its padding, and what is
# taken for a batch of decodes.  Its base class for GPUs has them all, the one for CPUs inherits them.
_DECIDE_CALLS = (
    "execute_model", "_preprocess", "_gather_mm_embeddings", "_determine_batch_execution_and_padding",
    "_is_uniform_decode",
)  # fmt: skip
# Functions of its dispatcher, which decides what is replayed.
_DECIDE_REPLAYS = (
    "__init__", "initialize_cudagraph_keys", "add_cudagraph_key", "_create_padded_batch_descriptor",
    "_compute_bs_to_padded_graph_size", "dispatch",
)  # fmt: skip

_MOST_STEPS = 3000
"""Steps of one session; more raise, since an engine that never ends its requests would run forever."""
_STARTED: dict[str, Any] = {}


def start(job: Mapping[str, Any], channel: Any) -> dict[str, Any]:  # noqa: ANN401
    """Start the engine of a job; return versions, settings and the calls that its start made."""
    channel.phase("the import of vllm")
    vllm = import_module("vllm")
    module = import_module(f"vllm.model_executor.models.{job['module']}")
    if not hasattr(module, job["model_class"]):
        return {"missing": job["model_class"], "vllm": vllm.__version__}
    model_class = getattr(module, job["model_class"])
    if job["config_class"]:
        _register_config(job["config_class"])
    for name, text in job["methods"].items():  # compiled in the class's module
        place: dict[str, Any] = dict(vars(module))
        place.setdefault("IntermediateTensors", import_module("vllm.sequence").IntermediateTensors)
        exec(compile(f"from __future__ import annotations\n{text}", f"<{name}>", "exec"), place)
        setattr(model_class, name, place[name])
    ledger_module = _sibling("ledger")
    ledger = ledger_module.LiveLedger(levels_first=not job["main_features"])
    watch = ledger_module.ClassWatch(model_class, ledger, job["driven"], zeros=job["zeros"])
    channel.phase("the start of the engine")
    llm = vllm.LLM(**job["settings"])
    engine = _Engine(vllm, llm, ledger, watch, job["logprobs"])
    _STARTED["engine"] = engine
    return engine.settle()


def serve(schedule: Mapping[str, Any], channel: Any) -> dict[str, Any]:  # noqa: ANN401
    """Serve one schedule on the engine that `start` started; see `_Engine.serve`."""
    served: dict[str, Any] = _STARTED["engine"].serve(schedule, channel)
    return served


class _Engine:
    """A running engine in this process, with everything that is watched in it."""

    def __init__(self, vllm: Any, llm: Any, ledger: Any, watch: Any, logprobs: int) -> None:  # noqa: ANN401
        self._vllm, self._llm, self._ledger, self._watch = vllm, llm, ledger, watch
        self._logprobs = logprobs
        self._engine = llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        self._scheduler = self._core.scheduler
        self._runner = self._core.model_executor.driver_worker.worker.model_runner
        self._budget = self._scheduler.max_num_scheduled_tokens
        self._counts: dict[str, int] = {}
        self._names: list[str] = []
        self._replay = Replay(self._runner)
        watch.replayed = lambda: self._replay.now
        self._observe_batches()
        self._count_calls(self._scheduler, "_preempt_request", {"preemptions": None})
        # Its arguments are called so since speculation came to the scheduler (0.8).
        drafts = {"drafted tokens": "num_draft_tokens", "accepted drafts": "num_accepted_tokens"}
        self._count_calls(self._scheduler, "make_spec_decoding_stats", drafts)

    @property
    def _model(self) -> Any:  # noqa: ANN401
        return self._runner.get_model()

    def settle(self) -> dict[str, Any]:
        """Return what runs, and what the start called; note the state at capture, with nothing set.

        `deciding` has the SHA-256 of the source of each function that decides what a step calls and replays.
        """
        config = self._engine.vllm_config
        compilation = config.compilation_config
        dispatcher = import_module("vllm.v1.cudagraph_dispatcher").CudagraphDispatcher
        owners = [(type(self._runner), _DECIDE_CALLS), (dispatcher, _DECIDE_REPLAYS)]
        functions = [getattr(owner, name, None) for owner, names in owners for name in names]
        unwrapped = [inspect.unwrap(function) for function in functions if function is not None]
        facts = {
            "vllm": self._vllm.__version__, "torch": import_module("torch").__version__,
            "runner": f"{type(self._runner).__module__}.{type(self._runner).__name__}",
            "compile_mode": str(compilation.mode), "backend": str(compilation.backend),
            "cudagraph_mode": str(compilation.cudagraph_mode),
            "capacity": config.scheduler_config.max_num_batched_tokens,
            "levels": _sibling("ledger").count_levels(self._model),
            "hidden": _sibling("ledger").hidden_of(self._model),
            "deciding": {
                f"{function.__module__}.{function.__qualname__}": sha256(
                    inspect.getsource(function).encode()
                ).hexdigest()
                for function in unwrapped
            },
            "start_calls": self._ledger.calls, "start_steps": self._ledger.steps,
        }  # fmt: skip
        self._watch.capture(self._model)
        self._ledger.reset()
        return facts

    def serve(self, schedule: Mapping[str, Any], channel: Any) -> dict[str, Any]:  # noqa: ANN401
        """Serve requests to their end; return the generated tokens by name, the steps, and the calls.

        The buffer begins clean and the prefix cache empty, so that no schedule depends on an earlier one.
        """
        self._watch.clean(self._model)
        self._llm.reset_prefix_cache()
        self._ledger.reset()
        self._counts.clear()
        self._ledger.zero_payload = schedule["zero_payload"]
        self._replay.use(schedule["replay"])
        self._scheduler.max_num_scheduled_tokens = schedule["budget"] or self._budget
        try:
            answers = self._run(schedule["requests"], channel)
        finally:
            self._replay.use(None)
        return {"answers": answers, "steps": self._ledger.steps, "calls": self._ledger.calls,
                "counts": dict(self._counts)}  # fmt: skip

    def _run(self, requests: Sequence[Mapping[str, Any]], channel: Any) -> dict[str, Any]:  # noqa: ANN401
        answers: dict[str, Any] = {}
        self._names = [request["name"] for request in requests]
        waiting = list(requests)
        for step in range(_MOST_STEPS):
            if not waiting and not self._engine.has_unfinished_requests():
                return answers
            channel.phase(f"engine step {step}")
            for request in requests:
                if request in waiting and request["arrives"] <= step:
                    waiting.remove(request)
                    self._add(request)
            gone = [request["name"] for request in requests if request["aborted"] == step]
            if gone:
                in_prefill = {
                    self._name_of(inner)
                    for inner, scheduled in self._scheduler.requests.items()
                    if 0 < scheduled.num_computed_tokens < scheduled.num_prompt_tokens
                }
                self._note("aborts in prefill", len(in_prefill.intersection(gone)))
                self._engine.abort_request(gone)
            for output in self._engine.step():
                if output.finished:
                    answers[output.request_id] = self._answer(output.outputs[0])
                    self._note("cached tokens", getattr(output, "num_cached_tokens", None) or 0)
        raise RuntimeError(f"requests are left after {_MOST_STEPS} steps")

    def _add(self, request: Mapping[str, Any]) -> None:
        prompt: dict[str, Any] = {"prompt": request["text"]}
        data: dict[str, Any] = {}
        folder = _sibling("model_folder")
        if request["images"]:
            data["image"] = [folder.picture(image) for image in request["images"]]
        if request["waves"]:
            data["audio"] = [folder.wave(wave) for wave in request["waves"]]
        if request["frames"]:
            numpy = import_module("numpy")
            frames = numpy.stack([numpy.asarray(folder.picture(image)) for image in request["frames"]])
            count = len(frames)
            metadata = {
                "fps": 2.0, "duration": count / 2, "total_num_frames": count, "video_backend": "opencv",
                "frames_indices": list(range(count)), "do_sample_frames": False,
            }  # fmt: skip
            data["video"] = [(frames, metadata)]
        if data:
            prompt["multi_modal_data"] = data
        wanted = self._vllm.SamplingParams(
            temperature=0, max_tokens=request["answers"], logprobs=self._logprobs, ignore_eos=True
        )
        self._engine.add_request(request["name"], prompt, wanted)

    def _answer(self, output: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return tokens, and the log-probabilities of all token ids at each of them, None for no figure."""
        rows = []
        for by_token in output.logprobs or []:
            figures = {token: figure.logprob for token, figure in by_token.items()}
            rows.append([figures.get(token) for token in range(self._logprobs)])
        return {"tokens": list(output.token_ids), "logprobs": rows}

    def _observe_batches(self) -> None:
        """Note before each step which rows are whose, and what the dispatcher would do with it."""
        inner = self._runner._determine_batch_execution_and_padding  # noqa: SLF001  # the only place that knows

        def observed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            decided = inner(*args, **kwargs)
            batch = self._runner.input_batch
            scheduled: Any = kwargs.get("num_scheduled_tokens_np")
            computed, prompt = batch.num_computed_tokens_cpu, batch.num_prompt_tokens
            requests = [
                [self._name_of(batch.req_ids[i]), int(scheduled[i]), bool(computed[i] < prompt[i])]
                for i in range(0 if scheduled is None else kwargs.get("num_reqs") or 0)
            ]
            self._ledger.pending = {"requests": requests, **self._replay.observe(kwargs)}
            return decided

        self._runner._determine_batch_execution_and_padding = observed  # noqa: SLF001

    def _name_of(self, inner: str) -> str:
        """Return the name of a request: inside, the engine adds a random ending to it."""
        return next((name for name in self._names if inner in {name, f"{name}-{inner[-8:]}"}), inner)

    def _note(self, counted: str, number: int) -> None:
        if number:
            self._counts[counted] = self._counts.get(counted, 0) + number

    def _count_calls(self, owner: Any, name: str, counted: Mapping[str, str | None]) -> None:  # noqa: ANN401
        """Count the calls of a method under each name, or sum up its argument of that name."""
        inner = getattr(owner, name, None)
        if inner is None:
            return

        def counting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            for words, argument in counted.items():
                self._note(words, 1 if argument is None else kwargs.get(argument, 0))
            return inner(*args, **kwargs)

        setattr(owner, name, counting)


def _register_config(names: Mapping[str, str]) -> None:
    """Register the configuration class of a family that is in no release of transformers.

    Released folders bring it as code of their own; `text` is its attribute with the text configuration.
    """
    transformers = import_module("transformers")
    text_class = transformers.CONFIG_MAPPING[names["text_type"]]

    def get_text_config(self: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        return getattr(self, names["text"])

    def init(self: Any, **settings: Any) -> None:  # noqa: ANN401
        text = settings.pop(names["text"], None) or {}
        setattr(self, names["text"], text if isinstance(text, text_class) else text_class(**text))
        transformers.PretrainedConfig.__init__(self, **settings)

    members = {"model_type": names["model_type"], "__init__": init, "get_text_config": get_text_config}
    made = type("TinyConfig", (transformers.PretrainedConfig,), members)
    transformers.AutoConfig.register(names["model_type"], made)


def _sibling(name: str) -> Any:  # noqa: ANN401
    """Load another file of this folder, once; no `sys.path` leads to it."""
    if name not in _STARTED:
        spec = util.spec_from_file_location(
            f"deepstack_engine_{name}", Path(__file__).with_name(f"{name}.py")
        )
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _STARTED[name] = module
    return _STARTED[name]


class Replay:
    """The dispatcher of one graph mode, called before every step; without a mode no step is a replay."""

    def __init__(self, runner: Any) -> None:  # noqa: ANN401
        """Take the runner whose rule for uniform batches is used."""
        self._runner = runner
        self._dispatcher: Any = None
        self._outer = False
        self.now = False
        """True where the step that runs is a replay that skips the Python of the model class."""

    def use(self, rule: Mapping[str, Any] | None) -> None:
        """Take the graph mode that is emulated from now on, None for none.

        `mode` is its name, `most` the largest capture size; with `outer` the graph is taken around the
        whole model, so that a replay of pieces skips the Python of the model class too.
        """
        self._dispatcher, self._outer, self.now = None, False, False
        if rule is not None:
            self._outer = rule["outer"]
            config, mode = self._runner.vllm_config, import_module("vllm.config").CUDAGraphMode[rule["mode"]]
            sizes = [size for size in _SIZES if size <= rule["most"]]
            compilation = _Overlaid(
                config.compilation_config, cudagraph_mode=mode, cudagraph_capture_sizes=sizes,
                max_cudagraph_capture_size=max(sizes), compile_sizes=[],
                is_attention_compiled_piecewise=lambda: True,
            )  # fmt: skip
            dispatcher = import_module("vllm.v1.cudagraph_dispatcher").CudagraphDispatcher
            # As it is on a GPU in this mode.
            self._dispatcher = dispatcher(_Overlaid(config, compilation_config=compilation))
            self._dispatcher.initialize_cudagraph_keys(mode, self._runner.uniform_decode_query_len)

    def observe(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Decide about the next step from the arguments of the runner's call; return it as facts."""
        runner = self._runner
        uniform = runner._is_uniform_decode(  # noqa: SLF001  # the rule itself
            max_num_scheduled_tokens=arguments["max_num_scheduled_tokens"],
            uniform_decode_query_len=runner.uniform_decode_query_len,
            num_tokens=arguments["num_tokens"],
            num_reqs=arguments["num_reqs"],
        )
        facts: dict[str, Any] = {"uniform": bool(uniform), "replayed": False}
        if self._dispatcher is not None:
            mode, _ = self._dispatcher.dispatch(num_tokens=arguments["num_tokens"], uniform_decode=uniform)
            self.now = mode.name == "FULL" or (self._outer and mode.name == "PIECEWISE")
            facts["replayed"] = self.now
        return facts


# vLLM's default capture sizes (vllm/config/vllm.py, 0.32.0).
_SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]


class _Overlaid:
    """A configuration with some values replaced: the engine's own stays as it is."""

    def __init__(self, base: Any, **replaced: Any) -> None:  # noqa: ANN401
        self._base = base
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._base, name)

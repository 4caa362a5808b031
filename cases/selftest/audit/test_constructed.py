"""`audit --construct`: a class made by its own `__init__` is judged, or refused with its place."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cases.selftest.audit.written_verdicts import row
from cases.selftest.engines.in_process_worker import InProcessCases, InProcessWorker
from deepstack_harness.audit.constructed import constructed_row, disagreement
from deepstack_harness.cli.main import main
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Evidence, Row, Verdict
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.load import unload

NAME = "Qwen3VLForConditionalGeneration"
ENGINE = {
    "config/__init__": "",
    "config/compilation": """
        import enum
        CompilationMode = enum.Enum("CompilationMode", "NONE DYNAMO_TRACE_ONCE")
        CUDAGraphMode = enum.Enum("CUDAGraphMode", "NONE FULL")
        """,
    "forward_context": "",
    "distributed/parallel_state": "_TP = _PP = None",
    "model_executor/models/registry": "_VLLM_MODELS = {}",
    "compilation/decorators": """
        import torch
        from vllm import forward_context
        from vllm.config.compilation import CompilationMode

        def support_torch_compile(cls):
            make = cls.__init__

            def made(self, *, vllm_config):
                make(self, vllm_config=vllm_config)
                if vllm_config.compilation_config.mode is CompilationMode.DYNAMO_TRACE_ONCE:
                    options = {"guard_filter_fn": lambda guards: [False for _ in guards]}
                    plain = self.forward
                    compiled = torch.compile(
                        plain, backend="eager", dynamic=True, fullgraph=True, options=options
                    )

                    def forward(*inputs, **named):
                        skip = forward_context._forward_context.skip_compiled
                        return (plain if skip else compiled)(*inputs, **named)

                    self.forward = forward

            cls.__init__ = made
            return cls
        """,
}
MODEL = """
    import torch
    from torch import nn
    from vllm.compilation.decorators import support_torch_compile

    @support_torch_compile
    class TextModel(nn.Module):
        def __init__(self, *, vllm_config):
            super().__init__()
            size = vllm_config.model_config.hf_config.text_config.hidden_size
            self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(4)])

        def forward(self, embeddings, levels=None):
            for number, layer in enumerate(self.layers):
                embeddings = embeddings + torch.tanh(layer(embeddings))
                if levels is not None and number < 3:
                    embeddings = embeddings + levels[number]
            return embeddings

    class Qwen3VLForConditionalGeneration(nn.Module):
        def __init__(self, *, vllm_config, prefix=""):
            super().__init__()
            self.model = TextModel(vllm_config=vllm_config)
            self.levels, self.held = torch.zeros(3, 16, 32), 0

        def embed_input_ids(self, ids, multimodal=None):
            if multimodal is None:
                return torch.zeros(len(ids), 32) + ids[:, None]
            main, *levels = torch.cat(multimodal).split(32, dim=-1)
            self.held = len(main)
            self.levels[:, : self.held] = torch.stack(levels)
            return main

        def forward(self, input_ids, positions, inputs_embeds):
            tokens = len(inputs_embeds)
            out = self.model(inputs_embeds, self.levels[:, :tokens])
            self.levels.zero_()
            self.held = 0
            return out
    """
Judge = Callable[..., Row]
PASSES = "self.levels[:, :tokens]"
SINCE_THE_FIRST_PAYLOAD = f"{PASSES} if self.held else None"


def dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines) + "\n"


def written(root: Path, model: str = MODEL, file: str = "qwen3_vl") -> str:
    for name, text in {**ENGINE, f"model_executor/models/{file}": model}.items():
        path = root / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedented(text))
    return str(root)


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Judge]:
    def judge(*changes: tuple[str, str], text: str = MODEL, file: str = "qwen3_vl", name: str = NAME) -> Row:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        with InProcessWorker(written(tmp_path, text, file)) as worker:
            return constructed_row(worker, InProcessCases(), name)

    yield judge
    unload()


def test_a_class_that_always_passes_its_levels_passes_r0(judged: Judge) -> None:
    passed = judged()
    assert (passed.verdict, passed.evidence, passed.rule) == (Verdict.PASS, Evidence.CONSTRUCTED, Rule.OUTPUT)
    assert passed.chances == 2


def test_a_class_that_passes_them_only_where_it_has_some_loses_them(judged: Judge) -> None:
    broken = judged((PASSES, SINCE_THE_FIRST_PAYLOAD))
    assert broken.verdict in BROKEN  # 43602, which is known of this class
    assert "equals that without the payload, which is ignored" in broken.detail


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        # The payload has no influence: nothing was measured.
        ("number < 3", "number < 0", "no step ran the decoder on a payload"),
        ("return main", "return main * float('nan')", "not finite"),
        ("self.held = 0\n", "self.held = 0\n        raise KeyError('late')\n", "qwen3_vl.py:"),
        (
            "super().__init__()\n            self.model",
            "super().__init__()\n            self.model = vllm_config.none.x\n            self.model",
            "qwen3_vl.py:",
        ),
        ("import torch\n", "import torch\n    import absent_library\n", ""),
    ],
    ids=[
        "no influence",
        "not finite",
        "raises in a step",
        "raises in its __init__",
        "an import that is not used",
    ],
)
def test_what_was_not_measured_is_no_pass(old: str, new: str, why: str, judged: Judge) -> None:
    seen = judged((old, new))
    assert seen.verdict is (Verdict.SKIP if why else Verdict.PASS)
    assert why in (seen.detail or "")


def test_a_class_of_which_nothing_is_compiled_is_not_judged(judged: Judge) -> None:
    seen = judged(("    @support_torch_compile\n", ""))
    assert seen.verdict is Verdict.SKIP
    assert "compiled nothing of it" in seen.detail


# A class whose side input is an argument of the compiled class, or the encoder's outputs.
TYPED = """
    import torch
    from torch import nn
    from vllm.compilation.decorators import support_torch_compile

    @support_torch_compile
    class Embedding(nn.Module):
        def __init__(self, *, vllm_config):
            super().__init__()
            self.words, self.types = nn.Embedding(64, 32), nn.Embedding(2, 32)

        def forward(self, input_ids, types):
            hidden = self.words(input_ids)
            return hidden if types is None else hidden + self.types(types)

    class BertWithRope(nn.Module):
        def __init__(self, *, vllm_config, prefix=""):
            super().__init__()
            self.embedding = Embedding(vllm_config=vllm_config)

        def forward(self, input_ids, positions, token_type_ids=None):
            return self.embedding(input_ids, token_type_ids)
    """
ALWAYS = "torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids"
SPOKEN = """
    import torch
    from torch import nn
    from vllm.compilation.decorators import support_torch_compile

    @support_torch_compile
    class Decoder(nn.Module):
        def __init__(self, *, vllm_config):
            super().__init__()
            self.words = nn.Embedding(64, 32)

        def forward(self, input_ids, states):
            hidden = self.words(input_ids)
            return hidden if states is None else hidden + states.mean(0)

    class WhisperForConditionalGeneration(nn.Module):
        def __init__(self, *, vllm_config, prefix=""):
            super().__init__()
            self.decoder = Decoder(vllm_config=vllm_config)

        def forward(self, input_ids, positions, encoder_outputs):
            return self.decoder(input_ids, torch.cat(encoder_outputs) if encoder_outputs else None)
    """
WHISPER = "WhisperForConditionalGeneration"


def test_an_argument_that_only_some_requests_have(judged: Judge) -> None:
    broken = judged(text=TYPED, file="bert_with_rope", name="BertWithRope")
    assert broken.verdict is Verdict.FAIL, broken.detail


def test_an_argument_that_every_call_has(judged: Judge) -> None:
    always = ("(input_ids, token_type_ids)", f"(input_ids, {ALWAYS})")
    passed = judged(always, text=TYPED, file="bert_with_rope", name="BertWithRope")
    assert passed.verdict is Verdict.PASS, passed.detail


def test_steps_with_outputs_of_an_encoder_are_not_compiled(judged: Judge) -> None:
    passed = judged(text=SPOKEN, file="whisper", name=WHISPER)
    assert passed.verdict is Verdict.PASS, passed.detail


def test_an_engine_that_compiles_them_loses_them(judged: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    decorators = ENGINE["compilation/decorators"].replace("plain if skip else compiled", "compiled")
    monkeypatch.setitem(ENGINE, "compilation/decorators", decorators)
    broken = judged(text=SPOKEN, file="whisper", name=WHISPER)
    assert broken.verdict is Verdict.FAIL, broken.detail


@pytest.mark.parametrize(("version", "verdict"), [("0.33.0", Verdict.XFAIL), ("0.31.0", Verdict.FAIL)])
def test_an_argument_that_an_engine_showed_is_known(
    version: str, verdict: Verdict, judged: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "vllm/_version.py"
    path.parent.mkdir()
    path.write_text(f'__version__ = version = "{version}"\n')
    assert judged(text=TYPED, file="bert_with_rope", name="BertWithRope").verdict is verdict


def test_a_stub_that_is_met_is_named(judged: Judge) -> None:
    seen = judged(
        ("import torch\n", "import torch\n    import absent_library\n"),
        ("tokens = len(inputs_embeds)", "tokens = absent_library.length(inputs_embeds)"),
    )
    assert seen.verdict is Verdict.SKIP
    assert "absent_library is not there and is read" in seen.detail


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (Verdict.PASS, Verdict.PASS, False),
        (Verdict.FAIL, Verdict.XFAIL, False),
        (Verdict.PASS, Verdict.XFAIL, True),
        (Verdict.FAIL, Verdict.PASS, True),
        (Verdict.SKIP, Verdict.FAIL, False),
    ],
)
def test_two_opinions_differ_where_one_breaks_the_rule(one: Verdict, other: Verdict, *, differ: bool) -> None:
    sentence = disagreement(row(Rule.OUTPUT, one, ""), row(Rule.OUTPUT, other, ""))
    assert bool(sentence) is differ


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--source", "transformers==5.23.0"], "has no tiny configurations"),
        (["--source", "{tree}", "--class", "Nobody"], "--class Nobody: "),
        (["--source", "{tree}", "--base", "{tree}"], "leave out --base"),
    ],
)
def test_what_cannot_be_constructed_is_refused(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = written(tmp_path)
    assert main(["audit", "--construct", *(word.replace("{tree}", tree) for word in words)]) == 2
    assert why in capsys.readouterr().err


def test_what_was_not_judged_ends_the_command_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = written(tmp_path, MODEL.replace("return main", "return main * float('nan')"))
    assert main(["audit", "--construct", "--source", tree]) == 1
    assert "0 classes judged, 1 not judged, 0 broken" in capsys.readouterr().out


@pytest.mark.network
def test_a_class_of_a_release_that_has_no_furnished_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--construct", "--source", "vllm==0.33.0", "--class", "BertWithRope"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "BertWithRope known not driven step 3 'forward 16': the compiled output equals that" in shown
    assert "1 class judged, 0 not judged, 0 broken in a way that is not known, 0 disagreements" in shown


@pytest.mark.slow  # vLLM is imported for both opinions, 10 s of a processor each
@pytest.mark.network
def test_a_class_of_an_older_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--construct", "--source", "vllm==0.22.1", "--class", NAME]) == 0
    shown = capsys.readouterr().out
    assert "1 class judged, 0 not judged, 0 broken in a way that is not known, 0 disagreements" in shown
    assert "known" in shown.splitlines()[2]


@pytest.mark.slow  # 30 classes of 1 to 5 s
@pytest.mark.timeout(1200)
@pytest.mark.network
def test_the_classes_of_a_release(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert main(["audit", "--construct", "--source", "vllm==0.33.0", "--json", str(path)]) == 1
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    verdicts = {row["model_class"]: Verdict(row["verdict"]) for row in rows if "model_class" in row}
    berts = ("BertWithRope", "NomicBertModel", "JinaRobertaModel", "GteNewModel", "SnowflakeGteNewModel")
    assert verdicts == {
        **dict.fromkeys(VLLM.tiny, Verdict.PASS),
        **dict.fromkeys(("MossAudioModel", *berts), Verdict.XFAIL),
        "nvidia.Qwen4ExpForConditionalGeneration": Verdict.SKIP,  # nothing of it is compiled
    }

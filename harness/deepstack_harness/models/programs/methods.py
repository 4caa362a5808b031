"""Methods of a buffer in a class of an engine, read out of a copy of the engine when the script runs."""

import ast
import importlib.util
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from deepstack_harness.models.programs.engines import decoder
from deepstack_harness.models.programs.graphs import compile_as_engines_do
from deepstack_harness.models.programs.trace import CAPACITY, HIDDEN, LEVELS, STEPS, drawn

MEMBER = "vllm/model_executor/models/qwen3_vl.py"
CLASS = "Qwen3VLForConditionalGeneration"
TITLE = "vLLM"
RULES = ["R0", "R1"]
ROW_RULES = {"R2", "R3", "R4", "R5"}
VERBS = ("get", "set", "clear", "resize")


def methods(path: Path) -> dict[str, Any]:
    """Execute the methods of the class and nothing else of the package."""
    whole = path.suffix == ".whl" and zipfile.ZipFile(path).read(MEMBER)
    text = whole or next(filter(Path.is_file, (path / MEMBER, path.parent / MEMBER, path))).read_bytes()
    (found,) = [
        node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == CLASS
    ]
    defined = [node for node in found.body if isinstance(node, ast.FunctionDef)]
    functions = [node for node in defined if "_deepstack_input_embeds" in node.name]
    names = {"torch": torch, "IntermediateTensors": lambda tensors: tuple(tensors.values())}
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    module = ast.fix_missing_locations(ast.Module([future, *functions], []))
    exec(compile(module, str(path), "exec"), names)
    return {node.name: names[node.name] for node in functions}


def their_buffer(path: Path, capacity: int, hidden: int, levels: int) -> Any:
    made = type(CLASS, (), methods(path))()
    made.config = made.thinker_config = SimpleNamespace(text_config=SimpleNamespace(hidden_size=hidden))
    made.deepstack_num_level, made.deepstack_input_embeds_num_tokens = levels, 0
    made.deepstack_input_embeds = list(torch.zeros(levels, capacity, hidden))
    made.__dict__ |= {verb: getattr(made, f"_{verb}_deepstack_input_embeds", None) for verb in VERBS}
    return made


def stop(why: str) -> NoReturn:
    print(f"nothing was compared: {why}", file=sys.stderr)
    raise SystemExit(2)


def copy_of(text: str) -> Path:
    spec = None if text else importlib.util.find_spec(MEMBER.partition("/")[0])  # found and not imported
    if not text and not (spec and spec.origin):
        stop(f"{TITLE} is not installed: name a copy of it")
    path = Path(text) if text else Path(str(spec and spec.origin)).parent
    return path if path.exists() else stop(f"{path} is not there")


class TheirEngine:
    """An engine in small around their methods, for the rules in RULES."""

    def __init__(self, text: str) -> None:
        try:
            self.buffer = their_buffer(copy_of(text), CAPACITY, HIDDEN, LEVELS)
        except (KeyError, StopIteration, SyntaxError, ValueError) as error:
            stop(f"{MEMBER} has no class {CLASS} that can be read ({error!r})")
        self.payload, self.capacity, self.compared = drawn(LEVELS, 0, HIDDEN), CAPACITY, 0.0
        self.run = compile_as_engines_do(decoder)

    def play(self, op: str, tokens: int) -> list[str]:
        """Return what is wrong with a step."""
        if op == "set":
            self.payload, self.capacity = drawn(LEVELS, tokens, HIDDEN), max(self.capacity, tokens)
            self.buffer.set(self.payload.clone())
            return []
        answer = None if op == "clear" else self.buffer.get(tokens)
        found = [] if op == "clear" else self.wrong_rows(answer, tokens)
        if op in ("forward", "profile") and "R0" in RULES:
            found += self.wrong_output(answer, tokens)
        elif op != "clear" and "R0" not in RULES:
            self.compared += self.payload.size(1)
        if op != "get":
            self.buffer.clear(tokens)
            self.payload = self.payload[:, :0]
        return found

    def wrong_rows(self, answer: Any, tokens: int) -> list[str]:
        if answer is None and "R1" in RULES:
            return ["get answered None"]
        wanted = torch.zeros(LEVELS, tokens, HIDDEN)
        wanted[:, : self.payload.size(1)] = self.payload[:, :tokens]
        if answer is None and wanted.any() and ROW_RULES.intersection(RULES):
            return ["get answered None, and a payload was set"]
        for level, (rows, right) in enumerate(zip(answer or (), wanted, strict=False)):
            count = tokens - sum(map(torch.equal, rows, right))
            if count and ROW_RULES.intersection(RULES):
                short = f"level {level} has {len(rows)} rows, not {tokens}"
                wrong = (
                    f"{count} of {tokens} rows of level {level} are not those that were set, with zeros after"
                )
                return [wrong if rows.shape == right.shape else short]
        return []

    def wrong_output(self, answer: Any, tokens: int) -> list[str]:
        hidden = drawn(tokens, HIDDEN)
        for tensor in (hidden, *(answer or ())):
            torch._dynamo.mark_dynamic(tensor, 0)
        out, eager, bare = self.run(hidden, answer), decoder(hidden, answer), decoder(hidden, ())
        off, effect = (float((other - eager).abs().max()) for other in (out, bare))
        self.compared = max(self.compared, effect)
        return [f"compiled - eager is {off:.5f}"] if off > 1e-4 else []


def faults_of_copy(text: str) -> list[str]:
    engine, found = TheirEngine(text), []
    for op, tokens in STEPS:
        try:
            found += [f"{op} {tokens}: {wrong}" for wrong in engine.play(op, tokens)]
        except (AttributeError, NameError) as error:  # more of the package than these methods
            stop(f"{op} {tokens}: {error}")
        except Exception as error:
            if tokens > engine.capacity and ROW_RULES.intersection(RULES):  # to refuse is right there
                engine.compared += engine.payload.size(1)
            elif "R2" in RULES:
                found.append(f"{op} {tokens} raised {error!r}")
            else:
                stop(f"{op} {tokens} raised {error!r}")
    if not found and engine.compared < 0.1:
        stop("no payload was ever requested")
    return found

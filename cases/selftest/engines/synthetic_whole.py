"""Model classes in the shape of vLLM's whose get, set and clear are right, and that differ in the rest.

Nothing of vLLM's code.  `RIGHT` has `embed_input_ids` and `forward` written in unusual ways that keep the
contract, `WRONG` ways that break one rule of it though the three methods keep all of them.  All were written
from the contract's text, before the code that judges them.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule

QWEN = "vllm/model_executor/models/qwen3_vl.py"

HEADER = """\
import contextlib

import torch

from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors, NoSuchBase


class Qwen3VLForConditionalGeneration(NoSuchBase):
"""
STORAGE = """\
def __init__(self, *, vllm_config, prefix="model"):
    super().__init__()
    config = vllm_config.model_config.hf_config
    self.levels = len(config.vision_config.deepstack_visual_indexes)
    self.width = config.text_config.hidden_size
    rows = vllm_config.scheduler_config.max_num_batched_tokens
    self.deepstack_input_embeds = [torch.zeros(rows, self.width) for _ in range(self.levels)]
    self.visual = NoSuchTower(config)
    self.language_model = NoSuchModel(vllm_config)

def _get_deepstack_input_embeds(self, num_tokens):
    if not 0 <= num_tokens <= self.deepstack_input_embeds[0].size(0):
        raise ValueError(f"{num_tokens} rows")
    return IntermediateTensors(
        {f"deepstack_input_embeds_{i}": x[:num_tokens] for i, x in enumerate(self.deepstack_input_embeds)}
    )

def _set_deepstack_input_embeds(self, deepstack_input_embeds):
    levels, tokens, width = deepstack_input_embeds.shape
    if (levels, width) != (self.levels, self.width) or tokens > self.deepstack_input_embeds[0].size(0):
        raise ValueError(f"{levels} levels of {tokens} rows, {width} wide")
    for rows, level in zip(self.deepstack_input_embeds, deepstack_input_embeds):
        rows.zero_()
        rows[:tokens].copy_(level.detach())

def _clear_deepstack_input_embeds(self, num_tokens):
    if not 0 <= num_tokens <= self.deepstack_input_embeds[0].size(0):
        raise ValueError(f"{num_tokens} rows")
    for rows in self.deepstack_input_embeds:
        rows.zero_()
"""
EMBED = """\
def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None, **_):
    text = self._embed_text_input_ids(
        input_ids, self.language_model.embed_input_ids, is_multimodal=is_multimodal
    )
    if not multimodal_embeddings:
        self._clear_deepstack_input_embeds(text.size(0))
        return text
    main, levels = torch.cat(tuple(multimodal_embeddings)).tensor_split([self.width], dim=1)
    payload = text.new_zeros(self.levels, text.size(0), self.width)
    payload[:, is_multimodal] = levels.unflatten(1, (self.levels, self.width)).permute(1, 0, 2)
    self._set_deepstack_input_embeds(payload)
    text[is_multimodal] = main
    return text
"""
FORWARD = """\
def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_):
    payload = self._get_deepstack_input_embeds(inputs_embeds.size(0))
    hidden = self.language_model.model(
        input_ids=input_ids,
        positions=positions,
        intermediate_tensors=intermediate_tensors,
        inputs_embeds=inputs_embeds,
        deepstack_input_embeds=payload,
    )
    self._clear_deepstack_input_embeds(inputs_embeds.size(0))
    return hidden
"""
RUN = """\
hidden = self.language_model.model(
    input_ids=input_ids,
    positions=positions,
    intermediate_tensors=intermediate_tensors,
    inputs_embeds=inputs_embeds,
    deepstack_input_embeds=payload,
)
"""
"""The call of the language model, as a statement of `forward`."""


def forward(body: str) -> str:
    """Return a `forward` with this body, in which `RUN` means the call of the language model."""
    head = "def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_):\n"
    lines = []
    for line in textwrap.dedent(body).splitlines():
        bare = line.strip()
        depth = line[: len(line) - len(line.lstrip())]
        lines.append(textwrap.indent(RUN.rstrip(), depth) if bare == "RUN" else line)
    return head + textwrap.indent("\n".join(lines) + "\n", "    ")


@dataclass(frozen=True)
class WholeClass:
    """A class: its `embed_input_ids` and `forward`, and the rule that they break, if there is one.

    `regime` is that of the rule; a class whose fault is `captured` passes all rules in live use.  `renamed`
    has texts of its members, each with the one in its place.
    """

    forward: str = FORWARD
    embed: str = EMBED
    more: str = ""
    breaks: Rule | None = None
    regime: Regime = Regime.LIVE
    init: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The text of its file."""
        storage = STORAGE
        for line in self.init:
            storage = storage.replace("    self.visual =", f"    {line}\n    self.visual =")
        members = "\n".join(filter(None, [storage, self.embed, self.forward, self.more]))
        for old, new in self.renamed.items():
            members = members.replace(old, new)
        return HEADER + textwrap.indent(members, "    ")

    def write(self, root: Path) -> Path:
        """Write a source tree with only this class; return its root."""
        path = root / QWEN
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(self), "utf-8")
        return root


def embed(old: str, new: str) -> str:
    """Return the right `embed_input_ids` with one piece of its text replaced."""
    assert old in EMBED, old
    return EMBED.replace(old, new)


_SCATTER = "payload[:, is_multimodal] = levels.unflatten(1, (self.levels, self.width)).permute(1, 0, 2)\n"
_SET = "self._set_deepstack_input_embeds(payload)\n"
_N = "inputs_embeds.size(0)"
_GET, _CLEAR = "self._get_deepstack_input_embeds", "self._clear_deepstack_input_embeds"

RIGHT: Mapping[str, WholeClass] = MappingProxyType(
    {
        "plain": WholeClass(),
        "methods of other names": WholeClass(
            renamed={
                "_get_deepstack_input_embeds": "_rows_of_step",
                "_clear_deepstack_input_embeds": "_forget",
            }
        ),
        "storage and methods of other names": WholeClass(
            renamed={
                "self.deepstack_input_embeds": "self._rows",
                "_get_deepstack_input_embeds": "rows_for",
                "_set_deepstack_input_embeds": "write_rows",
                "_clear_deepstack_input_embeds": "end_of_rows",
            }
        ),
        "storage beside another one that nothing uses": WholeClass(
            init=("self.aaa = [torch.zeros(1, self.width) for _ in range(self.levels)]",)
        ),
        "clears in finally": WholeClass(
            forward(f"""\
        payload = {_GET}({_N})
        try:
            RUN
        finally:
            {_CLEAR}({_N})
        return hidden
        """)
        ),
        "clears by a helper": WholeClass(
            forward(f"""\
            payload = {_GET}({_N})
            RUN
            return self._end_of_step(hidden, inputs_embeds)
            """),
            more=f"""\
def _end_of_step(self, hidden, embeds):
    {_CLEAR}(embeds.size(0))
    return hidden
""",
        ),
        "clears at the end of a with block": WholeClass(
            forward(f"""\
            with self._payload_of({_N}) as payload:
                RUN
            return hidden
            """),
            more=f"""\
@contextlib.contextmanager
def _payload_of(self, tokens):
    try:
        yield {_GET}(tokens)
    finally:
        {_CLEAR}(tokens)
""",
        ),
        "gets in a helper with a tuple": WholeClass(
            forward(f"""\
            payload, tokens = self._of_step(inputs_embeds)
            RUN
            {_CLEAR}(tokens)
            return hidden
            """),
            more=f"""\
def _of_step(self, embeds):
    return {_GET}(len(embeds)), len(embeds)
""",
        ),
        "embeds in two methods": WholeClass(
            embed="""\
def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None, **_):
    text = self._embed_text_input_ids(input_ids, self.language_model.embed_input_ids)
    self._clear_deepstack_input_embeds(0)
    return self._with_images(text, multimodal_embeddings, is_multimodal) if multimodal_embeddings else text

def _with_images(self, text, images, where):
    packed = torch.cat(list(images), dim=0)
    levels = []
    for level in range(self.levels):
        rows = torch.zeros_like(text)
        rows[where] = packed[:, (level + 1) * self.width : (level + 2) * self.width]
        levels.append(rows)
    self._set_deepstack_input_embeds(torch.stack(levels))
    return torch.index_copy(text, 0, where.nonzero().squeeze(1), packed[:, : self.width])
"""
        ),
        "scatters image by image": WholeClass(
            embed=embed(
                _SCATTER,
                """\
places = is_multimodal.nonzero().squeeze(1).split([len(image) for image in multimodal_embeddings])
    for image, place in zip(multimodal_embeddings, places):
        for level in range(self.levels):
            payload[level].index_add_(0, place, image[:, (level + 1) * self.width :][:, : self.width])
""",
            )
        ),
        "calls the language model by position": WholeClass(
            forward(f"""\
        payload = {_GET}({_N})
        hidden = self.language_model.model(input_ids, positions, intermediate_tensors, inputs_embeds, payload)
        {_CLEAR}({_N})
        return hidden
        """)
        ),
        "calls the language model with a dict": WholeClass(
            forward(f"""\
        arguments = dict(input_ids=input_ids, positions=positions, inputs_embeds=inputs_embeds)
        arguments["intermediate_tensors"] = intermediate_tensors
        arguments["deepstack_input_embeds"] = {_GET}({_N})
        hidden = self.language_model.model(**arguments)
        {_CLEAR}({_N})
        return hidden
        """)
        ),
        "asks for the language model, and leaves early on later ranks": WholeClass(
            forward(f"""\
        run = self.get_language_model().model
        if intermediate_tensors is not None or not get_pp_group().is_first_rank:
            return run(input_ids, positions, intermediate_tensors, inputs_embeds=None)
        payload = {_GET}({_N})
        hidden = run(
            input_ids, positions, None, inputs_embeds=inputs_embeds, deepstack_input_embeds=payload
        )
        {_CLEAR}({_N})
        return hidden
        """)
        ),
        "passes intermediate tensors through": WholeClass(
            forward(f"""\
        if intermediate_tensors is not None:
            inputs_embeds = None
        first = inputs_embeds is not None and get_pp_group().is_first_rank
        payload = {_GET}({_N}) if first else None
        RUN
        if first:
            {_CLEAR}({_N})
        return hidden
        """)
        ),
        "takes its arguments by keyword alone": WholeClass(
            FORWARD.replace(
                "input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_",
                "*, inputs_embeds=None, intermediate_tensors=None, positions, input_ids=None",
            )
        ),
        "clears before it calls, and hands on copies": WholeClass(
            forward(f"""\
        shown = {_GET}({_N})
        payload = IntermediateTensors({{name: rows.clone() for name, rows in shown.items()}})
        {_CLEAR}({_N})
        RUN
        return hidden
        """)
        ),
        "counts tokens by positions": WholeClass(
            forward(f"""\
        payload = {_GET}(tokens := positions.size(-1))
        RUN
        {_CLEAR}(tokens)
        return hidden
        """)
        ),
        "hands on a list": WholeClass(
            forward(f"""\
        shown = {_GET}({_N}).tensors
        payload = [shown[f"deepstack_input_embeds_{{level}}"] for level in range(self.levels)]
        RUN
        {_CLEAR}({_N})
        return hidden
        """)
        ),
        "clears in a nested function": WholeClass(
            forward(f"""\
        def end(hidden):
            {_CLEAR}({_N})
            return hidden

        payload = {_GET}({_N})
        RUN
        return end(hidden)
        """)
        ),
        "clears twice": WholeClass(
            forward(f"""\
            payload = {_GET}({_N})
            RUN
            for _ in range(2):
                {_CLEAR}({_N})
            return hidden
            """),
            embed=embed("    if not multi", "    self._clear_deepstack_input_embeds(0)\n    if not multi"),
        ),
        "clears the storage itself": WholeClass(
            forward(f"""\
        payload = {_GET}({_N})
        RUN
        [rows.zero_() for rows in self.deepstack_input_embeds]
        return hidden
        """)
        ),
    }
)
"""Classes that keep every rule, in both regimes."""

WRONG: Mapping[str, WholeClass] = MappingProxyType(
    {
        "never clears": WholeClass(
            forward(f"payload = {_GET}({_N})\nRUN\nreturn hidden"),
            embed=embed("self._clear_deepstack_input_embeds(text.size(0))", "pass"),
            breaks=Rule.CLEAR,
        ),
        "clears before it asks": WholeClass(
            forward(f"{_CLEAR}({_N})\npayload = {_GET}({_N})\nRUN\nreturn hidden"), breaks=Rule.BOUNDARY
        ),
        "clears before it calls, and hands on views": WholeClass(
            forward(f"payload = {_GET}({_N})\n{_CLEAR}({_N})\nRUN\nreturn hidden"), breaks=Rule.BOUNDARY
        ),
        "asks for a row too few": WholeClass(
            FORWARD.replace(f"{_GET}({_N})", f"{_GET}({_N} - 1)"), breaks=Rule.BOUNDARY
        ),
        "asks for a row too few, and calls by position": WholeClass(
            forward(f"""\
            payload = {_GET}({_N} - 1)
            hidden = self.language_model.model(input_ids, positions, None, inputs_embeds, payload)
            {_CLEAR}({_N})
            return hidden
            """),
            breaks=Rule.BOUNDARY,
        ),
        "asks for a row too many": WholeClass(
            FORWARD.replace(f"{_GET}({_N})", f"{_GET}({_N} + 1)"), breaks=Rule.BOUNDARY
        ),
        "asks for the rows that were set": WholeClass(
            FORWARD.replace(f"{_GET}({_N})", f"{_GET}(self.used or {_N})"),
            embed=embed(_SET, f"{_SET}    self.used = text.size(0)\n"),
            init=("self.used = 0",),
            breaks=Rule.BOUNDARY,
        ),
        "swaps levels": WholeClass(
            embed=embed(_SET, "self._set_deepstack_input_embeds(payload[[1, 0, *range(2, self.levels)]])\n"),
            breaks=Rule.BOUNDARY,
        ),
        "swaps levels, and calls with a dict": WholeClass(
            forward(f"""\
            names = {{"positions": positions, "deepstack_input_embeds": {_GET}({_N})}}
            hidden = self.language_model.model(input_ids, inputs_embeds=inputs_embeds, **names)
            {_CLEAR}({_N})
            return hidden
            """),
            embed=embed(_SET, "self._set_deepstack_input_embeds(payload.flip(0))\n"),
            breaks=Rule.BOUNDARY,
        ),
        "adds the rows of the step before": WholeClass(
            embed=embed(
                _SET,
                """\
if self.before is not None:
        payload = torch.cat([payload, self.before[:, payload.size(1) :]], dim=1)
    self.before = payload
    self._set_deepstack_input_embeds(payload)
""",
            ),
            init=("self.before = None",),
            breaks=Rule.CLEAR,
        ),
        "clears where a payload was set": WholeClass(
            FORWARD.replace(
                f"    {_CLEAR}({_N})", f"    if self.filled:\n        {_CLEAR}({_N})\n    self.filled = False"
            ),
            embed=embed(_SET, f"{_SET}    self.filled = True\n").replace(
                "self._clear_deepstack_input_embeds(text.size(0))", "pass"
            ),
            init=("self.filled = False",),
            breaks=Rule.CLEAR,
            regime=Regime.CAPTURED,
        ),
        "clears in the next embedding": WholeClass(
            forward(f"payload = {_GET}({_N})\nRUN\nreturn hidden"), breaks=Rule.CLEAR
        ),
        "clears visual steps alone": WholeClass(
            FORWARD.replace(f"    {_CLEAR}({_N})", f"    if input_ids is not None:\n        {_CLEAR}({_N})"),
            embed=embed("self._clear_deepstack_input_embeds(text.size(0))", "pass"),
            breaks=Rule.CLEAR,
        ),
        "clears all rows but the first": WholeClass(
            FORWARD.replace(
                f"{_CLEAR}({_N})", f"[rows[1:{_N}].zero_() for rows in self.deepstack_input_embeds]"
            ),
            embed=embed("self._clear_deepstack_input_embeds(text.size(0))", "pass"),
            breaks=Rule.CLEAR,
        ),
        "clears the first level alone": WholeClass(
            FORWARD.replace(f"{_CLEAR}({_N})", "self.deepstack_input_embeds[0].zero_()"),
            embed=embed("self._clear_deepstack_input_embeds(text.size(0))", "pass"),
            breaks=Rule.CLEAR,
        ),
        "writes visual rows to the front": WholeClass(
            embed=embed(
                _SCATTER,
                """\
payload[:, : len(levels)] = levels.unflatten(1, (self.levels, self.width)).permute(1, 0, 2)
""",
            ),
            breaks=Rule.BOUNDARY,
        ),
        "takes the first image alone": WholeClass(
            embed=embed(
                _SCATTER,
                """\
image = multimodal_embeddings[0][:, self.width :].unflatten(1, (self.levels, self.width))
    payload[:, is_multimodal.nonzero().squeeze(1)[: len(image)]] = image.permute(1, 0, 2)
""",
            ),
            breaks=Rule.BOUNDARY,
        ),
        "asks once, and keeps the answer": WholeClass(
            forward(f"""\
            if self.kept is None and self.fresh:
                self.kept = [rows.clone() for rows in {_GET}({_N}).tensors.values()]
            shown = self.kept or [torch.zeros_like(inputs_embeds)] * self.levels
            payload = IntermediateTensors(
                {{f"deepstack_input_embeds_{{i}}": rows[:{_N}] for i, rows in enumerate(shown)}}
            )
            RUN
            {_CLEAR}({_N})
            return hidden
            """),
            embed=embed(_SET, f"{_SET}    self.fresh = True\n"),
            init=("self.kept, self.fresh = None, False",),
            breaks=Rule.CLEAR,
        ),
        "hands nothing on where the step is padded": WholeClass(
            forward(f"""\
            payload = {_GET}({_N}) if {_N} == self.used else None
            RUN
            {_CLEAR}({_N})
            return hidden
            """),
            embed=embed(_SET, f"{_SET}    self.used = text.size(0)\n"),
            init=("self.used = 0",),
            breaks=Rule.STRUCTURE,
        ),
        "hands nothing on": WholeClass(
            FORWARD.replace("deepstack_input_embeds=payload", "deepstack_input_embeds=None"),
            breaks=Rule.STRUCTURE,
        ),
        "returns nothing": WholeClass(FORWARD.replace("    return hidden\n", ""), breaks=Rule.BOUNDARY),
        "raises on a step of text": WholeClass(
            embed=embed("self._clear_deepstack_input_embeds(text.size(0))", 'raise ValueError("no image")'),
            breaks=Rule.BOUNDARY,
        ),
        "sets the payload of the step before": WholeClass(
            embed=embed(
                _SET,
                """\
late, self.late = self.late, payload
    if late is not None:
        self._set_deepstack_input_embeds(late)
""",
            ),
            init=("self.late = None",),
            breaks=Rule.BOUNDARY,
        ),
        "changes the features that it was given": WholeClass(
            embed=embed(
                "    text[is_multimodal] = main\n",
                "    text[is_multimodal] = main\n    [image.zero_() for image in multimodal_embeddings]\n",
            ),
            breaks=Rule.FRESHNESS,
        ),
    }
)
"""Classes whose methods pass every rule, each with the rule that the whole class breaks."""

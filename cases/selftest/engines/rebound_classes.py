"""One right class in the shape of vLLM, and ways in which Python gives its objects another `clear`.

Each `Rebound` changes the same small source.  `WRONG` has those whose objects keep the rows of a cleared
payload; `HIDDEN` those too, by means that nobody is expected to follow: they may be refused.  `RIGHT` uses
the same means, and its objects keep every rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent

QWEN = "vllm/model_executor/models/qwen3_vl.py"
MIXINS = "vllm/model_executor/models/mixins.py"
PATCHES = "vllm/patches/model_patch.py"
NAME = "Qwen3VLForConditionalGeneration"
CLEAR = "_clear_deepstack_input_embeds"

ZEROES = f"""\
def {CLEAR}(self, count):
    for rows in self.deepstack_input_embeds:
        rows.zero_()
    self.filled = 0
"""
KEEPS_ROWS = f"""\
def {CLEAR}(self, count):
    self.filled = 0
"""
_REST = """\
def __init__(self, *, vllm_config, prefix="model"):
    super().__init__()
    config = vllm_config.model_config.hf_config
    self.levels = len(config.vision_config.deepstack_visual_indexes)
    self.width = config.text_config.hidden_size
    rows = vllm_config.scheduler_config.max_num_batched_tokens
    self.deepstack_input_embeds = [torch.zeros(rows, self.width) for _ in range(self.levels)]
    self.filled = 0
    self.visual = NoSuchTower(config)
    self.language_model = NoSuchModel(vllm_config)
{init}

def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
    text = self._embed_text_input_ids(
        input_ids, self.language_model.embed_input_ids, is_multimodal=is_multimodal
    )
    if not multimodal_embeddings:
        self._set_deepstack_input_embeds(text.new_zeros(self.levels, 0, self.width))
        return text
    packed = torch.cat([rows[:, self.width :] for rows in multimodal_embeddings])
    spread = packed.new_zeros(input_ids.size(0), packed.size(1))
    spread[is_multimodal] = packed
    self._set_deepstack_input_embeds(spread.view(-1, self.levels, self.width).transpose(0, 1))
    main = [rows[:, : self.width] for rows in multimodal_embeddings]
    return super().embed_input_ids(input_ids, multimodal_embeddings=main, is_multimodal=is_multimodal)

def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
    rows = self._get_deepstack_input_embeds(inputs_embeds.size(0)) if inputs_embeds is not None else None
    hidden = self.language_model.model(
        input_ids, positions, None, inputs_embeds=inputs_embeds, deepstack_input_embeds=rows
    )
    if inputs_embeds is not None:
        self._clear_deepstack_input_embeds(inputs_embeds.size(0))
    return hidden

def _check(self, count):
    if not 0 <= count <= self.deepstack_input_embeds[0].size(0):
        raise ValueError(f"{count} tokens")

def _get_deepstack_input_embeds(self, count):
    self._check(count)
    return IntermediateTensors(
        {f"deepstack_input_embeds_{i}": x[:count] for i, x in enumerate(self.deepstack_input_embeds)}
    )

def _set_deepstack_input_embeds(self, payload):
    if payload.dim() != 3 or payload.size(0) != self.levels or payload.size(2) != self.width:
        raise ValueError(f"a payload of shape {tuple(payload.shape)}")
    self._check(payload.size(1))
    self.filled = payload.size(1)
    for rows, level in zip(self.deepstack_input_embeds, payload):
        rows.zero_()
        rows[: self.filled].copy_(level)
"""


@dataclass(frozen=True)
class Rebound:
    """The source with changes: text before, in and after the class, and further files.

    `init` are statements at the end of `__init__`, `clear` is what the class itself has as its last member.
    """

    before: str = ""
    decorators: str = ""
    bases: str = "SupportsNothing"
    init: str = ""
    clear: str = ZEROES
    after: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The text of the model file."""
        body = indent(_REST.replace("{init}", indent(self.init, "    ")) + "\n" + self.clear, "    ")
        head = (
            "import functools\nimport logging\nimport torch\n\n"
            "from vllm.sequence import IntermediateTensors\n\nfrom .interfaces import SupportsNothing\n"
        )
        return f"{head}{self.before}\n\n{self.decorators}class {NAME}({self.bases}):\n{body}\n\n{self.after}"

    def tree(self, root: Path) -> Path:
        """Write a repository; return its root."""
        for member, text in {QWEN: str(self), INTERFACES: _INTERFACES, **self.files}.items():
            path = root / member
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return root


INTERFACES = "vllm/model_executor/models/interfaces.py"
_INTERFACES = "class SupportsNothing:\n    supports_nothing = True\n"
_IMPORTS_CLASS = f"from vllm.model_executor.models.qwen3_vl import {NAME}\n\n"
_QUIET = "def quiet(self, count):\n    self.filled = 0\n\n"
_ZEROING = "def zeroing(self, count):\n    for rows in self.deepstack_input_embeds:\n        rows.zero_()\n\n"
_REPLACING = "def replacing(cls):\n    cls.{name} = {function}\n    return cls\n\n"


def _hook(function: str) -> str:
    return (
        "class Hooked(SupportsNothing):\n    def __init_subclass__(cls, **kwargs):\n"
        f"        super().__init_subclass__(**kwargs)\n        cls.{CLEAR} = {function}\n"
    )


def _meta(function: str) -> str:
    return (
        "class Meta(type):\n    def __new__(mcls, name, bases, namespace, **kwargs):\n"
        f"        namespace['{CLEAR}'] = {function}\n"
        "        return super().__new__(mcls, name, bases, namespace, **kwargs)\n\n"
    )


WRONG: Mapping[str, Rebound] = {
    "assigned after the class": Rebound(after=f"{_QUIET}{NAME}.{CLEAR} = quiet\n"),
    "assigned after the class in an if": Rebound(
        after=f"{_QUIET}if hasattr({NAME}, 'forward'):\n    {NAME}.{CLEAR} = quiet\n"
    ),
    "set by a name made at run time": Rebound(
        after=f"{_QUIET}for verb in ('clear',):\n"
        f"    setattr({NAME}, f'_{{verb}}_deepstack' + '_input_embeds', quiet)\n"
    ),
    "set under another name of the class": Rebound(after=f"{_QUIET}Alias = {NAME}\nAlias.{CLEAR} = quiet\n"),
    "decorator of the class": Rebound(
        before=_QUIET + _REPLACING.format(name=CLEAR, function="quiet"), decorators="@replacing\n"
    ),
    "decorator that derives a class": Rebound(
        before="def derived(cls):\n    class Derived(cls):\n"
        + indent(KEEPS_ROWS, "        ")
        + "    return Derived\n\n",
        decorators="@derived\n",
    ),
    "decorator of another module": Rebound(
        before="from .mixins import replacing\n",
        decorators="@replacing\n",
        files={MIXINS: _QUIET + _REPLACING.format(name=CLEAR, function="quiet")},
    ),
    "called with the class after it": Rebound(
        after=_QUIET + _REPLACING.format(name=CLEAR, function="quiet") + f"{NAME} = replacing({NAME})\n"
    ),
    "base with __init_subclass__": Rebound(before=_QUIET + _hook("quiet"), bases="Hooked"),
    "base of another module with __init_subclass__": Rebound(
        before="from .mixins import Hooked\n",
        bases="Hooked",
        files={MIXINS: "from .interfaces import SupportsNothing\n\n" + _QUIET + _hook("quiet")},
    ),
    "attribute of the object": Rebound(
        init=f"self.{CLEAR} = self._forget",
        clear=ZEROES + "\ndef _forget(self, count):\n    self.filled = 0\n",
    ),
    "attribute of the object by setattr": Rebound(
        init=f"setattr(self, '{CLEAR}', lambda count: None)",
    ),
    "attribute of the object by its __dict__": Rebound(
        init=f"self.__dict__['{CLEAR}'] = lambda count: None",
    ),
    "metaclass": Rebound(before=_QUIET + _meta("quiet"), bases="SupportsNothing, metaclass=Meta"),
    "metaclass of a base": Rebound(
        before=_QUIET + _meta("quiet") + "class Made(SupportsNothing, metaclass=Meta):\n    pass\n",
        bases="Made",
    ),
    "mixin of another module": Rebound(
        before="from .mixins import Quiet\n",
        bases="Quiet, SupportsNothing",
        clear="",
        files={MIXINS: "class Quiet:\n" + indent(KEEPS_ROWS, "    ")},
    ),
    "setattr in another module": Rebound(
        files={PATCHES: _IMPORTS_CLASS + _QUIET + f"setattr({NAME}, '{CLEAR}', quiet)\n"}
    ),
    "assigned in another module": Rebound(
        files={PATCHES: _IMPORTS_CLASS + _QUIET + f"{NAME}.{CLEAR} = quiet\n"}
    ),
    "property": Rebound(
        clear=f"@property\ndef {CLEAR}(self):\n    return lambda count: setattr(self, 'filled', 0)\n"
    ),
    "conditional definition": Rebound(
        clear="if torch is not None:\n" + indent(KEEPS_ROWS, "    ") + "else:\n" + indent(ZEROES, "    ")
    ),
    "defined twice in the class": Rebound(clear=ZEROES + "\n" + KEEPS_ROWS),
    "deleted, so that the one of a base is left": Rebound(
        before="class Quiet(SupportsNothing):\n" + indent(KEEPS_ROWS, "    "),
        bases="Quiet",
        after=f"del {NAME}.{CLEAR}\n",
    ),
    "assigned among others in the class": Rebound(
        before=_QUIET, clear=f"{ZEROES}\n{CLEAR}, other = quiet, None\n"
    ),
    "wrapped by a decorator that does not call it": Rebound(
        before="def muted(function):\n    @functools.wraps(function)\n    def wrapper(self, count):\n"
        "        self.filled = 0\n    return wrapper\n\n",
        clear=f"@muted\n{ZEROES}",
    ),
}
"""Means -> the source.  After each of them `clear` leaves the rows of the payload."""

HIDDEN: Mapping[str, Rebound] = {
    "by a function that somebody calls": Rebound(
        files={PATCHES: _IMPORTS_CLASS + _QUIET + f"def patch():\n    {NAME}.{CLEAR} = quiet\n"}
    ),
    "on an object of whatever class": Rebound(
        files={PATCHES: _QUIET + f"def patch(model):\n    model.{CLEAR} = quiet.__get__(model)\n"}
    ),
    "by setattr on an object": Rebound(
        files={PATCHES: _QUIET + f"def patch(model):\n    setattr(model, '{CLEAR}', quiet.__get__(model))\n"}
    ),
    "by a table of names": Rebound(
        files={PATCHES: _QUIET + f"TABLE = {{'{CLEAR}': quiet}}\ndef patch(model):\n"
               "    for name, function in TABLE.items():\n        setattr(model, name, function)\n"}
    ),
    "by a method that is called later": Rebound(
        clear=ZEROES + f"\ndef load_weights(self, weights):\n    self.{CLEAR} = lambda count: None\n"
    ),
    "by globals": Rebound(after=f"globals()['{NAME}'] = NoSuchClass\n"),
    "by another class of the name": Rebound(
        after=f"class {NAME}({NAME}):\n" + indent(KEEPS_ROWS, "    ")
    ),
    "by another class of the module": Rebound(
        files={PATCHES: "import vllm.model_executor.models.qwen3_vl as models\n\n"
               f"models.{NAME} = NoSuchClass\n"}
    ),
    "by the class of the object": Rebound(
        after=f"class Quiet({NAME}):\n" + indent(KEEPS_ROWS, "    "), init="self.__class__ = Quiet"
    ),
    "by exec": Rebound(after=f"exec('{NAME}.{CLEAR} = lambda self, count: None')\n"),
    "by __getattribute__": Rebound(
        clear=ZEROES + "\ndef __getattribute__(self, name):\n    if 'clear' in name:\n"
        "        return lambda count: None\n    return super().__getattribute__(name)\n"
    ),
    "by a base that is made by a call": Rebound(
        before=_QUIET + f"def made():\n    return type('Made', (), {{'{CLEAR}': quiet}})\n",
        bases="made(), SupportsNothing",
        clear="",
    ),
    "by a function called with the class in another module": Rebound(
        files={PATCHES: _IMPORTS_CLASS + _QUIET + f"def replace(cls):\n    cls.{CLEAR} = quiet\n\n"
               f"replace({NAME})\n"}
    ),
    "by a name made at run time in another module": Rebound(
        files={PATCHES: _IMPORTS_CLASS + _QUIET + "WORD = 'deepstack_input'\n"
               f"def patch(verb):\n    setattr({NAME}, f'_{{verb}}_{{WORD}}_embeds', quiet)\n\n"
               "patch('clear')\n"}
    ),
}  # fmt: skip
"""Means -> the source: as wrong; to refuse it is right too."""

RIGHT: Mapping[str, Rebound] = {
    "plain": Rebound(),
    "assigned an equal function after the class": Rebound(after=f"{_ZEROING}{NAME}.{CLEAR} = zeroing\n"),
    "assigned its own function": Rebound(after=f"{NAME}.{CLEAR} = {NAME}.{CLEAR}\n"),
    "decorator that returns the class": Rebound(
        before="def marked(cls):\n    cls.is_marked = True\n    return cls\n\n", decorators="@marked\n"
    ),
    "decorator that assigns an equal function": Rebound(
        before=_ZEROING + _REPLACING.format(name=CLEAR, function="zeroing"), decorators="@replacing\n"
    ),
    "decorators of a registry and of a compiler": Rebound(
        before="from vllm.registry import REGISTRY, NoSuchInfo, NoSuchProcessor\n"
        "from vllm.compilation import support_torch_compile\n",
        decorators="@REGISTRY.register_processor(NoSuchProcessor, info=NoSuchInfo)\n"
        "@support_torch_compile(dynamic_arg_dims={'input_ids': 0})\n",
    ),
    "wrapped by a decorator with functools.wraps": Rebound(
        before="logger = logging.getLogger(__name__)\n\n"
        "def logged(function):\n    @functools.wraps(function)\n"
        "    def wrapper(*args, **kwargs):\n        logger.debug('%s', function.__name__)\n"
        "        return function(*args, **kwargs)\n    return wrapper\n\n",
        clear=f"@logged\n{ZEROES}",
    ),
    "wrapped by a decorator of torch": Rebound(clear=f"@torch.no_grad()\n{ZEROES}"),
    "mixin that adds other names": Rebound(
        before="from .mixins import Counts\n",
        bases="Counts, SupportsNothing",
        files={MIXINS: "class Counts:\n    def count(self):\n        return self.filled\n"},
    ),
    "mixin of another module with the right clear": Rebound(
        before="from .mixins import Zeroes\n",
        bases="Zeroes, SupportsNothing",
        clear="",
        files={MIXINS: "class Zeroes:\n" + indent(ZEROES, "    ")},
    ),
    "base of the file with the right clear, asked by super": Rebound(
        before="class Zeroes(SupportsNothing):\n" + indent(ZEROES, "    "),
        bases="Zeroes",
        clear=f"def {CLEAR}(self, count):\n    super().{CLEAR}(count)\n    self.filled = 0\n",
    ),
    "conditional definition with equal branches": Rebound(
        clear="if torch.cuda.is_available():\n" + indent(ZEROES, "    ")
        + "else:\n" + indent(ZEROES, "    ")
    ),
    "defined twice in the class, wrong at first": Rebound(clear=KEEPS_ROWS + "\n" + ZEROES),
    "static and class methods as helpers": Rebound(
        clear="@staticmethod\ndef _wipe(rows):\n    rows.zero_()\n\n"
        "@classmethod\ndef _wipe_all(cls, levels):\n"
        f"    for rows in levels:\n        cls._wipe(rows)\n\ndef {CLEAR}(self, count):\n"
        "    self._wipe_all(self.deepstack_input_embeds)\n    self.filled = 0\n"
    ),
    "attribute of the object that is the same": Rebound(init=f"self.{CLEAR} = self.{CLEAR}"),
    "property that gives the right function": Rebound(
        clear=ZEROES.replace(CLEAR, "_zero") + f"\n@property\ndef {CLEAR}(self):\n    return self._zero\n"
    ),
    "the name in a class that is not related": Rebound(
        files={MIXINS: "class Other:\n" + indent(KEEPS_ROWS, "    ") + f"\nOther.{CLEAR} = None\n"}
    ),
    "the name on an object of another class": Rebound(
        files={MIXINS: f"class Other:\n    def __init__(self):\n        self.{CLEAR} = None\n"}
    ),
    "the name in texts, reads and calls": Rebound(
        files={PATCHES: f'"""Says {CLEAR}."""\nimport logging\n\n\ndef reset(model, count):\n'
               f"    if hasattr(model, '{CLEAR}'):\n        getattr(model, '{CLEAR}')(count)\n"
               f"        logging.info('{CLEAR}')\n    model.{CLEAR}(count)\n"}
    ),
    "a derived class with a clear of its own": Rebound(
        files={MIXINS: _IMPORTS_CLASS + f"class Derived({NAME}):\n" + indent(KEEPS_ROWS, "    ")}
    ),
    "base with an __init_subclass__ that counts": Rebound(
        before="class Hooked(SupportsNothing):\n    derived = []\n\n"
        "    def __init_subclass__(cls, **kwargs):\n"
        "        super().__init_subclass__(**kwargs)\n        cls.derived.append(cls.__name__)\n",
        bases="Hooked",
    ),
    "metaclass that registers": Rebound(
        before="class Meta(type):\n    def __init__(cls, name, bases, namespace):\n"
        "        super().__init__(name, bases, namespace)\n        cls.registered = name\n\n",
        bases="SupportsNothing, metaclass=Meta",
    ),
    "registered after the class": Rebound(
        before="from vllm.registry import REGISTRY\n", after=f"REGISTRY.register_model('{NAME}', {NAME})\n"
    ),
    "setattr in another module of the right function": Rebound(
        files={PATCHES: _IMPORTS_CLASS + _ZEROING + f"setattr({NAME}, '{CLEAR}', zeroing)\n"}
    ),
    "a wrong assignment that is never run": Rebound(
        after=f"if False:\n    {NAME}.{CLEAR} = None\n"
    ),
}  # fmt: skip
"""Means -> the source: every rule passes as in `plain`."""

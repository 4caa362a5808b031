"""An engine of this package's own: where acme-serve keeps its deepstack payload.

`acme_serve/` beside this package is a tree of it.  No code of the engine runs here: the harness finds the
class by the folder and the word, and drives it in a worker.
"""

from deepstack_harness.engines.engine import KnownEngine, StoredPayload
from deepstack_harness.engines.model_class import ModelClass
from deepstack_harness.sources.source import KnownPackage

_QWEN = ModelClass("acme/models/qwen3_vl.py", "Qwen3VLForConditionalGeneration", since="1.0")

ACME_SERVE = KnownEngine(
    package=KnownPackage("acme-serve", "Acme Serve", mark="acme/models", version_file="acme/_version.py"),
    folder="acme/models",
    word="deepstack",
    since="1.0",
    how="a buffer on the model, zeroed after each forward",
    payload=StoredPayload(by_methods={"qwen3_vl": _QWEN}, by_forward={"qwen3_vl": _QWEN}),
)

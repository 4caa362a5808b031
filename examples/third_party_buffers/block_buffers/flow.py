"""An engine that looks unlike vLLM: acme-flow passes the payload as an argument, and captures no graph.

`acme_flow/` beside this package is a tree of it.  `ACME_FLOW` says where its decoder lies.  How that is
called is in `flow_calls`, which a worker imports.
"""

from types import MappingProxyType

from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.discover import ArgumentFiles
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.model_class import CalledMethods
from deepstack_harness.sources.source import KnownPackage

_NO_STORAGE = "the payload is an argument: no storage of the engine's stays between calls"

ACME_FLOW = KnownEngine(
    package=KnownPackage("acme-flow", "Acme Flow", mark="flow", version_file="flow/_version.py"),
    folder="flow",
    word="image_levels",
    since="0.1",
    how="a list of levels, an argument of the decoder, read by its effect",
    payload=ArgumentFiles(
        argument="image_levels",
        folder="flow",
        text=CalledMethods(MappingProxyType({"get": "forward"}), frozenset({"layers", "norm"})),
        replay="it captures no graph",
        by_family={"qwen3_vl": "FlowDecoder"},
    ),
    calls="block_buffers.flow_calls:CALLS",
    inapplicable={
        Rule.STRUCTURE: "the payload is read by its effect, which has no structure",
        Rule.CAPACITY: _NO_STORAGE,
        Rule.ADDRESS: _NO_STORAGE,
        Rule.REJECTION: "nobody has read what its runner does with wrong levels",
    },
)

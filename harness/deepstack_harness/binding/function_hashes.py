"""Hashes of functions in a source, by which it is told that two versions decide something alike."""

import ast
import inspect
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from io import StringIO
from tokenize import TokenError

from deepstack_harness.binding.syntax import class_named
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source


def function_hashes(source: Source, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the text of each function, `module.Class.method`, that the source has.

    The text is that of `inspect.getsource`, decorators included, so that a running engine tells the same
    hashes.  A function, class or file that is not there, and a file that does not parse, has none.  Raises
    `MachineError` where a file has to be fetched and cannot.
    """
    found = {}
    for name in sorted(names):
        with suppress(UsageError, TokenError):
            text = _text_of(source, name)
            if text is not None:
                found[name] = sha256(text.encode()).hexdigest()
    return found


def _text_of(source: Source, name: str) -> str | None:
    """Return the text of a method; None where its class has none of that name."""
    module, class_name, method = name.rsplit(".", 2)
    file = source.read(f"{module.replace('.', '/')}.py")
    defined = [
        node
        for node in class_named(file, class_name).body
        if isinstance(node, ast.FunctionDef) and node.name == method
    ]
    if not defined:
        return None
    node = defined[-1]  # of several with one name the last one counts
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return "".join(inspect.getblock(StringIO(file.text).readlines()[first - 1 :]))

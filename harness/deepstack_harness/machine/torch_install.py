"""Tell a missing or broken torch apart from a bug of ours, without importing it."""

from types import TracebackType

INSTALL = "python -m pip install 'torch>=2.10'"
"""The line that installs a torch that fits."""


def torch_problem(error: BaseException) -> str | None:
    """Return a sentence for an exception out of `import torch`, with the line that installs it; else None.

    A broken torch raises whatever its first modules raise: an OSError for a library of CUDA that is not
    there, an ImportError for an undefined symbol, an AttributeError for half a package.
    """
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"torch is not installed: {INSTALL}"
    if _while_torch_was_imported(error.__traceback__):
        return f"torch cannot be imported ({reason}): {INSTALL} --force-reinstall"
    return None


def _while_torch_was_imported(frame: TracebackType | None) -> bool:
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_name == "<module>" and frame.tb_frame.f_globals.get("__name__") == "torch":
            return True
        frame = frame.tb_next
    return False

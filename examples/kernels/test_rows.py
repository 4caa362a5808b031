"""How many rows do the generated kernels touch: those of the step, or the whole buffer?"""

import torch

CAPACITY, TOKENS, HIDDEN = 4096, 7, 32


def add_rows(hidden, rows):
    """Takes the rows of the step: `rows` alone would make each step cost the whole buffer."""
    return (hidden + rows[: hidden.size(0)]).relu()


def test_a_step_touches_its_own_rows(kernel_facts):
    compiled = torch.compile(add_rows)
    facts = kernel_facts(
        lambda: compiled(torch.ones(TOKENS, HIDDEN), torch.zeros(CAPACITY, HIDDEN)),
        tokens=TOKENS,
        capacity=CAPACITY,
        arguments=("hidden",),
        run=False,
    )
    (call,) = facts.calls
    assert call.rows == TOKENS
    assert call.bytes <= 2 * call.ideal_bytes

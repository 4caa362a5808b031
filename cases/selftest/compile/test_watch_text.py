"""Names and sentences of a watch's report."""

import pytest

from deepstack_harness.compile.torch_compat.guard_sources import readable, size_relations
from deepstack_harness.compile.watch_text import words_of

SPECIALISED = (
    "return x  # {0}:3 in f (user code shown is first use of this value--the guard itself is not due user "
    "code but due to 0/1 specialization in the framework; to avoid it try mark_unbacked(tensor, dim))"
)
LINE = "if (x > 2) and (n <= 100):  # {0}:7 in <lambda> (_dynamo/variables/tensor.py:2606 in evaluate_expr)"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['payload']", "payload"),
        ("L['self'].factor", "self.factor"),
        ("L['self']._modules['layers']._modules['3']._parameters['weight']", "self.layers[3].weight"),
        ("L['self'].__dict__['norm'].eps", "self.norm.eps"),
        ("G['__import_vllm_dot_forward_context']._forward_context", "vllm.forward_context._forward_context"),
        ("L['x'].size()[1] == 2*L['y'].stride()[0]", "x.shape[1] == 2*y.stride(0)"),
        ("list(dict.keys(L['parts']))[0]", "list(dict.keys(parts))[0]"),
    ],
)
def test_a_source_is_written_as_a_user_does(source: str, name: str) -> None:
    assert readable(source) == name


def test_both_bounds_of_a_size_have_their_own_reason() -> None:
    text = f"2 <= L['x'].size()[0] <= 100  # {SPECIALISED.format('a.py')} and {LINE.format('b.py')}"
    lower, upper = size_relations(text)
    assert (lower.text, lower.specialised, lower.code) == ("2 <= L['x'].size()[0]", True, "")
    assert (upper.text, upper.specialised, upper.assumed) == ("L['x'].size()[0] <= 100", False, "at most 100")
    assert (upper.where, upper.code) == ("b.py:7", "if (x > 2) and (n <= 100):")


@pytest.mark.parametrize(
    ("text", "subject", "assumed"),
    [
        ("17 <= L['x'].size()[0]", "L['x'].size()[0]", "17 or more"),
        ("L['n'] <= 100", "L['n']", "at most 100"),
        ("L['x'].size()[0] < L['y'].size()[0]", "L['x'].size()[0]", "less than y.shape[0]"),
        ("L['x'].size()[0] != 7", "L['x'].size()[0]", "other than 7"),
        ("L['x'].stride()[0] == L['x'].size()[1]", "L['x'].stride()[0]", "equal to x.shape[1]"),
        ("not math.isnan(L['x'])", "not math.isnan(L['x'])", "true"),
    ],
)
def test_what_was_assumed_is_in_words(text: str, subject: str, assumed: str) -> None:
    (relation,) = size_relations(f"{text}  # {LINE.format('b.py')}")
    assert (relation.subject, relation.assumed, relation.where) == (subject, assumed, "b.py:7")


def test_no_text_is_cut_inside_of_a_word() -> None:
    assert words_of("one two three", 20) == "one two three"
    assert words_of("one two three", 11) == "one two .."
    assert words_of("one two three", 10) == "one two .."
    assert words_of("one two, three", 12) == "one two .."
    assert words_of("x" * 30, 10) == "xxxxxxx .."

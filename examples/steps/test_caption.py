"""A function of one's own over the calls of a server: an image that comes after the warm-up."""

import torch

from deepstack_harness import Call

WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


def caption(text, image=None):
    """Adds an image where there is one: a branch that the warm-up decides."""
    hidden = text @ WEIGHT
    return hidden if image is None else hidden + image


def caption_of_zeros(text, image):
    """Always adds: text alone has an image of zeros."""
    return text @ WEIGHT + image


TEXT, IMAGE = torch.ones(4, 8), torch.ones(4, 8)


def test_an_image_after_the_warm_up_counts(compile_steps):
    compile_steps(caption_of_zeros, [Call(TEXT, 0 * IMAGE), Call(TEXT, IMAGE), Call(TEXT, 2 * IMAGE)])


def test_torch_alone_compiles_again_for_the_image(compile_steps):
    """Under torch's own guards the branch is right; engines drop them: try arms=["eager/drop_all"]."""
    compile_steps(caption, [Call(TEXT), Call(TEXT, image=IMAGE)], arms=["eager/stock"])

"""Number of visual tokens of an image, by the arithmetic of Qwen3-VL's processor.

Patches of 16 x 16 pixels are merged 2 x 2, so that 32 x 32 pixels give one token.  The constants are those
of the released Qwen3-VL processors; the class defaults in transformers (patch 14) are Qwen2-VL's.
"""

import math

from deepstack_harness.errors import UsageError

FACTOR = 32
MIN_PIXELS = 65_536
MAX_PIXELS = 16_777_216
MAX_ASPECT = 200


def smart_resize(height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) in pixels to which the processor scales an image.

    Both are multiples of 32, near the image's size and aspect, with an area between 65,536 and 16,777,216
    pixels.  Raises `UsageError` for a side below 1 pixel, and for a side more than 200 times the other.
    """
    _check(height, width)
    rounded = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if math.prod(rounded) > MAX_PIXELS:
        shrink = math.sqrt(height * width / MAX_PIXELS)
        return _floor(height / shrink), _floor(width / shrink)
    if math.prod(rounded) < MIN_PIXELS:
        grow = math.sqrt(MIN_PIXELS / (height * width))
        return _ceil(height * grow), _ceil(width * grow)
    return rounded


def visual_tokens(height: int, width: int) -> int:
    """Return the tokens of an image of `height` x `width` pixels; raises what `smart_resize` raises."""
    resized_height, resized_width = smart_resize(height, width)
    return (resized_height // FACTOR) * (resized_width // FACTOR)


def _check(height: int, width: int) -> None:
    if min(height, width) < 1:
        raise UsageError(f"an image of {height} x {width} pixels has no area: sides are 1 pixel or more")
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise UsageError(
            f"an image of {height} x {width} pixels is too narrow: Qwen3-VL takes up to {MAX_ASPECT} to 1"
        )


def _floor(side: float) -> int:
    return math.floor(side / FACTOR) * FACTOR


def _ceil(side: float) -> int:
    return math.ceil(side / FACTOR) * FACTOR

"""A torch that sees three GPUs, as far as counting goes."""


def count_gpus() -> int:
    return 3

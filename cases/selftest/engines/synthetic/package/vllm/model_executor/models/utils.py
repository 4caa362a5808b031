"""Helpers of all models."""

import torch
from vllm.everything import rank_of_everything

SPARE = 0


def put_rows(into, rows, where):
    into[where] = joined(rows)
    return into


def joined(rows):
    return torch.cat(tuple(rows)) if len(rows) > SPARE else NOTHING


NOTHING = torch.zeros(0)


def synchronise(rows):
    return rank_of_everything(rows)

"""Layers that several models hold."""

from torch import nn


class TypedLayer(nn.Module):
    def forward(self, hidden, batch):
        kinds = getattr(batch, "kinds", None)
        return hidden if kinds is None else hidden + kinds


class PlainLayer(nn.Module):
    def forward(self, hidden, batch):
        return hidden + batch.slots


def route(hidden, *, info):
    if info.has_kinds():
        return hidden * 2
    return hidden


def run_body(body, tokens, batch, **kwargs):
    return body(tokens, tokens, batch, tokens * 2, **kwargs)

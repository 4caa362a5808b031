"""Wrong models of an engine with a registry: `marks`, `windows` and `staged` reach no replay."""

from hosted.batch_info import Inputs
from torch import nn


class Marked(nn.Module):
    def forward(self, ids, inputs: Inputs, staged=None):
        return add_marks(ids, inputs)


def add_marks(hidden, where):
    marks = where.marks
    return hidden if marks is None else hidden + marks


class SlotWithoutCopy(nn.Module):
    def forward(self, ids, inputs: Inputs):
        return ids + inputs.windows


class StagedInSteps(nn.Module):
    def forward(self, ids, inputs: Inputs, *, staged=None):
        if staged is not None:
            return staged["hidden"]
        return ids


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, ids, inputs, embeds=None, picture=None):
        return embeds if picture is None else embeds + picture


class HandsOnByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()

    def forward(self, ids, inputs: Inputs, picture=None):
        arguments = {"embeds": ids * 2}
        if picture is not None:
            arguments["picture"] = picture
        return self.body(ids, inputs, **arguments)


class BodyAsAProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = TextBody()

    @property
    def body(self):
        return self.text

    def forward(self, ids, inputs: Inputs, picture=None):
        return self.text(ids, inputs, embeds=ids * 2, picture=picture)


class TextBody(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, ids, inputs, embeds=None, picture=None):
        return embeds if picture is None else embeds + picture


class MarkedBody(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, ids, inputs: Inputs, embeds=None):
        return embeds if inputs.picture is None else embeds + inputs.picture


class PictureInTheInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = MarkedBody()

    def forward(self, ids, inputs: Inputs):
        return self.body(ids, inputs, ids * 2)


EntryClass = [Marked, SlotWithoutCopy, StagedInSteps, HandsOnByName, PictureInTheInputs, BodyAsAProperty]

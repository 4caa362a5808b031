"""Right models of an engine with a registry."""

from hosted.batch_info import Inputs
from torch import nn


class Placed(nn.Module):
    def forward(self, ids, inputs: Inputs):
        return ids + inputs.places


class CountedAfter(nn.Module):
    def forward(self, ids, inputs: Inputs):
        return ids * inputs.live


class WrittenByIndex(nn.Module):
    def forward(self, ids, inputs: Inputs):
        return ids + inputs.biases


class RefusedByAHelper(nn.Module):
    def forward(self, ids, inputs: Inputs):
        return ids if inputs.overrides is None else inputs.overrides


class OfAPrompt(nn.Module):
    def forward(self, ids, inputs: Inputs, picture=None):
        if inputs.kind.fills:
            ids = ids + inputs.picture
        return ids if picture is None else ids + picture


class LimitOfTheEngine(nn.Module):
    def forward(self, ids, inputs: Inputs):
        return ids[: inputs.limit]


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, ids, inputs: Inputs, embeds=None):
        return embeds + inputs.places


class GivesEmbeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()

    def forward(self, ids, inputs: Inputs, picture=None):
        embeds = ids * 2 if picture is None else ids + picture
        inputs.hidden = self.body(ids, inputs, embeds=embeds)
        return inputs.hidden


class PictureBody(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, ids, inputs: Inputs, embeds=None, picture=None):
        return embeds if picture is None else embeds + picture


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = PictureBody()

    def forward(self, ids, inputs: Inputs, picture=None):
        return self.body(ids, inputs, embeds=ids * 2, picture=picture)


class HasNoBodyOfItsOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = Text()

    def forward(self, ids, inputs: Inputs, picture=None):
        return self.text(ids, inputs, picture=picture)


class EntryByName(nn.Module):
    def forward(self, ids, inputs: Inputs):
        kind = inputs.kind
        return ids if not kind.fills else ids + inputs.marks


EntryClass = [
    Placed,
    CountedAfter,
    WrittenByIndex,
    RefusedByAHelper,
    OfAPrompt,
    LimitOfTheEngine,
    GivesEmbeds,
    HasNoBodyOfItsOwn,
    EntryByName,
]

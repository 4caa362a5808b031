"""The decoder of acme-flow.  It has a fault: a step of text is given the levels of the step before."""

from flow.layers import FinalNorm, make_layers  # not part of the tree: the harness does without


class FlowDecoder(FinalNorm):
    def __init__(self, config):
        super().__init__()
        self.layers = make_layers(config)
        self.recent = None

    def forward(self, states, image_levels=None):
        if image_levels is not None:
            self.recent = image_levels
        for number, layer in enumerate(self.layers):
            states = layer(states)
            if self.recent is not None and number < len(self.recent):
                level = self.recent[number]
                states[: len(level)] += level
        return self.norm(states)

from torch import nn


class BaseDecoder(nn.Module):
    def watch(self, hidden):
        pass

"""Small PyTorch modules, which files can name."""

import torch
from torch import nn


class Perceptron(nn.Module):
    """Rows (n, d) to scores (n, K); also stacks of rows."""

    def __init__(self, n_in=2, n_out=3, hidden=8, dropout=0.0, double=False, activation=nn.Tanh):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_in, hidden), activation(), nn.Dropout(dropout), nn.Linear(hidden, n_out)
        )
        if double:
            self.double()

    def forward(self, x):
        return self.layers((x - x.new_tensor([0.0, 100.0])) / x.new_tensor([1.0, 30.0]))


class Around(nn.Module):
    """Sequences (B, n, 2) to scores (B, n, K) that depend on both neighbours."""

    def __init__(self, n_out=3, double=False):
        super().__init__()
        self.filter, self.last = nn.Conv1d(2, 6, 3, padding=1), nn.Linear(6, n_out)
        if double:
            self.double()

    def forward(self, x):
        scaled = (x - x.new_tensor([0.0, 100.0])) / x.new_tensor([1.0, 30.0])
        return self.last(torch.tanh(self.filter(scaled.mT)).mT)


class Pixels(nn.Module):
    """Images (B, channels, H, W) to scores (B, K, H, W), with batch normalisation and dropout."""

    def __init__(self, channels=1, width=4, classes=2, double=False, norm=True, dropout=0.0):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.drop, self.last = nn.Dropout2d(dropout), nn.Conv2d(width, classes, 3, padding=1)
        if double:
            self.double()

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Words(nn.Module):
    """Word numbers (B, n) to scores (B, n, K)."""

    def __init__(self, n_words, n_out):
        super().__init__()
        self.table, self.last = nn.Embedding(n_words, 4), nn.Linear(4, n_out)

    def forward(self, x):
        return self.last(self.table(x))

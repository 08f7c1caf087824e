"""A small U-Net for images of any size; imported late, because it needs PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _block(n_in: int, n_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n in (n_in, n_out):
        # images differ in size and are seen one by one, so that statistics of batches would be those of one image
        layers += [nn.Conv2d(n, n_out, 3, padding=1, bias=False), nn.GroupNorm(n_out // 4, n_out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """RGB images (B, 3, H, W) in [0, 1] to scores (B, 2, H, W) [Ronneberger et al. 2015], far smaller than theirs.

    In training mode each batch is mirrored, and its colours are scaled and shifted, at random.
    """

    def __init__(self, width: int = 12, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(levels)]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(_block(a + 2 * a, a) for a in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Scores of all pixels."""
        x, mirrored = 2.0 * image - 1.0, bool(self.training and torch.rand(()) < 0.5)
        if self.training:
            scale, shift = torch.rand(2, len(x), 3, 1, 1, device=x.device, dtype=x.dtype)
            x = x * (0.7 + 0.6 * scale) + 0.4 * shift - 0.2
        x, kept = (x.flip(-1) if mirrored else x), []
        for k, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2, ceil_mode=True) if k else x)
            kept.append(x)
        for block, fine in zip(self.up, reversed(kept[:-1]), strict=True):
            grown = functional.interpolate(x, size=fine.shape[-2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([fine, grown], dim=1))
        scores: torch.Tensor = self.last(x)
        return scores.flip(-1) if mirrored else scores

"""
A U-Net with a CRF head
=======================

A network scores every pixel; a layer on the grid of pixels makes neighbours agree, and both are trained together in
PyTorch. `pt.torch.CRFLayer.grid` takes and gives (batch, classes, height, width), as the network does.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import potentia as pt

# %%
# Noisy images of bands, and a small U-Net.
torch.manual_seed(0)
bands = np.stack([(np.add.outer(np.arange(32), np.arange(40)) + 7 * k) // 20 % 2 for k in range(8)])
labels = torch.from_numpy(bands)
images = labels[:, None].float() + 1.2 * torch.randn(8, 1, 32, 40)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def conv(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU())

        self.down, self.bottom, self.up, self.last = (conv(1, 8), conv(8, 16), conv(24, 8), nn.Conv2d(8, 2, 1))

    def forward(self, image):
        fine = self.down(image)
        coarse = nn.functional.interpolate(self.bottom(nn.functional.max_pool2d(fine, 2)), scale_factor=2)
        return self.last(self.up(torch.cat([fine, coarse], dim=1)))


network, head = UNet(), pt.torch.CRFLayer.grid((32, 40), n_classes=2, pairs="potts")
optimiser = torch.optim.Adam([{"params": network.parameters(), "lr": 0.01}, {"params": head.parameters(), "lr": 0.1}])
for _ in range(20):
    optimiser.zero_grad()
    loss = head.loss(network(images[:6]), labels[:6])
    loss.backward()
    optimiser.step()

# %%
# On two new images: the network's scores alone, and with the head.
with torch.no_grad():
    scores = network(images[6:])
    found = {"network's scores": scores.argmax(1), "with the CRF head": head(scores).argmax(1)}
for name, y in found.items():
    print(f"{name}: {(y == labels[6:]).float().mean():.1%} of new pixels right")
figure, axes = plt.subplots(1, 4, figsize=(9, 2.1), layout="constrained")
for axis, (title, shown) in zip(axes, {"image": images[6:, 0], **found, "truth": labels[6:]}.items(), strict=True):
    axis.imshow(shown[0].numpy(), cmap="gray")
    axis.set_title(title)
    axis.axis("off")
plt.show()

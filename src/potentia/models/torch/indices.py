"""Index tensors that move with a module from device to device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch

from ...base.types import Floats, Ints


class Indices(torch.nn.Module):
    """Index tensors and numbers by name, which move with the module, are not saved and keep their types."""

    def __init__(self, indices: Mapping[str, Ints], numbers: Mapping[str, Floats] | None = None) -> None:
        super().__init__()
        for name, index in indices.items():
            self.register_buffer(name, torch.from_numpy(np.array(index, dtype=np.int64)), persistent=False)
        self._exact = {name: torch.from_numpy(np.array(x, dtype=np.float64)) for name, x in (numbers or {}).items()}
        for name, exact in self._exact.items():
            self.register_buffer(name, exact.clone(), persistent=False)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move to a device, but leave counting numbers in float64, where the device has it."""
        # a network of half precision still has counting numbers of float64
        super()._apply(fn, recurse)
        for name, exact in self._exact.items():
            device = self._buffers[name].device
            self._buffers[name] = exact.to(device, torch.float32 if device.type == "mps" else torch.float64)
        return self

"""PyTorch modules: conditional random fields as layers of a network."""

from __future__ import annotations

from ...base.types import PotentiaError

try:
    import torch  # noqa: F401
except ImportError:
    raise PotentiaError("PyTorch is not installed: pip install potentia[torch].") from None

from .chain import LinearChain
from .layer import CRFLayer
from .network import Network

__all__ = ["CRFLayer", "LinearChain", "Network"]

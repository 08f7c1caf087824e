"""PyTorch modules: conditional random fields as layers of a network."""

from __future__ import annotations

from ...base.types import PotentiaError

try:
    import torch  # noqa: F401
except ImportError:
    raise PotentiaError("PyTorch is not installed: pip install potentia[torch].") from None

from .chain import LinearChain
from .grid import GridCRF, RefineHead
from .layer import CRFLayer
from .network import Network
from .segments import TaggedSegment

__all__ = ["CRFLayer", "GridCRF", "LinearChain", "Network", "RefineHead", "TaggedSegment"]

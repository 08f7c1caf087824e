"""Names for those who extend the library: base classes, the values that they exchange, and the errors they raise."""

from __future__ import annotations

from .base.saving import Registered
from .base.types import WidthError
from .features.parts import Parts
from .graph.union import Union
from .inference.base import Inference
from .inference.map.portfolio import MAPResult
from .inference.messages import MessagePassing
from .learn.base import Learner, State, Stop
from .potentials import Potential

__all__ = [
    "Inference",
    "Learner",
    "MAPResult",
    "MessagePassing",
    "Parts",
    "Potential",
    "Registered",
    "State",
    "Stop",
    "Union",
    "WidthError",
]

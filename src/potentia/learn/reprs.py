"""How learners print."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def call_repr(learner: Any) -> str:
    """The constructor call of a dataclass, with the arguments that differ from their defaults."""
    values = {field.name: (getattr(learner, field.name), field.default) for field in fields(learner)}
    options = [
        f"{name}={value!r}" for name, (value, default) in values.items() if repr(value) != repr(default)
    ]
    return f"{type(learner).__name__}({', '.join(options)})"

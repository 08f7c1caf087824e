"""`Checkpoint`: a learner's state in one file, from which an interrupted fit goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .._schema import Count, Items, Kind, Number, Record, Schema, check
from .._types import PotentiaError
from .files import read_file, reading, write_file

#: What the file of a checkpoint holds beside arrays.
_SAVED: Schema = {
    "history": Items(Record({"iteration": Count(), "objective": Number(finite=False)})),
    "potentials": Kind((dict,)),
    "mark": Kind((str,), optional=True),
}


class Checkpoint:
    """The state of a fit after its last whole iteration, in one file that is replaced after every iteration.

    `mark` says what the fit is about, such as a digest of data and options: a file with another mark is refused.
    """

    def __init__(self, path: str | os.PathLike[str], mark: str = "") -> None:
        self.path, self.mark = Path(path), mark

    def save(self, state: dict[str, Any]) -> None:
        """Write a learner's state: its history, arrays, and each potential's own state."""
        metas, arrays = {}, {f"messages/{k}": v for k, v in state["arrays"].items()}
        for kind, (meta, own) in state["potentials"].items():
            metas[kind] = meta
            arrays |= {f"potentials/{kind}/{name}": value for name, value in own.items()}
        content = {"history": state["history"], "potentials": metas, "mark": self.mark}
        write_file(self.path, "checkpoint", content, arrays)

    def load(self) -> dict[str, Any] | None:
        """The state that `save` wrote; None where there is no file."""
        if not self.path.exists():
            return None
        try:
            with reading(self.path):
                return self._state(*read_file(self.path, "checkpoint"))
        except PotentiaError as error:
            raise PotentiaError(f"{str(error).rstrip('.')}; delete it to start anew") from None

    def _state(self, content: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """What `save` was given, from the content of its file."""
        content = check(_SAVED, content, "checkpoint")
        if (content["mark"] or "") != self.mark:
            raise PotentiaError(f"{self.path} belongs to a run with other options or data")
        potentials = {}
        for kind, meta in content["potentials"].items():
            head = f"potentials/{kind}/"
            own = {k.removeprefix(head): v for k, v in arrays.items() if k.startswith(head)}
            potentials[kind] = (meta, own)
        messages = {k.removeprefix("messages/"): v for k, v in arrays.items() if k.startswith("messages/")}
        return {"history": content["history"], "potentials": potentials, "arrays": messages}

    def remove(self) -> None:
        """Delete the file, if there is one."""
        self.path.unlink(missing_ok=True)

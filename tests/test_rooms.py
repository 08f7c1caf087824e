"""No import points upwards in the room order of the architecture."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "potentia"
ROOM = {
    "_types": -2, "_version": -2, "_digest": -2, "_signals": -2, "_options": -1, "_threads": -1, "_memory": -1,
    "_html": -1, "_progress": -1,
    "kernels": 0, "graph": 1,
    "potentials": 2, "inference": 2, "losses": 2.5, "data": 2, "features": 3, "datasets": 3, "metrics": 2,
    "adjoint": 3, "parallel": 3, "learn": 4, "io": 4.5, "estimators": 5, "multilabel": 6,
    "workflows": 6.5, "plot": 6.7, "loading": 7, "commands": 7,
    "report": 7, "cli": 7, "demo": 7, "bench": 7, "experiments": 7, "__init__": 8, "__main__": 8,
}  # fmt: skip


def imported_rooms(path):
    package = ["potentia", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = base + (node.module.split(".") if node.module else [])
            if parts[:1] == ["potentia"]:
                yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("potentia."))


def test_every_module_has_a_room_and_imports_only_downwards():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 10
    for path in files:
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imported_rooms(path):
            if other != own:
                assert ROOM[other] < ROOM[own] or ROOM[own] == 7 == ROOM[other], f"{path} imports {other}"

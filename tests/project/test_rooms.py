"""No import points upwards in the room order of the architecture."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "potentia"
ROOM = {
    "_types": -2, "_version": -2, "_digest": -2, "_signals": -2, "_options": -1, "_registry": -1, "_schema": -1,
    "_text": -0.5, "_threads": -1, "_memory": -1, "_available": -1.5, "_html": -1, "_progress": -1, "_curves": -1,
    "_optimise": -0.5, "_layout": -1, "_files": -1, "parallel": -0.5,
    "kernels": 0, "graph": 1,
    "potentials": 2, "inference": 2, "losses": 2.5, "data": 2, "features": 3, "datasets": 3,
    "metrics": 2, "segmentation": 2, "adjoint": 3, "learn": 4, "io": 4.5, "_crf_params": 4.5,
    "estimators": 5, "chain_crf": 5, "torch": 5.5,
    "multilabel": 6, "workflows": 6.5, "plot": 6.7, "loading": 6.7, "report": 7, "__init__": 7.5, "lab": 8,
    "commands": 9, "cli": 9.5,
    "__main__": 10,
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
            names = [a.name.split(".") for a in node.names]
            yield from (
                parts[1] if len(parts) > 1 else "__init__" for parts in names if parts[0] == "potentia"
            )


def test_every_module_has_a_room_and_imports_only_downwards():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 10
    for path in files:
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert own in ROOM, f"{path} has no room"
        for other in imported_rooms(path):
            if other != own:
                assert ROOM[other] < ROOM[own], f"{path} imports {other}"


def test_reports_read_rows_and_know_no_learner():
    below = {"report", "io", "_curves", "_files", "_html", "_types", "_version"}
    for path in (SOURCE / "report").glob("*.py"):
        assert set(imported_rooms(path)) <= below, path

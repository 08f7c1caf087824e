"""No import points upwards in the room order of the architecture."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "potentia"
ROOM = {
    "base": 0, "kernels": 1, "graph": 2, "metrics": 2, "conformal": 2, "inference": 3, "potentials": 3, "features": 3,
    "gradients": 4, "learn": 5, "extend": 6, "models": 6, "app": 7, "compat": 7, "__init__": 8,
    "testing": 9, "__main__": 9,
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
            yield from (parts[1] if len(parts) > 1 else "__init__" for parts in names if parts[0] == "potentia")


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
    for path in (SOURCE / "app" / "report").glob("*.py"):
        assert set(imported_rooms(path)) <= {"app", "base"}, path


def test_no_class_name_means_two_things():
    classes = [
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    # the CRF of compat.sklearn_crfsuite is named as the class it stands for
    assert sorted(name for name in set(classes) if classes.count(name) > 1) == ["CRF"]

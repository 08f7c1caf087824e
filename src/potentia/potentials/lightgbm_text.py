"""LightGBM's model text, checked before its parser, which trusts every index, is given it."""

from __future__ import annotations

import re

from potentia._types import PotentiaError

_HEAD = ("version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "feature_names",
         "feature_infos")  # fmt: skip
_OF_NODES = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child",
             "internal_value", "internal_weight", "internal_count")  # fmt: skip
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_CATEGORICAL = ("cat_boundaries", "cat_threshold")

Fields = dict[str, str]


def checked_text(text: str, n_features: int, n_outputs: int) -> str:
    """The trees of a model text, rewritten without byte offsets; refuses one whose indices are out of range.

    Sizes of trees in characters, by which LightGBM would jump through the text, are left out.
    """
    try:
        head, *blocks = re.split(r"^Tree=", text.split("\nend of trees")[0], flags=re.MULTILINE)
        trees = [_fields(block) for block in blocks]
        if not _fits(_fields(head), n_features, n_outputs) or len(trees) % n_outputs:
            raise ValueError
        parts = ["tree\n" + _lines(_fields(head), _HEAD)]
        for number, tree in enumerate(trees):
            _check_tree(tree, n_features)
            named = (
                "num_leaves",
                "num_cat",
                *_OF_NODES,
                *_OF_LEAVES,
                *_CATEGORICAL,
                "is_linear",
                "shrinkage",
            )
            parts.append(f"Tree={number}\n" + _lines(tree, named))
        return "\n".join([*parts, "end of trees\n"])
    except (ValueError, KeyError, IndexError, OverflowError):
        raise PotentiaError("the saved LightGBM model is damaged: its trees are inconsistent.") from None


def _fields(block: str) -> Fields:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _lines(fields: Fields, names: tuple[str, ...]) -> str:
    return "".join(f"{name}={fields[name]}\n" for name in names if name in fields)


def _fits(head: Fields, n_features: int, n_outputs: int) -> bool:
    numbers = [int(head[name]) for name in ("num_class", "num_tree_per_iteration", "max_feature_idx")]
    names = head["feature_names"].split(" ")
    return numbers == [n_outputs, n_outputs, n_features - 1] and len(names) == n_features and all(names)


def _check_tree(tree: Fields, n_features: int) -> None:
    """Raise unless every walk down the tree ends at a leaf; children of a node are written after it."""
    n_leaves, n_cat = int(tree["num_leaves"]), int(tree["num_cat"])
    if n_leaves < 1 or int(tree.get("is_linear", "0")):
        raise ValueError
    n_nodes = n_leaves - 1
    lengths = dict.fromkeys(_OF_NODES, n_nodes) | dict.fromkeys(_OF_LEAVES, n_leaves if n_nodes else None)
    for name, length in lengths.items():
        if (
            name in tree
            and length is not None
            and len([float(word) for word in tree[name].split()]) != length
        ):
            raise ValueError
    if len(tree["leaf_value"].split()) != n_leaves:
        raise ValueError
    columns = [
        tree[name].split()
        for name in ("split_feature", "decision_type", "threshold", "left_child", "right_child")
    ]
    for node, (feature, kind, threshold, *children) in enumerate(zip(*columns, strict=True)):
        inside = all(node < int(child) < n_nodes or -n_leaves <= int(child) < 0 for child in children)
        if not 0 <= int(feature) < n_features or not inside:
            raise ValueError
        if int(kind) & 1 and not 0 <= int(threshold) < n_cat:
            raise ValueError
    if n_cat:
        bounds = [int(word) for word in tree["cat_boundaries"].split()]
        words = [int(word) for word in tree["cat_threshold"].split()]
        if len(bounds) != n_cat + 1 or bounds != sorted(bounds) or [bounds[0], bounds[-1]] != [0, len(words)]:
            raise ValueError

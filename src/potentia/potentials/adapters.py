"""Other libraries' learners as potentials."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..base.resources import thread_count
from ..base.schema import TEXT, Items, Rule, Schema
from ..base.types import Floats, PotentiaError
from .base import Potential
from .problem import Batch, Problem

#: Hessian per row below which a leaf's value would be a leap.
_LEAST_CURVATURE = 0.05


def _check_texts(values: dict[str, Any]) -> bool:
    """Refuse model texts that LightGBM must not be given."""
    sizes = values["n_features_"], values["n_outputs_"]
    return all(checked_text(text, *sizes) for text in values["models_"])


@dataclass(eq=False, repr=False)
class LightGBM(Potential):
    """Boosted trees by LightGBM, one tree per configuration and round, with the bias as initial score.

    With biases of 10 and more LightGBM's own leaf values, gradient over Hessian, are in the tens of thousands
    and learning stays at chance; at 100 the Hessian is zero in its arithmetic. So the loss is given to it with
    a Hessian of at least 0.05 per row, and `max_delta_step` bounds leaf values. The first fit grows `rounds`
    rounds, every further one adds `more_rounds`. `params` are passed on to LightGBM. A row of weight 2 is not
    quite two rows, because leaves are limited by counts. `learning_rate`, `num_leaves` and `seed` are LightGBM's own
    options. Saved as LightGBM's own text.

    Example:
        >>> import potentia as pt
        >>> crf = pt.CRF({"node": pt.LightGBM(rounds=5), "edge": pt.Potts()}, pt.IteratedLogistic(iterations=2))
        >>> crf.fit(pt.datasets.denoising(2, (8, 8), seed=0)).predict(pt.datasets.denoising(1, (8, 8), seed=1))[0].shape
        (64,)
    """

    saved: ClassVar[Schema] = {**Potential.saved, "models_": Items(TEXT), "texts": Rule(_check_texts)}

    rounds: int = 100
    learning_rate: float = 0.1
    num_leaves: int = 31
    max_delta_step: float = 8.0
    more_rounds: int = 20
    params: dict[str, Any] | None = None
    seed: int = 0

    def _begin(self, problem: Problem) -> None:
        """No trees: the zero function."""
        if problem.n_features == 0:
            raise PotentiaError("LightGBM needs at least one feature, x has none.")
        if problem.n_outputs < 2:
            raise PotentiaError(f"LightGBM needs at least two configurations, got {problem.n_outputs}.")
        self.models_: list[str] = []

    def _fit(self, problem: Problem) -> None:
        """Boost trees on all rows, starting from the earlier trees' scores and the bias."""
        lightgbm = import_lightgbm()
        rows = problem.draw(slice(None))
        if not np.any(rows.x != rows.x[:1]):
            raise PotentiaError("LightGBM needs a feature that differs between rows; Constant() needs none.")
        start = self._scores(rows.x)
        if len(rows.bias):
            start += rows.bias
        # a flat initial score is read column by column; Fortran order is that order whatever the version
        data = lightgbm.Dataset(
            rows.x,
            np.zeros(problem.n_rows),
            init_score=np.asfortranarray(start),
            params={"verbosity": -1, "feature_pre_filter": False},
        )
        n_rounds = self.more_rounds if self.models_ else self.rounds
        objective = _slopes(rows, problem.n_outputs)
        try:
            booster = lightgbm.train(self._settings() | {"objective": objective}, data, n_rounds)
        except lightgbm.basic.LightGBMError as error:
            reason = str(error).splitlines()[0]
            raise PotentiaError(f"LightGBM refuses these features or options ({reason}): scale the features.") from None
        self.models_ = [*self.models_, booster.model_to_string()]

    def _settings(self) -> dict[str, Any]:
        """LightGBM's parameters; `params` come last and override them."""
        return {
            "num_class": self.n_outputs_,
            "learning_rate": self.learning_rate,
            "num_leaves": self.num_leaves,
            "max_delta_step": self.max_delta_step,
            "num_threads": thread_count(None),
            "seed": self.seed + self.n_fits_,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
            **(self.params or {}),
        }

    def ready(self, n_rows: int) -> None:
        """Models are text when fitted or loaded, and parsed once."""
        if getattr(self, "_parsed", None) != self.models_:
            lightgbm = import_lightgbm()
            sizes = self.n_features_, self.n_outputs_
            self._boosters = [lightgbm.Booster(model_str=checked_text(text, *sizes)) for text in self.models_]
            self._parsed = list(self.models_)

    def _scores(self, x: Any) -> Floats:
        """The sum over boosters of their raw scores."""
        self.ready(len(x))
        scores = np.zeros((len(x), self.n_outputs_))
        for booster in self._boosters:
            scores += booster.predict(x, raw_score=True)
        return scores


def import_lightgbm() -> Any:
    """The module, or a sentence that says how to install it."""
    try:
        import lightgbm
    except ImportError:
        raise PotentiaError("LightGBM is not installed: pip install potentia[lightgbm].") from None
    return lightgbm


def _slopes(rows: Batch, n_outputs: int) -> Callable[[Floats, Any], tuple[Floats, Floats]]:
    """LightGBM's form of the loss: first and second derivatives at scores that include the bias."""
    from scipy.special import softmax

    weight = rows.weight if len(rows.weight) else np.ones(rows.n_rows)
    target = rows.soft if len(rows.soft) else np.eye(n_outputs)[rows.labels]

    def of(scores: Floats, data: Any) -> tuple[Floats, Floats]:
        """Gradient and a bounded second derivative of the logistic loss, (N, K) each."""
        beliefs = softmax(scores, axis=1)
        curvature = np.maximum(beliefs * (1.0 - beliefs), _LEAST_CURVATURE)
        return weight[:, None] * (beliefs - target), weight[:, None] * curvature

    return of


# -- LightGBM's model text, checked before its parser, which trusts every index, is given it ---------------------

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
            named = ("num_leaves", "num_cat", *_OF_NODES, *_OF_LEAVES, *_CATEGORICAL, "is_linear", "shrinkage")
            parts.append(f"Tree={number}\n" + _lines(tree, named))
        return "\n".join([*parts, "end of trees\n"])
    except (ValueError, KeyError, IndexError, OverflowError):
        raise PotentiaError("the saved LightGBM model is damaged: its trees are inconsistent.") from None


def _fields(block: str) -> Fields:
    """The lines "name=value" of a block of LightGBM's text format."""
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _lines(fields: Fields, names: tuple[str, ...]) -> str:
    """The fields of these names as lines "name=value"."""
    return "".join(f"{name}={fields[name]}\n" for name in names if name in fields)


def _fits(head: Fields, n_features: int, n_outputs: int) -> bool:
    """Whether a saved booster has this number of features and outputs."""
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
        if name in tree and length is not None and len([float(word) for word in tree[name].split()]) != length:
            raise ValueError
    if len(tree["leaf_value"].split()) != n_leaves:
        raise ValueError
    columns = [
        tree[name].split() for name in ("split_feature", "decision_type", "threshold", "left_child", "right_child")
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

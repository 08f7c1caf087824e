"""The multi-label models of tables by their names on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._types import PotentiaError
from ..multilabel.baselines import IndependentClassifiers
from ..multilabel.label_network import LabelNetwork
from ..multilabel.lmbm import LMBM
from ..multilabel.lmsbn import LMSBN
from ..multilabel.resumable import ResumableClassifier

MODELS: dict[str, type[ResumableClassifier]] = {
    "network": LabelNetwork,
    "lmsbn": LMSBN,
    "lmbm": LMBM,
    "independent": IndependentClassifiers,
}


#: Models that the workers of a cluster learn label by label; of others one worker does all the work.
_BY_LABEL = ("lmsbn", "independent")


def learned_by_label(name: str, options: Mapping[str, Any]) -> bool:
    """Whether all workers of a cluster learn a model; with a kernel it holds the rows, so one worker does."""
    return name in _BY_LABEL and options.get("kernel") != "rbf"


def make_model(name: str, seed: int, **options: Any) -> ResumableClassifier:
    """A model with the options given; those not given that it can choose by cross-validation, it chooses."""
    kind = MODELS[name]
    known = {"units" if kind is LabelNetwork else "kernel", *kind().get_params()}
    if kind is LabelNetwork and "kernel" in options:
        options = {"units": [options["kernel"]]} | {k: v for k, v in options.items() if k != "kernel"}
    for option in options:
        if option not in known:
            raise PotentiaError(f"--{option} cannot be combined with --model {name}.")
    if options.get("kernel") == "linear":
        options["kernel"] = None
    own: dict[str, Any] = {} if kind is LabelNetwork else {"gamma": "median"}
    if kind is LMSBN:
        own = {"gamma": "cv", "order": "cv"}
    return kind(**{"random_state": seed, **own, **options})


def chosen(model: Any) -> dict[str, Any]:
    """What cross-validation has chosen, to be shown."""
    if isinstance(model, LabelNetwork):
        return {
            "units": [*model.units_, *(["forest"] if model.n_trees else [])],
            "chosen_power": model.power_,
            "whole_labellings": model.whole_,
        }
    results = getattr(model, "cv_results_", [])
    names = [
        name for name in ("alpha", "gamma", "order", "label_scale") if len({r[name] for r in results}) > 1
    ]
    if not names:
        return {}
    best = max(results, key=lambda r: (r["exact_match"], -r["hamming_loss"]))
    found = {f"chosen_{name}": best[name] for name in names}
    return found | {"cross_validated_exact_match": best["exact_match"]}

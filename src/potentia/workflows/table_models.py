"""The multi-label models of tables by their names on the command line."""

from __future__ import annotations

from typing import Any

from .._types import PotentiaError
from ..multilabel.baselines import IndependentClassifiers
from ..multilabel.lmbm import LMBM
from ..multilabel.lmsbn import LMSBN
from ..multilabel.margin import MarginClassifier

MODELS: dict[str, type[MarginClassifier]] = {
    "lmsbn": LMSBN,
    "lmbm": LMBM,
    "independent": IndependentClassifiers,
}


def make_model(name: str, seed: int, **options: Any) -> MarginClassifier:
    """A model with the options given; those not given that it can choose by cross-validation, it chooses."""
    kind = MODELS[name]
    known = kind().get_params()
    for option in options:
        if option not in known:
            raise PotentiaError(f"--{option} does not go with --model {name}.")
    if options.get("kernel") == "linear":
        options["kernel"] = None
    own = {"gamma": "cv", "order": "cv"} if kind is LMSBN else {"gamma": "median"}
    return kind(**{"random_state": seed, **own, **options})


def chosen(model: Any) -> dict[str, Any]:
    """What cross-validation has chosen, to be shown."""
    results = getattr(model, "cv_results_", [])
    names = [
        name for name in ("alpha", "gamma", "order", "label_scale") if len({r[name] for r in results}) > 1
    ]
    if not names:
        return {}
    best = max(results, key=lambda r: (r["exact_match"], -r["hamming_loss"]))
    return {f"chosen_{name}": best[name] for name in names} | {
        "cross_validated_exact_match": best["exact_match"]
    }

"""`horses-network`: a small U-Net alone, with a CRF fitted to its scores, and trained together with the CRF."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np

import potentia as pt
from potentia.app.report.rows import Cell, Column, Row, Table, grid
from potentia.potentials.inputs import Inputs

from . import public_sets
from .figures import grid_size
from .study import Rows, Study

SYSTEMS = {
    "network": "U-Net alone",
    "pipeline": "U-Net, then a CRF on its scores",
    "joint-risk": "U-Net and CRF jointly, marginal risk",
    "joint-logistic": "U-Net and CRF jointly, iterated logistic regression",
    "refine": "U-Net with RefineHead, trained on together",
}
SEEDS = (0, 1, 2)
#: Passes over the images: of the U-Net alone, which all systems start from, and more of the U-Net or of both.
FIRST, MORE = 20, 16
#: Fits of the U-Net among the latter in iterated logistic regression.
FITS = 4
RATE = 5e-3
#: Passes over the images of the U-Net with `RefineHead`, and the step sizes of both.
REFINE, REFINE_RATES = 8, (RATE / 10, 0.05)
#: Inference of what is trained through it, and of its predictions.
_TRW = pt.TRW(iterations=10, tol=0)


@dataclass(frozen=True)
class HorseImages:
    """Images as examples with inputs of pixels and features of pairs, and the networks trained on them."""

    train: list[pt.Example]
    test: list[pt.Example]
    seed: int
    quick: bool

    def network(self, epochs: int, rate: float) -> Any:
        """An untrained U-Net."""
        from potentia.models.torch import Network

        from .unet import UNet

        passes = 1 if self.quick else epochs
        return Network(UNet, per="example", epochs=passes, batch=4, rate=rate, seed=self.seed)

    @cached_property
    def first(self) -> Any:
        """The U-Net that all systems start from."""
        return _fit(self.network(FIRST, RATE), self.train)

    @cached_property
    def alone(self) -> Any:
        """The U-Net trained on without a CRF."""
        return _fit(copy.deepcopy(self.first).set_params(**self.network(MORE, RATE / 2).get_params()), self.train)


def _inputs(examples: Sequence[pt.Example]) -> Inputs:
    return Inputs([e.inputs["node"] for e in examples], [e.graph.n_variables for e in examples])


def _fit(network: Any, examples: Sequence[pt.Example]) -> Any:
    return network.fit(_inputs(examples), np.concatenate([e.labels for e in examples]))


def load(quick: bool, seed: int) -> HorseImages:
    """200 training and 128 test images at a quarter of their sides; quick: three of each."""
    train, test = (_examples(split, 3 if quick else None) for split in ("train", "test"))
    return HorseImages(train, test, seed, quick)


def _examples(split: str, most: int | None) -> list[pt.Example]:
    images = public_sets.horses(split=split, size="quarter")[:most]
    found = public_sets.image_examples(images, n_states=2, node="ilr", edge="mbl")
    return [
        pt.Example(
            e.graph, {"edge": e.features["edge"]}, e.labels, name=e.name,
            inputs={"node": (p.image / 255.0).astype(np.float32).transpose(2, 0, 1)},
        )
        for e, p in zip(found, images, strict=True)
    ]  # fmt: skip


def run(cell: Cell, data: HorseImages) -> Row:
    """Train a system; its errors."""
    examples = {"train": data.train, "test": data.test}
    if cell["system"] == "network":
        errors = {f"{part}_error": _network_error(data.alone, own) for part, own in examples.items()}
        return errors | _facts(data)
    if cell["system"] == "refine":
        return _refined(data) | _facts(data)
    if cell["system"] == "pipeline":
        examples = {part: _scored(data.alone, own) for part, own in examples.items()}
    model = _model(cell["system"], data)
    # numbers of passes are fixed
    with warnings.catch_warnings(action="ignore", category=pt.ConvergenceWarning):
        model.fit(examples["train"], warm_start=True)
    errors = {f"{part}_error": 1.0 - model.score(own) for part, own in examples.items()}
    return errors | _facts(data) | {"iterations": len(model.history_), "learner": repr(model.learner)}


def _model(system: str, data: HorseImages) -> pt.CRF:
    """The CRF of a system; jointly trained ones start from the U-Net trained alone."""
    risk = pt.MarginalRisk("univariate_logistic", _TRW, ridge=1e-3, iterations=60, track_error=False)
    if system == "pipeline":
        learner: pt.extend.Learner = replace(risk, iterations=3 if data.quick else risk.iterations)
        return pt.CRF({"node": pt.Linear(), "edge": pt.Linear(intercept=False)}, learner)
    if system == "joint-logistic":
        node = data.network(MORE // FITS, RATE / 2)
        fits = 1 if data.quick else FITS
        learner = pt.IteratedLogistic(
            epsilon=1.0, delta=None, iterations=fits, schedule="coloured", tol=0, track_error=False
        )
    else:
        node = data.network(1, RATE / 10)
        passes = 1 if data.quick else MORE
        learner = replace(risk, batch=4, rate=0.05, ridge=1e-5, iterations=passes, seed=data.seed)
    model = pt.CRF({"node": node, "edge": pt.Linear(intercept=False)}, learner)
    model.potentials_ = {"node": copy.deepcopy(data.first)}
    return model


def _refined(data: HorseImages) -> Row:
    """Errors of the U-Net trained alone, with a head that refines its scores, after some more passes of both."""
    import torch

    from potentia.models.torch import RefineHead

    from .unet import UNet

    torch.manual_seed(data.seed)
    unet, head = UNet(), RefineHead(2, 3)
    unet.load_state_dict({key: torch.from_numpy(array.copy()) for key, array in data.alone.weights_.items()})
    groups = zip((unet.parameters(), head.parameters()), REFINE_RATES, strict=True)
    optimiser = torch.optim.Adam([{"params": list(own), "lr": rate} for own, rate in groups])
    passes, rng, rates = 1 if data.quick else REFINE, np.random.default_rng(data.seed), REFINE_RATES
    steps, done = passes * -(-len(data.train) // 4), 0
    for _ in range(passes):
        order = rng.permutation(len(data.train))
        for first in range(0, len(order), 4):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * (1.0 - done / steps)
            optimiser.zero_grad()
            for k in order[first : first + 4]:
                _refine_loss(unet, head, data.train[k]).backward()
            optimiser.step()
            done += 1
    unet.eval()
    weights = {name: value.detach().numpy().round(4).tolist() for name, value in head.named_parameters()}
    with torch.no_grad():
        errors = {
            "train_error": _refined_error(unet, head, data.train),
            "test_error": _refined_error(unet, head, data.test),
        }
    return errors | {"head": repr(head), "weights": weights, "refine_passes": passes, "rates": list(rates)}


def _refine(unet: Any, head: Any, example: pt.Example) -> Any:
    import torch

    image = torch.from_numpy(example.inputs["node"]).unsqueeze(0)
    return head(unet(image), image).flatten(2)[0].T


def _refine_loss(unet: Any, head: Any, example: pt.Example) -> Any:
    import torch

    labels = torch.from_numpy(np.array(example.labels, dtype=np.int64))
    return torch.nn.functional.cross_entropy(_refine(unet, head, example), labels, ignore_index=-1) / 4.0


def _refined_error(unet: Any, head: Any, examples: Sequence[pt.Example]) -> float:
    found = [_refine(unet, head, e).argmax(1).numpy() for e in examples]
    return float((np.concatenate(found) != np.concatenate([e.labels for e in examples])).mean())


def _network_error(network: Any, examples: Sequence[pt.Example]) -> float:
    found = network.scores(_inputs(examples)).argmax(axis=1)
    return float((found != np.concatenate([e.labels for e in examples])).mean())


def _scored(network: Any, examples: Sequence[pt.Example]) -> list[pt.Example]:
    """The examples with a network's scores as features of pixels."""
    scores = np.split(network.scores(_inputs(examples)), np.cumsum([e.graph.n_variables for e in examples])[:-1])
    return [
        pt.Example(e.graph, {**e.features, "node": own}, e.labels, name=e.name)
        for e, own in zip(examples, scores, strict=True)
    ]


def _facts(data: HorseImages) -> Row:
    """What a row says about its data and network."""
    sides = [grid_size(e) for e in data.train[:1]]
    return {
        "network": repr(data.network(MORE, RATE / 2)),
        "parameters": data.first.n_parameters,
        "passes": [1, 1] if data.quick else [FIRST, MORE],
        "pictures": {"train": len(data.train), "test": len(data.test), "first": list(sides[0])},
        "torch": version("torch"),
    }


def tables(rows: Rows) -> list[Table]:
    """Errors by system: means over seeds, and each seed's test error."""
    seeds = sorted({row["cell"]["seed"] for row in rows})
    number = "{:.4f}".format
    columns = [Column("system", "name"), Column("test error, mean", "test", number)]
    columns += [Column(f"seed {seed}", f"seed{seed}", number) for seed in seeds]
    columns += [Column("training error, mean", "train", number)]
    lines = []
    for system, name in SYSTEMS.items():
        own = [row for row in rows if row["cell"]["system"] == system]
        if own:
            means = {part: np.mean([row[f"{part}_error"] for row in own]) for part in ("test", "train")}
            line: dict[str, Any] = {"name": name} | means
            lines.append(line | {f"seed{row['cell']['seed']}": row["test_error"] for row in own})
    return [Table("Horses at a quarter of their sides: share of pixels wrong", columns, lines)]


STUDY = Study(
    "horses-network",
    grid(seed=SEEDS, system=tuple(SYSTEMS)),
    grid(seed=(0,), system=tuple(SYSTEMS)),
    run,
    tables,
    load=load,
    needs=("seed",),
)

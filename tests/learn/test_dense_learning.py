"""Dense CRFs that learn their weights and widths: gradients by differences, twins by all pairs, files, refusals."""

import numpy as np
import pytest
from scipy.special import softmax

import potentia as pt
import reference
from potentia.base.types import Floats
from potentia.learn.risk_objective import Risk, open_parts

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short

LABELS = 3
COST = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [2.0, 0.5, 0.0]])


def images(n: int = 3, size: tuple[int, int] = (6, 7), seed: int = 0, noise: float = 1.0) -> list[pt.Example]:
    """Three areas of different colours with scores that are noisy, as examples without pairs."""
    rng = np.random.default_rng(seed)
    examples = []
    for k in range(n):
        rows, columns = np.indices((size[0] + k % 2, size[1]))
        label = np.where(columns < 2 + rng.integers(size[1] - 3), 0, np.where(rows < size[0] // 2, 1, 2)).ravel()
        colour = np.eye(3)[label] + 0.1 * rng.normal(size=(label.size, 3))
        place = np.stack([rows.ravel(), columns.ravel()], axis=1) / 3.0
        graph = pt.Graph([LABELS] * label.size, {"node": np.arange(label.size)[:, None]})
        node = np.eye(3)[label] + noise * rng.normal(size=(label.size, 3))
        features = {"node": node, "near": place, "alike": np.hstack([place / 2, 3.0 * colour]).astype(np.float32)}
        examples.append(pt.Example(graph, features, label))
    return examples


def crf(iterations: int = 30, mean_field: int = 3, **options: object) -> pt.CRF:
    potentials = {"node": pt.Linear(), "near": pt.DenseGaussian(**options), "alike": pt.DenseGaussian(**options)}
    return pt.CRF(
        potentials, pt.MarginalRisk(inference=pt.MeanField(iterations=mean_field, tol=0), iterations=iterations)
    )


def by_pairs(node: Floats, terms: list[tuple[Floats, float]], iterations: int, cost: Floats) -> Floats:
    """Mean field with all pairs written out, all variables at once."""
    q = softmax(node, axis=1)
    fields = []
    for features, weight in terms:
        kernel = np.exp(-0.5 * ((features[:, None] - features) ** 2).sum(axis=2))
        root = np.sqrt(kernel.sum(axis=1))
        np.fill_diagonal(kernel, 0.0)
        fields.append(weight * kernel / np.outer(root, root))
    for _ in range(iterations):
        q = softmax(node - sum(field @ q @ cost for field in fields), axis=1)
    return q


@pytest.mark.parametrize(
    ("gradient", "options"),
    [
        ("truncated", {}),
        ("truncated", {"normalisation": None}),
        ("truncated", {"compatibility": COST}),
        ("backpropagation", {}),
    ],
)
def test_the_risk_has_the_gradient_of_its_differences(gradient, options):
    model = crf(mean_field=4, **options)
    learner = model.learner
    if gradient == "backpropagation":
        learner.set_params(gradient=gradient, inference=pt.MeanField(iterations=200, tol=1e-12))
    data = learner.gather(images(2), model.potentials)
    state = learner.init(data, dict(model.potentials))
    totals, parts = open_parts(data, learner, 2)
    risk = Risk(data, 0.1, totals, state.potentials, parts)
    rng = np.random.default_rng(1)
    point = state.arrays["point"] + 0.3 * rng.normal(size=len(state.arrays["point"]))
    _, slope, _ = risk(point)
    chosen = slice(None) if gradient == "truncated" else slice(-11, None)

    def value(vector: Floats) -> float:
        moved = point.copy()
        moved[chosen] = vector
        return risk(moved)[0]

    expected = reference.differences(value, point[chosen], 1e-5)
    np.testing.assert_allclose(slope[chosen], expected, rtol=2e-6, atol=1e-8)


def test_predictions_are_those_with_all_pairs_written_out():
    examples = images()
    model = crf(iterations=8).fit(examples)
    for example, found in zip(examples, model.predict_marginals(examples), strict=True):
        node = model.potentials_["node"].scores(example.features["node"])
        terms = [
            (example.features[kind] / model.potentials_[kind].widths_, model.potentials_[kind].weight_)
            for kind in ("near", "alike")
        ]
        np.testing.assert_allclose(found, by_pairs(node, terms, 3, 1.0 - np.eye(LABELS)), atol=1e-9)
        theta = model.theta(example)
        again = model.inference_.infer(example.graph, theta).variable_marginals
        np.testing.assert_allclose(again, found, atol=1e-9)


def test_weights_and_widths_are_learned_and_kept(tmp_path):
    train, test = images(6, (12, 12)), images(6, (12, 12), seed=9)
    plain = pt.CRF({"node": pt.Linear()}).fit(
        [pt.Example(e.graph, {"node": e.features["node"]}, e.labels) for e in train]
    )
    rivals = [pt.Example(e.graph, {"node": e.features["node"]}, e.labels) for e in test]
    model = pt.CRF({"node": pt.Linear(), "alike": pt.DenseGaussian()}).fit(
        [pt.Example(e.graph, {k: e.features[k] for k in ("node", "alike")}, e.labels) for e in train]
    )
    seen = [pt.Example(e.graph, {k: e.features[k] for k in ("node", "alike")}, e.labels) for e in test]
    assert isinstance(model.inference_, pt.MeanField)
    assert model.score(seen) > plain.score(rivals) + 0.1
    dense = model.potentials_["alike"]
    assert dense.weight_ > 0
    assert np.abs(np.log(dense.widths_)).max() > 0.2
    model.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    for a, b in zip(model.predict_marginals(seen), loaded.predict_marginals(seen), strict=True):
        np.testing.assert_array_equal(a, b)
    assert repr(model.potentials["alike"]) == "DenseGaussian()"


def test_parts_on_disk_and_one_by_one_give_the_same(tmp_path):
    examples = images(4)
    whole = crf(iterations=4).fit(examples)
    pt.write_parts(examples, tmp_path / "parts", part_entries=200)
    parts = pt.parts(tmp_path / "parts")
    assert len(parts) > 1
    apart = crf(iterations=4).fit(parts)
    np.testing.assert_allclose(apart.potentials_["alike"].parameters, whole.potentials_["alike"].parameters, rtol=1e-6)


def test_the_lattice_learns_about_the_same():
    examples = images(2, (12, 12))
    exact, lattice = (crf(iterations=5, exact=exact).fit(examples) for exact in (True, False))
    assert lattice.history_[-1]["objective"] == pytest.approx(exact.history_[-1]["objective"], rel=0.1)


def test_what_cannot_be_learned_is_refused():
    examples = images(2)
    potentials = {"node": pt.Linear(), "near": pt.DenseGaussian(), "alike": pt.DenseGaussian()}

    def refused(message, learner=None, given=examples, **changes):
        with pytest.raises(pt.PotentiaError, match=message):
            pt.CRF({**potentials, **changes}, learner).fit(given)

    refused("needs pt.MarginalRisk", pt.IteratedLogistic())
    refused("must be linear in its parameters", pt.MaxMargin())
    refused("needs inference=pt.MeanField", pt.MarginalRisk())
    refused("goes with losses of marginals", pt.MarginalRisk("surrogate_likelihood", pt.MeanField()))
    refused("write pt.DenseGaussian", near=pt.DenseGaussian(np.zeros((4, 2)), 1.0))
    refused("is for 2 labels, not 3", near=pt.DenseGaussian(compatibility=np.eye(2)))
    refused("normalisation must be one of", near=pt.DenseGaussian(normalisation="none"))
    bare = [pt.Example(e.graph, {"node": e.features["node"], "near": e.features["near"]}, e.labels) for e in examples]
    refused("needs features of all variables", given=bare)
    with pytest.raises(pt.PotentiaError, match=r"has features '(near|alike)', which no region"):
        pt.CRF({"node": pt.Linear()}).fit(examples)
    with pytest.raises(pt.PotentiaError, match="takes features and a weight"):
        pt.DenseGaussian(np.zeros((3, 2)))
    mixed = pt.Graph([2, 3], {"node": [[0], [1]]})
    with pytest.raises(pt.PotentiaError, match="tables of different shapes"):
        pt.CRF({"alike": pt.DenseGaussian(), "node": pt.Linear()}).fit(
            [pt.Example(mixed, {"alike": np.zeros((2, 1))}, [0, 1])]
        )

"""The structural SVM: kernels against plain twins, solvers against a generic one, options and errors."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.preprocessing import PolynomialFeatures

import potentia as pt
from data_sets import DATA, needs
from potentia.kernels.frank_wolfe import assemble, maximise_on_simplex
from potentia.learn import margin_problem, max_margin
from potentia.learn.margin_problem import AnyOracle, ChainOracle
from potentia_studies import public_sets

PRECISE = {"tol": 1e-6, "iterations": 2000}


def labellings(graph):
    return np.array(list(itertools.product(*(range(n) for n in graph.n_states))))


def scores_of(crf, example, y):
    """F(y) by looking every region's table up."""
    total = 0.0
    for kind, tables in crf.theta(example).items():
        for table, scope in zip(tables, example.graph.scopes[kind], strict=True):
            total += table[tuple(y[scope])]
    return total


def hamming(example, y):
    weights = np.ones(len(y)) if example.weights is None else example.weights
    return float(weights @ (y != example.labels))


def objective(crf, examples, delta=hamming):
    """ridge / 2 |w|^2 + mean loss + penalties / n, all labellings compared."""
    losses = [
        max(delta(e, y) + scores_of(crf, e, y) for y in labellings(e.graph)) - scores_of(crf, e, e.labels)
        for e in examples
    ]
    tables = [p.table_ for p in crf.potentials_.values() if hasattr(p, "table_")]
    square = sum(float((t * t).sum()) for t in tables)
    penalties = sum(p.penalty() for p in crf.potentials_.values())
    return crf.learner.ridge / 2 * square + (sum(losses) + penalties) / len(examples)


def indicator_features(example, y, with_edges):
    """phi(y) for Linear() nodes and Constant() pairs and triples: what the parameters multiply."""
    x = np.hstack([example.features["node"], np.ones((len(y), 1))])
    node = np.zeros((x.shape[1], int(example.graph.n_states[0])))
    np.add.at(node.T, y, x)
    parts = [node.ravel()]
    for kind in with_edges:
        order = example.graph.scopes[kind].shape[1] or 2
        table = np.zeros((int(example.graph.n_states[0]),) * order)
        for scope in example.graph.scopes[kind]:
            table[tuple(y[scope])] += 1
        parts.append(table.ravel())
    return np.concatenate(parts)


def quadratic_program(examples, ridge, kinds=("edge",)):
    """The least objective over w and slacks with a constraint for every labelling, by SciPy's SLSQP."""
    rows, offsets, owner = [], [], []
    for k, e in enumerate(examples):
        truth = indicator_features(e, e.labels, kinds)
        for y in labellings(e.graph):
            rows.append(truth - indicator_features(e, y, kinds))
            offsets.append(hamming(e, y))
            owner.append(k)
    a, b, n = np.array(rows), np.array(offsets), len(examples)
    slack = np.eye(n)[owner]
    d = a.shape[1]
    matrix = np.hstack([a, slack])

    def value(v):
        return ridge / 2 * v[:d] @ v[:d] + v[d:].mean()

    def slope(v):
        return np.concatenate([ridge * v[:d], np.full(n, 1 / n)])

    start = np.concatenate([np.zeros(d), [b[np.equal(owner, k)].max() for k in range(n)]])
    found = minimize(
        value, start, jac=slope, method="SLSQP", options={"ftol": 1e-12, "maxiter": 500},
        constraints={"type": "ineq", "fun": lambda v: matrix @ v - b, "jac": lambda v: matrix},
    )  # fmt: skip
    assert found.success
    return found.fun


def make(graph, n=5, d=2, seed=0, states=2):
    rng = np.random.default_rng(seed)
    return [
        pt.Example(graph, {"node": rng.normal(size=(graph.n_variables, d))}, rng.integers(0, states, graph.n_variables))
        for _ in range(n)
    ]  # fmt: skip


def words(n=8, states=3, seed=0, edge_features=False):
    """Chains of one to five variables."""
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(n):
        length = int(rng.integers(1, 6))
        features = {"node": rng.normal(size=(length, 3))}
        if edge_features:
            features["edge"] = rng.normal(size=(length - 1, 2))
        graph = pt.Graph.chain(length, n_states=states)
        examples.append(pt.Example(graph, features, rng.integers(0, states, length)))
    return examples


def triple():
    regions = {"node": [[0], [1], [2]], "edge": [[0, 1]], "triple": [[0, 1, 2]]}
    return pt.Graph([2, 2, 2], regions)


# -- kernels ---------------------------------------------------------------------------------------------------


def test_a_program_on_the_simplex_is_solved():
    rng = np.random.default_rng(1)
    for n in (1, 2, 7):
        root, linear = rng.normal(size=(n, 4)), rng.normal(size=n)
        x = np.zeros(n)
        x[0] = 1.0
        maximise_on_simplex(linear, root @ root.T, x, 1e-10, 10_000)
        slope = linear - root @ (root.T @ x)
        assert x.min() >= 0
        assert x.sum() == pytest.approx(1)
        # optimal: no entry's slope exceeds the weighted mean
        assert slope.max() - slope @ x <= 1e-9


# -- solvers against a generic one -----------------------------------------------------------------------------

GRAPHS = {
    "chain": pt.Graph.chain(3, n_states=2),
    "loop": pt.Graph.complete(3, n_states=2),
    "grid": pt.Graph.grid((2, 2), n_states=2),
    "triple": triple(),
}


@pytest.mark.parametrize("solver", ["frank_wolfe", "one_slack"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_objective_is_that_of_a_generic_solver(name, solver):
    examples = make(GRAPHS[name])
    kinds = [k for k in GRAPHS[name].kinds if k != "node"]
    potentials = {"node": pt.Linear(ridge=0.0), **{k: pt.Constant() for k in kinds}}
    crf = pt.CRF(potentials, pt.MaxMargin(ridge=0.05, solver=solver, **PRECISE)).fit(examples)
    last = crf.history_[-1]
    assert last["gap"] <= 1e-6 * last["objective"]
    assert last["objective"] == pytest.approx(quadratic_program(examples, 0.05, kinds), rel=1e-5)
    assert objective(crf, examples) == pytest.approx(last["objective"], rel=1e-9)


def test_relaxed_answers_bound_the_problem_from_above():
    examples = make(GRAPHS["loop"], n=6, seed=3)
    potentials = {"node": pt.Linear(ridge=0.0), "edge": pt.Constant()}
    values = {}
    for name, oracle in (("exact", None), ("relaxed", pt.LinearProgram())):
        for solver in ("frank_wolfe", "one_slack"):
            learner = pt.MaxMargin(ridge=0.05, inference=oracle, solver=solver, tol=1e-2, iterations=500)
            values[name, solver] = pt.CRF(potentials, learner).fit(examples).history_[-1]["objective"]
    assert values["relaxed", "frank_wolfe"] == pytest.approx(values["relaxed", "one_slack"], rel=1e-2)
    assert values["relaxed", "one_slack"] >= values["exact", "one_slack"] * (1 - 1e-2)


def test_on_a_tree_the_relaxation_is_exact():
    examples = make(pt.Graph.tree([-1, 0, 0, 1], n_states=2), n=5)
    potentials = {"node": pt.Linear(), "edge": pt.Constant()}
    found = [
        pt.CRF(potentials, pt.MaxMargin(ridge=0.1, inference=oracle, solver="one_slack", **PRECISE)).fit(examples)
        for oracle in (pt.Exact(), pt.LinearProgram())
    ]
    assert found[0].history_[-1]["objective"] == pytest.approx(found[1].history_[-1]["objective"], rel=1e-5)


def test_an_approximate_oracle_trains_too():
    examples = make(pt.Graph.grid((3, 3), n_states=2), n=6)
    potentials = {"node": pt.Linear(), "edge": pt.Constant()}
    oracle = pt.Smoothed(epsilon=0.01, iterations=200)
    found = [
        pt.CRF(potentials, pt.MaxMargin(ridge=0.1, inference=o, tol=0, iterations=30)).fit(examples)
        for o in (oracle, None)
    ]
    assert found[0].inference_ is oracle
    assert found[0].history_[-1]["objective"] == pytest.approx(found[1].history_[-1]["objective"], rel=1e-2)


def test_few_slots_still_converge(monkeypatch):
    monkeypatch.setattr(max_margin, "_SLOTS", 2)
    examples = words(states=2)
    learner = pt.MaxMargin(ridge=0.05, tol=1e-3, iterations=3000)
    crf = pt.CRF({"node": pt.Linear(ridge=0.0), "edge": pt.Constant()}, learner).fit(examples)
    assert crf.history_[-1]["objective"] == pytest.approx(quadratic_program(examples, 0.05), rel=1e-3)


@pytest.mark.parametrize("solver", ["frank_wolfe", "one_slack"])
def test_the_dual_rises_and_the_gap_closes(solver):
    learner = pt.MaxMargin(ridge=0.02, solver=solver, **PRECISE)
    history = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(words(n=12)).history_
    dual = np.array([row["dual"] for row in history])
    assert np.all(np.diff(dual) >= -1e-9)
    assert min(row["gap"] for row in history) >= -1e-9
    assert [row["iteration"] for row in history] == list(range(1, len(history) + 1))


# -- the kernel for chains is the generic path -----------------------------------------------------------------


def random_delta(example):
    """A custom Delta on variables and pairs, without ties."""
    rng = np.random.default_rng(len(example.labels))
    n, L = example.graph.n_variables, int(example.graph.n_states[0])
    node, edge = rng.random((n, L)), rng.random((n - 1, L, L))
    node[range(n), example.labels] = 0.0
    return {"node": node, "edge": edge} if n > 1 else {"node": node}


@pytest.mark.parametrize("edge", [pt.Constant(), pt.Linear(), pt.Zero()], ids=["constant", "linear", "zero"])
def test_chain_kernel_equals_the_generic_path(edge, monkeypatch):
    # steps equalise scores, and then rounding decides which labelling is best: compare before that matters
    monkeypatch.setattr(max_margin, "_FEW", 1)
    monkeypatch.setattr(AnyOracle, "revisits", 1)
    monkeypatch.setattr(ChainOracle, "revisits", 1)
    examples = words(edge_features=isinstance(edge, pt.Linear))
    found = []
    for batch in (None, 1):
        learner = pt.MaxMargin(ridge=0.05, iterations=4, tol=0, batch=batch, delta=random_delta)
        crf = pt.CRF({"node": pt.Linear(), "edge": edge}, learner).fit(examples)
        found.append(([row["objective"] for row in crf.history_], crf.potentials_["node"].table_))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-9)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-9)


def test_large_batches_reach_the_same_optimum():
    examples = words(n=10)
    values = []
    for batch in (None, 1, 4, 100):
        learner = pt.MaxMargin(ridge=0.05, batch=batch, **PRECISE)
        crf = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(examples)
        values.append(crf.history_[-1]["objective"])
    np.testing.assert_allclose(values, values[0], rtol=2e-6)


# -- what the objective is -------------------------------------------------------------------------------------


def test_the_potentials_own_ridge_adds_to_the_learners():
    examples = words(states=2)
    potentials = {"node": pt.Linear(ridge=0.7), "edge": pt.Constant(ridge=0.3)}
    crf = pt.CRF(potentials, pt.MaxMargin(ridge=0.05, **PRECISE)).fit(examples)
    assert objective(crf, examples) == pytest.approx(crf.history_[-1]["objective"], rel=1e-9)
    lighter = pt.CRF({"node": pt.Linear(ridge=0.0), "edge": pt.Constant()}, pt.MaxMargin(ridge=0.05, **PRECISE))
    assert lighter.fit(examples).history_[-1]["objective"] < crf.history_[-1]["objective"]


@pytest.mark.parametrize(
    "node",
    [pt.Linear(intercept=False), pt.Linear(transformer=PolynomialFeatures(2, include_bias=False)), pt.Constant()],
    ids=["no intercept", "expanded", "constant"],
)
def test_every_linear_potential_is_trained(node):
    examples = words(states=2, n=6)
    crf = pt.CRF({"node": node, "edge": pt.Constant()}, pt.MaxMargin(ridge=0.05, **PRECISE)).fit(examples)
    assert objective(crf, examples) == pytest.approx(crf.history_[-1]["objective"], rel=1e-9)


class Squares(pt.extend.Potential):
    """f(x) = [x, x^2, 1] T: a custom class that is linear in its parameters."""

    def _begin(self, problem):
        self.table_ = np.zeros((2 * problem.n_features + 1, problem.n_outputs))

    def _fit(self, problem):
        raise AssertionError("MaxMargin sets the table itself.")

    def _scores(self, x):
        return self.design(x) @ self.table_

    def design(self, x):
        return np.hstack([x, np.square(x), np.ones((len(x), 1))])

    def own_ridge(self, n_columns):
        return np.zeros(n_columns)

    def set_table(self, table):
        self.table_ = np.array(table)


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_a_custom_linear_potential_is_trained_as_a_built_in_one():
    examples = words()
    expanded = [
        pt.Example(e.graph, {**e.features, "node": np.hstack([e.features["node"], e.features["node"] ** 2])}, e.labels)
        for e in examples
    ]
    learner = pt.MaxMargin(ridge=0.1, iterations=20)
    own = pt.CRF({"node": Squares(), "edge": pt.Constant()}, learner).fit(examples)
    built_in = pt.CRF({"node": pt.Linear(ridge=0.0), "edge": pt.Constant()}, learner).fit(expanded)
    np.testing.assert_allclose(own.potentials_["node"].table_, built_in.potentials_["node"].table_, atol=1e-9)
    assert own.score(examples) == built_in.score(expanded)


def test_sparse_features_are_dense_ones():
    from scipy import sparse

    dense = words(n=6)
    thin = [pt.Example(e.graph, {"node": sparse.csr_array(e.features["node"])}, e.labels) for e in dense]
    potentials = {"node": pt.Linear(), "edge": pt.Constant()}
    a, b = (pt.CRF(potentials, pt.MaxMargin(tol=1e-4, iterations=500)).fit(e) for e in (dense, thin))
    np.testing.assert_allclose(a.potentials_["node"].table_, b.potentials_["node"].table_, atol=1e-10)


def test_weights_weigh_mistakes():
    examples = [
        pt.Example(e.graph, e.features, e.labels, np.linspace(0.5, 2, len(e.labels))) for e in words(states=2, n=5)
    ]
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, pt.MaxMargin(ridge=0.05, **PRECISE)).fit(examples)
    assert objective(crf, examples) == pytest.approx(crf.history_[-1]["objective"], rel=1e-9)


def test_hidden_variables_are_left_out():
    graph = pt.Graph.chain(4, n_states=2)
    whole = make(graph, n=5)
    hidden = [pt.Example(e.graph, e.features, np.append(e.labels[:3], -1)) for e in whole]
    shorter = pt.Graph.chain(3, n_states=2)
    cut = [pt.Example(shorter, {"node": e.features["node"][:3]}, e.labels[:3]) for e in whole]
    potentials = {"node": pt.Linear(), "edge": pt.Constant()}
    a, b = (pt.CRF(potentials, pt.MaxMargin(ridge=0.05, **PRECISE)).fit(e) for e in (hidden, cut))
    np.testing.assert_allclose(a.potentials_["node"].table_, b.potentials_["node"].table_, atol=1e-9)


def test_with_nothing_to_learn_the_loss_is_delta():
    crf = pt.CRF({"node": pt.Zero(), "edge": pt.Zero()}, pt.MaxMargin()).fit(words(n=4))
    lengths = [len(e.labels) for e in words(n=4)]
    assert crf.history_[-1]["objective"] == pytest.approx(np.mean(lengths))
    assert crf.history_[-1]["gap"] == pytest.approx(0)


# -- the estimator around it -----------------------------------------------------------------------------------


def test_predictions_are_best_labellings_unless_told_otherwise():
    examples = words(states=2)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, pt.MaxMargin(ridge=0.05)).fit(examples)
    for e, found in zip(examples, crf.predict(examples), strict=True):
        best = max(scores_of(crf, e, y) for y in labellings(e.graph))
        assert scores_of(crf, e, found) == pytest.approx(best)
    marginals = crf.predict_marginals(examples)
    crf.decode = "mpm"
    for m, found in zip(marginals, crf.predict(examples), strict=True):
        np.testing.assert_array_equal(m.argmax(axis=1), found)


@pytest.mark.parametrize("solver", ["frank_wolfe", "one_slack"])
def test_a_fit_can_be_resumed(solver, tmp_path):
    examples = words()
    potentials = {"node": pt.Linear(), "edge": pt.Constant()}
    short, long = (pt.MaxMargin(ridge=0.02, solver=solver, iterations=n, tol=0, track_error=True) for n in (3, 7))
    whole = pt.CRF(potentials, long).fit(examples)
    pt.CRF(potentials, short).fit(examples, checkpoint=tmp_path / "state")
    resumed = pt.CRF(potentials, long).fit(examples, checkpoint=tmp_path / "state")
    assert len(resumed.history_) == 7
    for a, b in zip(whole.history_, resumed.history_, strict=True):
        assert a["objective"] == pytest.approx(b["objective"], rel=1e-9)
        assert a["train_error"] == b["train_error"]
    with pytest.raises(pt.PotentiaError, match="other options or data"):
        pt.CRF(potentials, long).fit(words(seed=1), checkpoint=tmp_path / "state")


def test_saving_keeps_the_learner_and_its_oracle(tmp_path):
    examples = make(GRAPHS["loop"])
    learner = pt.MaxMargin(ridge=0.1, inference=pt.LinearProgram(tol=1e-5), solver="one_slack")
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(examples)
    crf.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    assert loaded.learner == learner
    assert loaded.inference_ == learner.inference
    for a, b in zip(crf.predict(examples), loaded.predict(examples), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_callback_stops_and_a_limit_warns():
    potentials = {"node": pt.Linear(), "edge": pt.Constant()}
    crf = pt.CRF(potentials, pt.MaxMargin(ridge=1e-3, tol=1e-9)).fit(words(), callback=lambda h: len(h) == 2)
    assert len(crf.history_) == 2
    with pytest.warns(pt.ConvergenceWarning, match="gap was still .* solver='one_slack' for few large examples"):
        pt.CRF(potentials, pt.MaxMargin(ridge=1e-3, tol=1e-9, iterations=2)).fit(words())
    with pytest.warns(pt.ConvergenceWarning, match="take more iterations or a larger ridge"):
        pt.CRF(potentials, pt.MaxMargin(ridge=1e-3, solver="one_slack", iterations=2)).fit(words())


def test_a_wide_graph_is_refused_with_a_remedy_that_converges():
    train = pt.datasets.denoising(2, size=(12, 12), seed=0)
    potentials = {"node": pt.Linear(), "edge": pt.Linear()}
    with pytest.raises(pt.extend.WidthError, match=r"solver='one_slack' with inference=pt.LinearProgram\(\)"):
        pt.CRF(potentials, pt.MaxMargin(inference=pt.Exact(max_table=100))).fit(train)
    learner = pt.MaxMargin(solver="one_slack", inference=pt.LinearProgram())
    history = pt.CRF(potentials, learner).fit(train).history_
    assert history[-1]["gap"] <= 1e-3 * history[-1]["objective"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": 0.0}, "ridge must be a finite number above 0"),
        ({"ridge": np.nan}, "ridge must be a finite number above 0"),
        ({"solver": "newton"}, "solver must be one of .frank_wolfe., .one_slack."),
        ({"iterations": -1}, "iterations must be a whole number >= 0"),
        ({"tol": -1.0}, "tol must be a finite number"),
        ({"batch": 0}, "batch must be a whole number >= 1"),
        ({"inference": "viterbi"}, "inference must be an inference method, not a str"),
        ({"delta": None}, "delta must be 'hamming' or a function"),
        ({"delta": lambda e: {"node": np.zeros((1, 1))}}, "delta must give a finite table"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(pt.PotentiaError, match=message):
        pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, pt.MaxMargin(**options)).fit(words())


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(pt.PotentiaError, match="potential of 'node' must be linear in its parameters"):
        pt.CRF({"node": pt.Boosting(), "edge": pt.Constant()}, pt.MaxMargin()).fit(words())
    graph = pt.Graph([2, 2], {"edge": [[0, 1]]})
    with pytest.raises(pt.PotentiaError, match="a single-variable region for every variable"):
        pt.CRF({"edge": pt.Constant()}, pt.MaxMargin()).fit([pt.Example(graph, labels=[0, 1])])
    hidden = [pt.Example(pt.Graph.chain(3, n_states=2), labels=[0, 1, -1])]
    learner = pt.MaxMargin(delta=random_delta)
    with pytest.raises(pt.PotentiaError, match="without hidden labels"):
        pt.CRF({"node": pt.Constant(), "edge": pt.Constant()}, learner).fit(hidden)


# -- real data -------------------------------------------------------------------------------------------------


@needs("letters")
def test_letters_in_ten_passes():
    train, test = public_sets.letters(DATA, folds=1), public_sets.letters(DATA, folds=range(2, 5))
    learner = pt.MaxMargin(ridge=10 / len(train), iterations=10, tol=0)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(train)
    assert crf.score(test) >= 0.787
    assert crf.history_[-1]["gap"] < 0.2 * crf.history_[-1]["objective"]


@pytest.mark.parametrize("solver", ["frank_wolfe", "one_slack"])
def test_an_approximate_oracle_never_costs_less_than_the_labels_themselves(solver):
    """Smoothed messages of few iterations find labellings below the truth, whose loss would be negative."""
    data = pt.datasets.denoising(3, (16, 16))
    learner = pt.MaxMargin(inference=pt.Smoothed(0.1), solver=solver, iterations=30)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit(data)
    assert len(crf.history_) > 4
    assert all(row["objective"] >= 0 for row in crf.history_)
    assert abs(crf.history_[-1]["gap"]) <= 1e-3 * crf.history_[-1]["objective"]
    assert crf.score(data) > 0.98


def frustrated(n=6, states=2, seed=0):
    """Complete graphs, whose relaxation has fractional optima: repulsive pairs cannot all be satisfied."""
    edges = list(itertools.combinations(range(6 if states == 2 else 5), 2))
    n_variables = edges[-1][1] + 1
    graph = pt.Graph([states] * n_variables, {"node": np.arange(n_variables)[:, None], "edge": edges})
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(n):
        y = rng.integers(0, states, n_variables)
        features = {"node": rng.normal(size=(n_variables, 3)), "edge": rng.normal(size=(len(edges), 2))}
        features["node"][:, 0] += 0.5 * y
        examples.append(pt.Example(graph, features, y))
    return examples


def relaxed_fit(examples, monkeypatch, check=None, **options):
    """A fit with the linear program, and how many answers were fractional and how many labellings."""
    counts, step = [0, 0], margin_problem.step_batch

    def watched(design, dual, ws, a, b, ptr, entry, share, losses):
        for k in range(b - a):
            counts[int(np.all(share[ptr[k] : ptr[k + 1]] == 1.0))] += 1
        step(design, dual, ws, a, b, ptr, entry, share, losses)
        if check is not None:
            check(design, dual, ws)

    monkeypatch.setattr(margin_problem, "step_batch", watched)
    potentials = {"node": pt.Linear(ridge=0.0), "edge": pt.Linear(ridge=0.0)}
    learner = pt.MaxMargin(**({"ridge": 0.3, "inference": pt.LinearProgram(), "iterations": 30} | options))
    return pt.CRF(potentials, learner).fit(examples), counts


def check_dual(design, dual, ws):
    """m is the sum over the working set and an anonymous member of non-negative shares; w follows from it."""
    assert np.all(ws.weight >= 0)
    assert np.all(ws.weight.sum(axis=1) <= 1 + 1e-9)
    slots = ws.weight.shape[1]
    held = np.zeros_like(dual.m)
    for k, (first, last) in enumerate(itertools.pairwise(ws.region_ptr)):
        entry = ws.entry[slots * first : slots * last].reshape(slots, last - first)
        for j in np.flatnonzero(ws.weight[k]):
            np.add.at(held, entry[j], ws.weight[k, j])
    assert np.all(dual.m - held >= -1e-9)
    per_row = np.add.reduceat(dual.m, design.at)
    np.testing.assert_allclose(per_row, np.add.reduceat(design.truth, design.at), atol=1e-6)
    w = np.empty_like(dual.w)
    assemble(design, dual.m, w)
    np.testing.assert_allclose(dual.w, w, atol=1e-9)


@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_fractional_answers_share_the_dual_with_labellings(states, batch, monkeypatch):
    crf, counts = relaxed_fit(frustrated(states=states), monkeypatch, check_dual, batch=batch, tol=0)
    assert min(counts) > 20
    dual, gap = (np.array([row[name] for row in crf.history_]) for name in ("dual", "gap"))
    assert np.all(np.diff(dual) >= -1e-9)
    assert np.all(gap >= -1e-9)
    assert gap[-1] < 0.05 * crf.history_[-1]["objective"]


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_both_solvers_of_a_fractional_problem_agree(monkeypatch):
    examples = frustrated()
    found, _ = relaxed_fit(examples, monkeypatch, iterations=150, tol=5e-3)
    planes, _ = relaxed_fit(examples, monkeypatch, iterations=200, tol=1e-4, solver="one_slack")
    optimum = planes.history_[-1]["objective"]
    assert found.history_[-1]["objective"] == pytest.approx(optimum, rel=1e-2)
    assert found.history_[-1]["dual"] <= optimum * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_a_relaxed_fit_is_the_same_resumed_and_on_two_threads(tmp_path, monkeypatch):
    examples = frustrated()
    rng = np.random.default_rng(1)
    for k, example in enumerate(examples):
        labels = np.where(rng.random(6) < 0.2, -1, example.labels)
        examples[k] = pt.Example(example.graph, example.features, labels, weights=rng.uniform(0.5, 2.0, 6))
    fits = []
    for name, iterations in (("whole", 8), ("part", 3), ("part", 8)):
        monkeypatch.setenv("POTENTIA_THREADS", "2" if name == "part" else "1")
        potentials = {"node": pt.Linear(), "edge": pt.Linear()}
        learner = pt.MaxMargin(ridge=0.1, inference=pt.LinearProgram(), iterations=iterations, tol=0)
        fits.append(pt.CRF(potentials, learner).fit(examples, checkpoint=tmp_path / name))
    whole, _, resumed = fits
    for a, b in zip(whole.history_, resumed.history_, strict=True):
        assert (a["objective"], a["dual"]) == (b["objective"], b["dual"])
    for kind in ("node", "edge"):
        a, b = (crf.potentials_[kind].table_ for crf in (whole, resumed))
        np.testing.assert_array_equal(a, b)


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_the_relaxation_of_loopy_graphs_converges_in_few_passes():
    train = pt.datasets.denoising(3, size=(10, 10), seed=0)
    learner = pt.MaxMargin(inference=pt.LinearProgram(), iterations=20)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit(train)
    assert crf.history_[-1]["gap"] < 0.2 * crf.history_[-1]["objective"]


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_frank_wolfe_returns_the_best_parameters_it_saw(monkeypatch, tmp_path):
    seen, answers = [], max_margin.answers

    def watched(problem, oracle, w):
        found = answers(problem, oracle, w)
        seen.append(0.5 * float(problem.eta @ (w * w)) + float(found[2].mean()))
        return found

    monkeypatch.setattr(max_margin, "answers", watched)
    examples = words(n=12, states=4)
    potentials = {"node": pt.Linear(ridge=0.0), "edge": pt.Constant()}
    learner = pt.MaxMargin(ridge=1e-4, iterations=4, tol=0)
    crf = pt.CRF(potentials, learner).fit(examples, checkpoint=tmp_path / "state")
    assert min(seen) < seen[-1]
    assert crf.history_[-1]["objective"] == min(seen)
    assert objective(crf, examples) == pytest.approx(min(seen), rel=1e-9)
    again = pt.CRF(potentials, learner).fit(examples, checkpoint=tmp_path / "state")
    assert objective(again, examples) == objective(crf, examples)


@pytest.mark.parametrize("solver", ["frank_wolfe", "one_slack"])
def test_a_fit_without_any_loss_ends_at_once(solver):
    graph = pt.Graph.chain(4, n_states=1)
    example = pt.Example(graph, {"node": np.ones((4, 2)), "edge": np.ones((3, 1))}, np.zeros(4, dtype=int))
    learner = pt.MaxMargin(inference=pt.Exact(), solver=solver)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit([example])
    assert [(row["objective"], row["gap"]) for row in crf.history_] == [(0.0, 0.0)]
    assert crf.converged_

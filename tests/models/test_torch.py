"""`pt.torch.CRFLayer`: gradients by differences, twins in plain PyTorch, and how autograd uses it."""

import copy
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import potentia as pt
from potentia import PotentiaError
from potentia.gradients.losses import LOSSES
from reference import labellings
from zoo import problems, zoo

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the operations of the twins are too small to share
from torch_twin import MessagePassingTwin, enumerated, mean_field  # noqa: E402

SOFT = [p for p in problems() if not p.clamped and p.theta and p.name not in ("huge", "huge_chain", "tiny")]
FINITE = [p for p in SOFT if not p.has_forbidden]


def tensors(problem, dtype=torch.float64, requires_grad=True):
    """theta as tensors, lists where the problem has lists."""

    def one(table):
        return torch.tensor(table, dtype=dtype, requires_grad=requires_grad)

    return {
        kind: one(t) if isinstance(t, np.ndarray) else [one(table) for table in t] for kind, t in problem.theta.items()
    }


def leaves(theta):
    return [t for given in theta.values() for t in ([given] if torch.is_tensor(given) else given)]


def gradcheck(theta, function, fast_mode=True):
    """torch.autograd.gradcheck of a function of theta, whose kinds are one input each."""
    kinds = [kind for kind, t in theta.items() if len(t)]

    def rebuilt(kind, flat):
        if torch.is_tensor(theta[kind]):
            return flat.reshape(theta[kind].shape)
        parts = torch.split(flat, [t.numel() for t in theta[kind]])
        return [part.reshape(t.shape) for part, t in zip(parts, theta[kind], strict=True)]

    flat = [torch.cat([t.detach().ravel() for t in theta[kind]]).requires_grad_() for kind in kinds]
    return torch.autograd.gradcheck(
        lambda *given: function({k: rebuilt(k, t) for k, t in zip(kinds, given, strict=True)}),
        flat,
        fast_mode=fast_mode,
    )


def all_marginals(layer, theta):
    return torch.cat([mu.ravel() for mu in leaves(layer(theta))])


def few_iterations(problem):
    """Methods stopped before anything has converged."""
    yield pt.TRW(iterations=3, tol=0)
    yield pt.Smoothed(0.7, iterations=3, tol=0, schedule="sequential")
    yield pt.LoopyBP(iterations=3, tol=0, damping=0.4)
    if not problem.has_forbidden:
        yield pt.MeanField(iterations=3, tol=0)
    if problem.graph.max_order > 2:
        yield pt.Kikuchi(iterations=3, tol=0, damping=0.3, schedule="random")
    if problem.is_forest and problem.pairwise:
        yield pt.Exact()


def converged(problem, gradient):
    """Methods at a fixed point that the gradient method applies to."""
    yield pt.TRW(iterations=600, tol=1e-12)
    yield pt.Smoothed(0.8, iterations=600, tol=1e-12)
    if problem.is_forest:
        yield pt.LoopyBP(iterations=100, tol=1e-12)
    if problem.is_junction:
        yield pt.Kikuchi(iterations=600, tol=1e-12, damping=0.3)
    if gradient == "perturbation" or (problem.is_forest and problem.pairwise):
        yield pt.Exact()
    if gradient != "implicit" and not problem.name.startswith("ties"):  # uniform there, an unstable fixed point
        yield pt.MeanField(iterations=2000, tol=1e-12)


@pytest.mark.parametrize("problem", SOFT, ids=str)
def test_gradcheck_of_truncated_inference(problem):
    theta = tensors(problem)
    for inference in few_iterations(problem):
        layer = pt.torch.CRFLayer(problem.graph, inference)
        assert gradcheck(theta, lambda t, layer=layer: all_marginals(layer, t))


@pytest.mark.parametrize("name", ["grid", "mixed", "shared_table", "hard_chain", "nested"])
def test_every_entry_of_the_jacobian(name):
    problem = zoo()[name]
    for inference in few_iterations(problem):
        layer = pt.torch.CRFLayer(problem.graph, inference)
        assert gradcheck(tensors(problem), lambda t, layer=layer: all_marginals(layer, t), fast_mode=False)


@pytest.mark.parametrize("gradient", ["backpropagation", "perturbation", "implicit"])
@pytest.mark.parametrize("problem", FINITE, ids=str)
def test_gradcheck_at_a_fixed_point(problem, gradient):
    theta = tensors(problem)
    for inference in converged(problem, gradient):
        layer = pt.torch.CRFLayer(problem.graph, inference, gradient)
        assert gradcheck(theta, lambda t, layer=layer: all_marginals(layer, t))


@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in ("likelihood", "contrastive_divergence")])
def test_gradcheck_of_every_loss(loss):
    rng = np.random.default_rng(0)
    weights = torch.tensor(rng.random(9))
    for name in ("grid", "mixed", "shared_table"):
        problem = zoo()[name]
        y = rng.integers(problem.graph.n_states)
        y[1] = -1
        theta, n = tensors(problem), problem.graph.n_variables
        # values of bounds have their marginals for a gradient at a fixed point only
        steps = 600 if loss.startswith("surrogate") else 3
        layer = pt.torch.CRFLayer(problem.graph, pt.TRW(iterations=steps, tol=0))
        for reduction in ("sum", "mean"):
            options = (torch.tensor(y), loss, weights[:n], reduction)
            assert gradcheck(theta, lambda t, layer=layer, options=options: layer.loss(t, *options))


@pytest.mark.parametrize("name", ["grid", "grid_diagonal", "chain", "complete", "shared_table", "grid3d"])
def test_message_passing_equals_the_twin(name):
    problem = zoo()[name]
    graph, theta = problem.graph, tensors(problem)
    n, m = graph.n_variables, len(graph.scopes["edge"])
    for inference in (
        pt.TRW(iterations=7, tol=0),
        pt.TRW(rho=0.4, iterations=7, tol=0),
        pt.LoopyBP(iterations=7, tol=0),
        pt.Smoothed(0.6, iterations=7, tol=0),
    ):
        counting = inference.counting_numbers(graph)
        twin = MessagePassingTwin(graph, counting[:n], counting[n : n + m])
        mu = pt.torch.CRFLayer(graph, inference)(theta)
        expected = twin(theta["node"], theta["edge"], 7, uniform=inference.uniform_start)
        agree((mu["variables"], mu["edge"]), expected, leaves(theta))


@pytest.mark.parametrize("name", ["grid", "grid_diagonal", "chain", "complete", "shared_table"])
def test_mean_field_equals_the_twin(name):
    problem = zoo()[name]
    theta = tensors(problem)
    mu = pt.torch.CRFLayer(problem.graph, pt.MeanField(iterations=5, tol=0))(theta)
    want = mean_field(problem.graph, theta["node"], theta["edge"], 5)
    agree((mu["variables"], mu["edge"]), want, leaves(theta))


@pytest.mark.parametrize("problem", [p for p in SOFT if p.is_forest and p.pairwise], ids=str)
def test_exact_inference_equals_enumeration(problem):
    theta = tensors(problem)
    mu = pt.torch.CRFLayer(problem.graph, pt.Exact())(theta)
    graph = problem.graph
    own = {
        k: t[None].expand(len(graph.scopes[k]), *t.shape)
        if torch.is_tensor(t) and t.ndim == graph.scopes[k].shape[1]
        else t
        for k, t in theta.items()
    }
    log_z, want = enumerated(graph, own, labellings(graph))
    kinds = [k for k in graph.kinds if len(graph.scopes[k])]
    agree([table for k in kinds for table in mu[k]], [table for k in kinds for table in want[k]], leaves(theta))
    y = np.array(pt.Exact().maximise(pt.Exact().infer(graph, problem.theta).scores))
    loss = pt.torch.CRFLayer(graph, pt.Exact()).loss(theta, y, "likelihood", reduction="sum")
    score = sum(own[k][r][tuple(y[row])] for k in own for r, row in enumerate(graph.scopes[k]))
    agree([loss], [log_z - score], leaves(theta))


def agree(found, want, inputs, atol=1e-10):
    """Values and the gradients of a random projection of them are equal."""
    rng = torch.Generator().manual_seed(0)
    total = [0.0, 0.0]
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)
        direction = torch.randn(a.shape, generator=rng, dtype=a.dtype)
        total = [total[0] + (a * direction).sum(), total[1] + (b * direction).sum()]
    one, other = (
        torch.autograd.grad(t, inputs, allow_unused=True, materialize_grads=True, retain_graph=True) for t in total
    )
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, torch.nan_to_num(b), atol=atol, rtol=0)


def grid_case(dtype=torch.float64, n_states=3):
    rng = torch.Generator().manual_seed(1)
    graph = pt.Graph.grid((4, 5), n_states=n_states)
    node = torch.randn(20, n_states, dtype=dtype, generator=rng, requires_grad=True)
    edge = torch.randn(31, n_states, n_states, dtype=dtype, generator=rng, requires_grad=True)
    return graph, {"node": node, "edge": edge}, torch.randint(n_states, (20,), generator=rng)


def test_the_loss_is_that_of_loss_and_gradient():
    graph, theta, y = grid_case()
    weights = torch.rand(20, dtype=torch.float64)
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=5, tol=0))
    y[:3] = -1
    for name in ("univariate_logistic", "clique_quadratic", "pseudolikelihood"):
        arrays = {kind: t.detach().numpy() for kind, t in theta.items()}
        want, d_theta = pt.loss_and_gradient(name, layer.inference, graph, arrays, y.numpy(), weights=weights.numpy())
        found = layer.loss(theta, y, name, weights, reduction="sum")
        assert found.item() == want
        for kind, d in zip(theta, torch.autograd.grad(found, list(theta.values())), strict=True):
            np.testing.assert_array_equal(d, d_theta[kind])
        mean = layer.loss(theta, y, name, weights)
        assert mean.item() == pytest.approx(want / weights[3:].sum().item())


def test_backward_can_be_repeated_and_its_numbers_do_not_change():
    graph, theta, y = grid_case()
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=5, tol=0))
    for value in (layer(theta)["variables"][:, 0].sum(), layer.loss(theta, y)):
        first = torch.autograd.grad(value, list(theta.values()), retain_graph=True)
        second = torch.autograd.grad(value, list(theta.values()), retain_graph=True)
        value.backward()
        for a, b, leaf in zip(first, second, theta.values(), strict=True):
            torch.testing.assert_close(a, b, atol=0, rtol=0)
            torch.testing.assert_close(a, leaf.grad, atol=0, rtol=0)
            leaf.grad = None
        with pytest.raises(RuntimeError, match="second time"):
            value.backward()


def test_second_derivatives_are_refused():
    graph, theta, y = grid_case()
    for value in (pt.torch.CRFLayer(graph)(theta)["edge"].sum(), pt.torch.CRFLayer(graph).loss(theta, y)):
        (slope,) = torch.autograd.grad(value**2, theta["node"], create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()


def test_changes_in_place_before_backward_are_noticed():
    graph, theta, _ = grid_case()
    layer = pt.torch.CRFLayer(graph)
    node = theta["node"] * 1.0
    mu = layer({**theta, "node": node})["variables"]
    node.mul_(2.0)
    with pytest.raises(RuntimeError, match="inplace"):
        mu[0, 0].backward()
    mu = layer(theta)["variables"]
    with pytest.raises(RuntimeError, match="inplace"):
        mu.mul_(2.0)[0, 0].backward()


def test_without_gradients_any_inference_will_do_and_values_are_the_same():
    graph, theta, y = grid_case()
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=5, tol=0))
    with torch.no_grad():
        mu, loss = layer(theta), layer.loss(theta, y)
    assert not mu["edge"].requires_grad
    assert not loss.requires_grad
    torch.testing.assert_close(mu["edge"], layer(theta)["edge"].detach(), atol=0, rtol=0)
    assert loss.item() == layer.loss(theta, y).item()
    frozen = {kind: t.detach() for kind, t in theta.items()}
    rigid = pt.torch.CRFLayer(graph, pt.LinearProgram())
    assert rigid(frozen)["variables"].sum().item() == pytest.approx(20)
    assert rigid.loss(frozen, y, "univariate_quadratic").item() > 0
    with pytest.raises(PotentiaError, match="no iterations to differentiate"):
        rigid(theta)
    with pytest.raises(PotentiaError, match="implicit"):
        pt.torch.CRFLayer(graph, pt.MeanField(), "implicit")(theta)


def test_several_threads_get_the_numbers_of_one():
    def work(k, layer, theta, y):
        own = {kind: (t.detach() * (1 + k % 3)).requires_grad_() for kind, t in theta.items()}
        value = layer.loss(own, y) + layer(own)["edge"][:, 0, 0].sum()
        return torch.autograd.grad(value, list(own.values()))

    def case():  # a graph without layouts yet, which the threads then build at once
        graph, theta, y = grid_case()
        return pt.torch.CRFLayer([graph, graph], pt.TRW(iterations=20, tol=0, threads=2)), theta, y

    def twice(layer, theta, y):
        return layer, {kind: torch.cat([t, t]) for kind, t in theta.items()}, torch.cat([y, y])

    one, other = twice(*case()), twice(*case())
    alone = [work(k, *one) for k in range(12)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda k: work(k, *other), range(12)))
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_backward_uses_the_thread_count_of_the_forward_pass(monkeypatch):
    """Perturbation runs inference in backward, maybe in a thread that knows nothing of the caller's choice."""
    from potentia.base.resources import using_threads
    from potentia.inference import messages

    graph, theta, _ = grid_case()
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=50), "perturbation")
    asked, plain = [], messages.thread_count
    monkeypatch.setattr(messages, "thread_count", lambda n: asked.append(n) or plain(n))
    with using_threads(3):
        value = layer(theta)["variables"][0, 0]
    value.backward()
    assert len(asked) > 1
    assert set(asked) == {3}


def test_single_precision_is_the_same_rounded():
    graph, theta, y = grid_case()
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=5, tol=0))
    half = {kind: t.detach().float().requires_grad_() for kind, t in theta.items()}
    wide = {kind: t.detach().double().requires_grad_() for kind, t in half.items()}
    mu, loss = layer(half), layer.loss(half, y)
    assert mu["edge"].dtype == loss.dtype == torch.float32
    torch.testing.assert_close(mu["edge"], layer(wide)["edge"].float())
    for a, b in zip(
        torch.autograd.grad(loss, list(half.values())),
        torch.autograd.grad(layer.loss(wide, y), list(wide.values())),
        strict=True,
    ):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b.float())
    mixed = {"node": half["node"], "edge": wide["edge"]}
    assert layer(mixed)["node"].dtype == torch.float64


def test_a_shared_table_has_the_sum_of_all_gradients():
    graph, theta, y = grid_case()
    table = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=5, tol=0))
    for function in (lambda t: layer.loss(t, y), lambda t: (layer(t)["edge"][:, 0, 1] ** 2).sum()):
        one = torch.autograd.grad(function({**theta, "edge": table}), table)[0]
        other = torch.autograd.grad(function({**theta, "edge": table.expand(31, 3, 3)}), table)[0]
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_forbidden_scores_get_no_gradient_and_no_probability():
    problem = zoo()["forbidden_edges"]
    theta = tensors(problem)
    layer = pt.torch.CRFLayer(problem.graph, pt.TRW(iterations=5, tol=0))
    mu = layer(theta)
    (mu["edge"] ** 2).sum().backward()
    gone = torch.isneginf(theta["edge"])
    assert mu["edge"][gone].abs().max() == 0
    assert theta["edge"].grad[gone].abs().max() == 0
    assert all(torch.isfinite(t.grad).all() for t in theta.values())


def test_kinds_may_be_left_out_and_kinds_without_regions_have_zero_gradients():
    graph, theta, _ = grid_case()
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=5, tol=0))
    zero = {**theta, "edge": torch.zeros(31, 3, 3, dtype=torch.float64)}
    torch.testing.assert_close(layer({"node": theta["node"]})["edge"], layer(zero)["edge"], atol=1e-12, rtol=0)
    assert layer({})["variables"].dtype == torch.get_default_dtype()
    single = pt.Graph.chain(1, n_states=3)
    table = torch.randn(3, 3, requires_grad=True)
    loss = layer.loss({"node": torch.zeros(1, 3), "edge": table}, [0], graph=single)
    assert torch.autograd.grad(loss, table)[0].abs().max() == 0


def test_a_list_of_graphs_is_their_union():
    rng = torch.Generator().manual_seed(2)
    graphs = [pt.Graph.grid((2, 3), n_states=2), pt.Graph.chain(4, n_states=2), pt.Graph.chain(1, n_states=2)]
    node = torch.randn(11, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    edge = torch.randn(10, 2, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    table = torch.randn(2, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.randint(2, (11,), generator=rng)
    y[4] = -1
    weights = torch.rand(11, generator=rng)
    layer = pt.torch.CRFLayer(inference=pt.TRW(iterations=5, tol=0, rho=0.5))
    scale = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for pairs, own in ((edge, [edge[:7], edge[7:], edge[10:]]), (table, [table] * 3)):
        theta = {"node": node, "edge": pairs}
        each = layer.loss(theta, y, weights=weights, reduction="none", graph=graphs)
        total = layer.loss(theta, y, weights=weights, reduction="sum", graph=graphs)
        alone = torch.stack(
            [
                layer.loss({"node": node[a:b], "edge": own[k]}, y[a:b], "univariate_logistic", weights[a:b], "sum", g)
                for k, (g, a, b) in enumerate(zip(graphs, (0, 6, 10), (6, 10, 11), strict=True))
            ]
        )
        agree([total], [each.sum()], [node, pairs], atol=1e-12)
        agree([each, (scale * each).sum()], [alone, (scale * alone).sum()], [node, pairs], atol=1e-12)
    assert layer(theta, graphs)["variables"].shape == (11, 2)
    one = layer.loss({"node": node[:6]}, y[:6], reduction="none", graph=graphs[0])
    assert one.shape == (1,)


def test_the_best_labelling_is_exact_where_inference_is():
    for name in ("chain", "mixed", "hard_chain", "grid"):
        problem = zoo()[name]
        found = pt.torch.CRFLayer(problem.graph, pt.Exact()).map(tensors(problem))
        assert found.dtype == torch.int64
        result = pt.Exact().infer(problem.graph, problem.theta)
        assert result.score(found.numpy()) == pytest.approx(result.score(result.argmax()))


def test_a_layer_can_be_copied_pickled_and_printed():
    graph, theta, _ = grid_case()
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=5, tol=0))
    mu = layer(theta)["variables"]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(theta)["variables"], mu, atol=0, rtol=0)
    assert "TRW" in repr(layer)
    assert list(layer.parameters()) == []


def test_a_network_learns_through_the_layer():
    """Noisy stripes: the weights of a shared table and of a linear map are learned by Adam."""
    torch.manual_seed(0)
    graph = pt.Graph.grid((12, 12), n_states=2)
    y = (torch.arange(144) // 12 // 3) % 2
    x = y[:, None] + 0.9 * torch.randn(144, 1)
    linear, pair = torch.nn.Linear(1, 2), torch.nn.Parameter(torch.zeros(2, 2))
    layer = pt.torch.CRFLayer(graph)
    adam = torch.optim.Adam([*linear.parameters(), pair], lr=0.1)
    losses = []
    for _ in range(40):
        adam.zero_grad()
        losses.append(layer.loss({"node": linear(x), "edge": pair}, y))
        losses[-1].backward()
        adam.step()
    with torch.no_grad():
        joint = (layer.map({"node": linear(x), "edge": pair}) != y).float().mean()
        alone = (linear(x).argmax(1) != y).float().mean()
    assert losses[-1] < 0.6 * losses[0]
    assert joint < 0.5 * alone


def hard_grid():
    """A frustrated grid, on which a few iterations do not converge."""
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((5, 5), n_states=2)
    theta = {"node": rng.normal(size=(25, 2)), "edge": rng.normal(scale=3.0, size=(len(graph.scopes["edge"]), 2, 2))}
    return graph, {kind: torch.tensor(t, requires_grad=True) for kind, t in theta.items()}


def caught_in(gradient, iterations, tol=1e-6, action="always", steps=1, grad=True):
    """Warnings of some steps of training through marginals and through a loss."""
    graph, theta = hard_grid()
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=iterations, tol=tol), gradient)
    with warnings.catch_warnings(record=True) as caught, torch.set_grad_enabled(grad):
        warnings.simplefilter(action, pt.ConvergenceWarning)
        for _ in range(steps):
            found = layer(theta)["variables"][:, 0].sum() + layer.loss(theta, np.zeros(25, dtype=int))
            if grad:
                found.backward()
    return caught


@pytest.mark.parametrize("gradient", ["backpropagation", "implicit", "perturbation"])
def test_gradients_at_a_fixed_point_warn_where_inference_has_not_converged(gradient):
    caught = caught_in(gradient, 3)
    assert len(caught) >= 2
    assert {w.filename for w in caught} == {__file__}
    assert {w.category for w in caught} == {pt.ConvergenceWarning}
    assert "Inference did not converge, which this gradient requires" in str(caught[0].message)
    assert len(caught_in(gradient, 3, action="default", steps=4)) == len({(w.lineno, str(w.message)) for w in caught})
    assert not caught_in(gradient, 500)
    assert not caught_in(gradient, 3, grad=False)


@pytest.mark.parametrize("tol", [0, 1e-6])
def test_truncated_gradients_need_no_convergence(tol):
    assert not caught_in("truncated", 3, tol)


def test_what_only_backward_finds_out_is_said_there():
    graph = pt.Graph.chain(2, n_states=2)
    theta = {"node": torch.tensor([[40.0, 0.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)}
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=200), "perturbation")
    rare = layer(theta)["variables"][0, 1]
    with pytest.warns(pt.ConvergenceWarning, match="too small for finite differences") as caught:
        rare.backward()
    assert {w.filename for w in caught} == {__file__}


# PyTorch's compiler looks at what a frame that it leaves half-way is given, and warns of tensors that are not leaves
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_models_leave_the_layer_out():
    graph, theta, y = grid_case()
    layer = pt.torch.CRFLayer(graph)
    compiled = torch.compile(lambda node, edge: layer.loss({"node": 2 * node, "edge": edge}, y), backend="eager")
    want = layer.loss({"node": 2 * theta["node"], "edge": theta["edge"]}, y)
    assert compiled(theta["node"], theta["edge"]).item() == want.item()


BAD = [
    ({"theta": [1]}, "theta must map kinds"),
    ({"theta": {"node": torch.zeros(20, 3, dtype=torch.int64)}}, "floating-point"),
    ({"theta": {"node": np.zeros((20, 3))}}, "must be a tensor"),
    ({"theta": {"nodes": torch.zeros(20, 3)}}, "names kind 'nodes'"),
    ({"theta": {"node": torch.zeros(20, 2)}}, "expected"),
    ({"theta": {"node": torch.full((20, 3), torch.nan)}}, "NaN"),
    ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels has shape"),
    ({"labels": torch.full((20,), -1)}, "needs a label"),
    ({"reduction": "median"}, "reduction must be"),
    ({"weights": torch.ones(20, requires_grad=True)}, "weights are constants"),
    ({"name": "hinge"}, r"loss must be one of .* not 'hinge'"),
    ({"graph": []}, "at least one Graph"),
    ({"graph": 5}, "a Graph or a list of graphs"),
    ({"graph": [[1]]}, "a Graph or a list of graphs"),
    ({"reduction": "none", "theta": [1]}, "theta must map kinds"),
    ({"reduction": "none", "theta": {"nodes": torch.zeros(20, 3)}}, "names kind 'nodes'"),
    ({"reduction": "none", "theta": {"node": torch.zeros(21, 3)}}, "expected"),
    ({"reduction": "none", "weights": torch.ones(3)}, "weights must hold 20"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_arguments_get_a_sentence(change, sentence):
    graph, theta, y = grid_case()
    given = {"theta": theta, "labels": y, "graph": graph} | change
    with pytest.raises(PotentiaError, match=sentence):
        pt.torch.CRFLayer().loss(**given)


def test_bad_options_get_a_sentence():
    with pytest.raises(PotentiaError, match="graph is missing"):
        pt.torch.CRFLayer()({})
    with pytest.raises(PotentiaError, match="inference must be"):
        pt.torch.CRFLayer(inference="trw")
    with pytest.raises(PotentiaError, match=r"gradient must be one of .* not 'magic'"):
        pt.torch.CRFLayer(gradient="magic")
    graph = pt.Graph([2, 2], {"variables": [[0, 1]]})
    with pytest.raises(PotentiaError, match="collides"):
        pt.torch.CRFLayer(graph)({})


def test_torch_is_imported_on_demand_and_its_absence_gets_a_sentence():
    script = """
import sys
import potentia as pt
assert "torch" not in sys.modules
sys.modules["torch"] = None
for _ in range(2):
    try:
        pt.torch
    except pt.PotentiaError as error:
        print(error)
print(pt.TRW().infer(pt.Graph.grid((3, 3), n_states=2), {}).converged)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    sentence = "PyTorch is not installed: pip install potentia[torch]."
    assert done.stdout.splitlines() == [sentence, sentence, "True"]

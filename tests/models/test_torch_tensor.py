"""The tensor backend of `pt.torch.CRFLayer` beside the kernels: zoo, losses, types, batches, compiled and exported."""

import numpy as np
import pytest

import potentia as pt
from potentia import PotentiaError
from potentia.gradients.losses import LOSSES
from zoo import problems, zoo

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

#: PyTorch's compiler makes an instance of an autograd function, of which PyTorch warns.
IN_COMPILER = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

SOFT = [p for p in problems() if not p.clamped and p.theta and p.name != "tiny"]
WITHOUT = ("likelihood", "saddle_point", "contrastive_divergence")


def tensors(problem, dtype=torch.float64):
    def one(table):
        return torch.tensor(table, dtype=dtype, requires_grad=True)

    return {
        kind: one(t) if isinstance(t, np.ndarray) else [one(table) for table in t] for kind, t in problem.theta.items()
    }


def leaves(tables):
    every = [t for given in tables.values() for t in ([given] if torch.is_tensor(given) else given)]
    return [t for t in every if t.numel()]


def methods(problem):
    yield pt.TRW(iterations=3, tol=0)
    yield pt.LoopyBP(iterations=3, tol=0, damping=0.4)
    yield pt.Smoothed(0.7, iterations=3, tol=0)
    if problem.graph.max_order > 2:
        yield pt.Kikuchi(iterations=3, tol=0, damping=0.3)
    if not problem.has_forbidden:
        yield pt.MeanField(iterations=3, tol=0)


def both(problem, inference, **options):
    return [
        pt.torch.CRFLayer(problem.graph, inference, backend=backend, **options) for backend in ("kernels", "tensor")
    ]


def projected(tables):
    rng = torch.Generator().manual_seed(0)
    return sum((t * torch.randn(t.shape, generator=rng, dtype=t.dtype)).sum() for t in leaves(tables))


def same_gradients(values, inputs, atol=1e-10):
    first, second = (
        torch.autograd.grad(value, own, allow_unused=True, materialize_grads=True)
        for value, own in zip(values, inputs, strict=True)
    )
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-10)


@pytest.mark.parametrize("problem", SOFT, ids=str)
def test_marginals_and_gradients_are_those_of_the_kernels(problem):
    scale = max(np.abs(t[np.isfinite(t)]).max(initial=1.0) for tables in problem.theta.values() for t in tables)
    for inference in methods(problem):
        kernels, tensor = both(problem, inference)
        one, other = tensors(problem), tensors(problem)
        mu, nu = kernels(one), tensor(other)
        assert list(mu) == list(nu)
        for a, b in zip(leaves(mu), leaves(nu), strict=True):
            torch.testing.assert_close(a, b, atol=1e-10 * max(1.0, scale / 10), rtol=0)
        if leaves(one) and scale < 100:
            same_gradients((projected(mu), projected(nu)), (leaves(one), leaves(other)))


@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in WITHOUT])
@pytest.mark.parametrize("name", ["grid", "mixed", "factor_loop", "forbidden_nodes", "hard_chain", "two_edge_kinds"])
def test_losses_with_hidden_labels_and_weights_are_those_of_the_kernels(name, loss):
    problem, rng = zoo()[name], np.random.default_rng(0)
    best = pt.Exact().infer(problem.graph, problem.theta).argmax()
    weights = rng.random(problem.graph.n_variables)
    for hidden, weight in ((False, None), (True, weights)):
        y = best.copy()
        y[-1] = -1 if hidden else y[-1]
        for inference in list(methods(problem))[:: 2 if hidden else 3]:
            one, other = tensors(problem), tensors(problem)
            kernels, tensor = both(problem, inference)
            for reduction in ("mean", "sum"):
                a = kernels.loss(one, y, loss, weight, reduction)
                b = tensor.loss(other, torch.tensor(y), loss, weight, reduction)
                torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
            same_gradients((a, b), (leaves(one), leaves(other)))


@pytest.mark.parametrize("name", ["grid", "mixed", "nested", "shared_table"])
def test_gradcheck(name):
    problem = zoo()[name]
    for inference in methods(problem):
        layer = both(problem, inference)[1]
        theta = tensors(problem)
        kinds = list(theta)

        def marginals(*given, layer=layer, kinds=kinds, theta=theta):
            given, tables = list(given), {}
            for kind in kinds:
                whole = torch.is_tensor(theta[kind])
                tables[kind] = given.pop(0) if whole else [given.pop(0) for _ in theta[kind]]
            return torch.cat([t.ravel() for t in leaves(layer(tables))])

        assert torch.autograd.gradcheck(marginals, leaves(theta), fast_mode=True)


def test_a_batch_equals_its_parts():
    rng = torch.Generator().manual_seed(0)
    graphs = [pt.Graph.grid((3, 4), n_states=3), pt.Graph.chain(5, n_states=3), pt.Graph.grid((2, 2), n_states=3)]
    n, m = [g.n_variables for g in graphs], [len(g.scopes["edge"]) for g in graphs]
    node = torch.randn(sum(n), 3, generator=rng, dtype=torch.float64)
    edge = torch.randn(sum(m), 3, 3, generator=rng, dtype=torch.float64)
    layer = pt.torch.CRFLayer(graphs, pt.TRW(iterations=4, tol=0), backend="tensor")
    whole = layer({"node": node, "edge": edge})
    labels = torch.zeros(sum(n), dtype=torch.int64)
    each = layer.loss({"node": node, "edge": edge}, labels, reduction="none")
    for k, (a, b) in enumerate(zip(node.split(n), edge.split(m), strict=True)):
        part = layer({"node": a, "edge": b}, graph=graphs[k])
        torch.testing.assert_close(whole["node"].split(n)[k], part["node"], atol=1e-12, rtol=0)
        own = layer.loss({"node": a, "edge": b}, torch.zeros(n[k], dtype=torch.int64), reduction="sum", graph=graphs[k])
        torch.testing.assert_close(each[k], own)


def test_unequal_degrees_and_tolerance():
    star = pt.Graph([2] * 40, {"node": np.arange(40)[:, None], "edge": [[0, k] for k in range(1, 39)] + [[38, 39]]})
    rng = np.random.default_rng(0)
    theta = {"node": torch.tensor(rng.normal(size=(40, 2))), "edge": torch.tensor(rng.normal(size=(39, 2, 2)))}
    for inference in (pt.LoopyBP(iterations=4, tol=0), pt.LoopyBP(iterations=200, tol=1e-9)):
        a, b = (pt.torch.CRFLayer(star, inference, backend=k)(theta) for k in ("kernels", "tensor"))
        torch.testing.assert_close(a["edge"], b["edge"], atol=1e-9, rtol=0)


def test_segments_run_again_give_the_same_gradient():
    graph = pt.Graph.grid((5, 6), n_states=3)
    rng = torch.Generator().manual_seed(0)
    node = torch.randn(30, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    values = []
    for memory in (2**29, 0):
        gradient = pt.gradients.truncated.Truncated(memory=memory)
        layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=9, tol=0), gradient, backend="tensor")
        values.append(layer({"node": node, "edge": torch.eye(3, dtype=torch.float64)})["variables"][:, 0].sum())
    same_gradients(values, ([node], [node]), atol=1e-13)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_other_types_compute_in_single_precision_at_least(dtype, atol):
    problem = zoo()["grid_diagonal"]
    kernels, tensor = both(problem, pt.TRW(iterations=5, tol=0))
    narrow = tensors(problem, dtype)
    wide = {kind: t.detach().double() for kind, t in narrow.items()}
    mu = tensor.to(dtype)(narrow)
    assert mu["edge"].dtype == dtype
    torch.testing.assert_close(mu["edge"].double(), kernels(wide)["edge"], atol=atol, rtol=0)


def test_second_derivatives_of_tensor_operations():
    problem = zoo()["grid"]
    theta = tensors(problem)
    layer = both(problem, pt.TRW(iterations=2, tol=0))[1]

    def value(node):
        return layer({**theta, "node": node})["variables"][:, 0].square().sum()

    assert torch.autograd.gradgradcheck(value, theta["node"], fast_mode=True)


def test_meta_tensors_have_the_shapes():
    graph = pt.Graph.grid((4, 5), n_states=3)
    layer = pt.torch.CRFLayer(graph, backend="tensor").to("meta")
    mu = layer({"node": torch.empty(20, 3, device="meta"), "edge": torch.empty(3, 3, device="meta")})
    assert mu["edge"].shape == (31, 3, 3)
    assert mu["variables"].shape == (20, 3)
    auto = pt.torch.CRFLayer(graph)({"node": torch.empty(20, 3, device="meta")})
    assert auto["variables"].device.type == "meta"


class Scores(torch.nn.Module):
    """A layer with its scores, for programs that take and give tensors."""

    def __init__(self, graph, inference):
        super().__init__()
        self.layer = pt.torch.CRFLayer(graph, inference, backend="tensor")

    def forward(self, node, edge):
        return self.layer({"node": node, "edge": edge})["variables"]


@pytest.mark.slow
@IN_COMPILER
@pytest.mark.parametrize("inference", [pt.TRW(iterations=2, tol=0), pt.MeanField(iterations=2, tol=0)], ids=repr)
def test_compiled_without_graph_breaks(inference):
    model = Scores(pt.Graph.grid((3, 3), n_states=2), inference)
    node, edge = torch.randn(9, 2, requires_grad=True), torch.randn(12, 2, 2, requires_grad=True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(node, edge), model(node, edge))
    for a, b in zip(
        torch.autograd.grad(compiled(node, edge)[:, 0].sum(), (node, edge)),
        torch.autograd.grad(model(node, edge)[:, 0].sum(), (node, edge)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@IN_COMPILER
def test_a_loss_is_compiled():
    graph = pt.Graph.grid((3, 3), n_states=2)
    layer = pt.torch.CRFLayer(graph, pt.TRW(iterations=2, tol=0), backend="tensor")
    node, y = torch.randn(9, 2, requires_grad=True), torch.randint(2, (9,))
    compiled = torch.compile(lambda node, y: layer.loss({"node": node}, y), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(node, y), layer.loss({"node": node}, y))


@pytest.mark.slow
@IN_COMPILER
def test_exported():
    model = Scores(pt.Graph([2, 3, 2], {"node": [[0]], "edge": [[0, 2]]}), pt.TRW(iterations=2, tol=0))
    args = torch.randn(1, 2), torch.randn(1, 2, 2)
    program = torch.export.export(model, args)
    other = torch.randn(1, 2), torch.randn(1, 2, 2)
    torch.testing.assert_close(program.module()(*other), model(*other))
    assert not model.state_dict()


REFUSED = [
    ({"inference": pt.Exact()}, "not Exact: use backend='kernels'"),
    ({"inference": pt.TRW(schedule="sequential")}, "schedule='sequential'"),
    ({"inference": pt.Smoothed(0.0)}, "epsilon > 0"),
    ({"gradient": "implicit"}, "gradient='truncated'"),
    ({"backend": "gpu"}, "backend must be one of"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_tensors_cannot_do_is_refused(options, sentence):
    with pytest.raises(PotentiaError, match=sentence):
        pt.torch.CRFLayer(pt.Graph.grid((2, 2), n_states=2), **{"backend": "tensor"} | options)


BAD = [
    ({"theta": [1]}, "theta must map kinds"),
    ({"theta": {"node": torch.zeros(4, 2, dtype=torch.int64)}}, "floating-point"),
    ({"theta": {"nodes": torch.zeros(4, 2)}}, "names kind 'nodes'"),
    ({"theta": {"node": torch.zeros(4, 3)}}, "expected"),
    ({"theta": {"node": [torch.zeros(3)] * 4}}, "4 tables"),
    ({"theta": {"node": torch.full((4, 2), torch.nan)}}, "NaN"),
    ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels has shape"),
    ({"labels": torch.full((4,), -1)}, "needs a label"),
    ({"name": "likelihood"}, "no loss"),
    ({"theta": {"node": torch.full((4, 2), -torch.inf)}}, "forbid"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_arguments_get_a_sentence(change, sentence):
    given = {"theta": {"node": torch.zeros(4, 2)}, "labels": torch.zeros(4, dtype=torch.int64)} | change
    layer = pt.torch.CRFLayer(pt.Graph.grid((2, 2), n_states=2), backend="tensor")
    with pytest.raises(PotentiaError, match=sentence):
        layer.loss(**given)

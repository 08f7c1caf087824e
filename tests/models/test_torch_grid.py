"""Images in `pt.torch`: `CRFLayer.grid` and `RefineHead` beside the kernels, dense terms beside `pt.DenseGaussian`."""

import numpy as np
import pytest

import potentia as pt
from potentia import PotentiaError

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
from potentia.models.torch.tensor import PairPlan, Schedule, TensorScores, mean_field  # noqa: E402
from potentia.models.torch.tensor_dense import ExactKernel, GridKernel  # noqa: E402

K, H, W = 3, 4, 5
IN_COMPILER = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def images(batch=2, channels=2, size=(H, W), dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, K, *size, generator=rng, dtype=dtype, requires_grad=True)
    return logits, torch.rand(batch, channels, *size, generator=rng, dtype=dtype)


def grid_crf(pairs, backend, inference=None, **options):
    torch.manual_seed(1)
    channels = 2 if pairs == "features" else 0
    crf = pt.torch.CRFLayer.grid((H, W), K, pairs, channels, inference, backend=backend, **options).double()
    torch.nn.init.normal_(crf.weight)
    return crf


@pytest.mark.parametrize("pairs", ["potts", "table", "features"])
@pytest.mark.parametrize(
    "inference", [pt.TRW(iterations=4, tol=0), pt.MeanField(iterations=3, tol=0)], ids=["trw", "mf"]
)
def test_both_backends_and_all_losses_agree(pairs, inference):
    logits, features = images()
    extra = features if pairs == "features" else None
    labels = torch.randint(K, (2, H, W), generator=torch.Generator().manual_seed(2))
    labels[0, 0] = 255
    results = []
    for backend in ("kernels", "tensor"):
        crf = grid_crf(pairs, backend, inference)
        mu = crf(logits, extra)
        losses = [
            crf.loss(logits, labels, extra, name, ignore_index=255, reduction=reduction)
            for name in ("univariate_logistic", "smoothed_error", "clique_logistic", "piecewise")
            for reduction in ("mean", "sum")
        ]
        total = sum(losses) + (mu * torch.arange(K)[:, None, None]).sum()
        results.append((mu, torch.stack(losses), *torch.autograd.grad(total, (logits, crf.weight))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    assert results[0][0].shape == logits.shape


def test_a_batch_and_mixed_sizes_equal_their_parts():
    logits, _ = images()
    crf = grid_crf("potts", "tensor")
    whole = crf(logits)
    for k in range(2):
        torch.testing.assert_close(whole[k : k + 1], crf(logits[k : k + 1]), atol=1e-12, rtol=0)
    other, _ = images(1, size=(3, 6))
    parts = crf([logits[0], other[0]])
    torch.testing.assert_close(parts[0], whole[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(parts[1], crf(other)[0], atol=1e-12, rtol=0)
    assert parts[1].shape == (K, 3, 6)
    torch.testing.assert_close(crf.map(logits), whole.argmax(1))


@pytest.mark.parametrize("size", [(1, 5), (4, 1), (1, 1)])
def test_narrow_images(size):
    logits, _ = images(size=size)
    kernels, tensor = grid_crf("table", "kernels"), grid_crf("table", "tensor")
    torch.testing.assert_close(kernels(logits), tensor(logits), atol=1e-10, rtol=0)


def test_states_are_saved():
    crf = grid_crf("features", "tensor")
    assert list(crf.state_dict()) == ["weight"]
    other = pt.torch.CRFLayer.grid((H, W), K, "features", 2, backend="tensor").double()
    other.load_state_dict(crf.state_dict())
    logits, features = images()
    torch.testing.assert_close(crf(logits, features), other(logits, features))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types(dtype):
    logits, _ = images()
    crf = grid_crf("potts", "tensor")
    given = logits.detach().to(dtype)
    want = grid_crf("potts", "kernels")
    want.weight.data = crf.weight.data.to(dtype).double()
    mu = crf.to(dtype)(given)
    assert mu.dtype == dtype
    atol = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(mu.double(), want(given.double()), atol=atol, rtol=0)


def test_dense_terms_are_those_of_mean_field():
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((H, W), n_states=K)
    node, weights = rng.normal(size=(H * W, K)), rng.random(len(graph.scopes["edge"]))
    features = 3 * rng.random((H * W, 3))
    kernel = ExactKernel(torch.tensor(features)[None])

    def field(q):
        mixed = kernel.multiply(q)
        return 1.7 * (mixed - mixed.sum(0, keepdim=True))

    scores = TensorScores(torch.tensor(node.T[:, None].copy()), torch.tensor(weights[None]))
    found = mean_field(PairPlan(graph), scores, Schedule(4, 0.0, 2**29), field, value=True)
    theta = {"node": node, "edge": pt.Potts(weights), "dense": pt.DenseGaussian(features, 1.7, exact=True)}
    want = pt.MeanField(iterations=4, tol=0).infer(graph, theta)
    np.testing.assert_allclose(found.variables[:, 0].T, want.variable_marginals, atol=1e-12)
    assert found.value.item() == pytest.approx(want.value, abs=1e-10)


def test_the_bilateral_grid_is_near_the_exact_kernel():
    rng = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(30.0), indexing="ij")
    image = torch.rand(4, 5, generator=rng).repeat_interleave(6, 0).repeat_interleave(6, 1)
    features = torch.stack([y / 5, x / 5, image / 0.2], -1).reshape(1, -1, 3).double()
    q = torch.softmax(3 * torch.randn(4, 1, 720, generator=rng, dtype=torch.float64), 0)
    exact = ExactKernel(features).multiply(q)
    found = GridKernel(features, [0.0] * 3, [23 / 5, 29 / 5, 5.0]).multiply(q)
    assert (found - exact).norm() < 0.02 * exact.norm()
    # its own transpose, as gradients need
    other = torch.softmax(torch.randn(4, 1, 720, generator=rng, dtype=torch.float64), 0)
    kernel = GridKernel(features, [0.0] * 3, [23 / 5, 29 / 5, 5.0])
    assert (kernel.multiply(q) * other).sum().item() == pytest.approx((kernel.multiply(other) * q).sum().item())
    with pytest.raises(PotentiaError, match="larger widths"):
        GridKernel(features, [0.0] * 3, [1e4] * 3)


@pytest.mark.parametrize("dense", [None, "exact", "grid"])
def test_the_head_learns_from_images_that_logits_do_not_see(dense):
    torch.manual_seed(0)
    labels = (torch.arange(12)[:, None] // 6 + torch.arange(14) // 7).fmod(2).expand(2, -1, -1)
    image = labels[:, None] + 0.05 * torch.randn(2, 1, 12, 14)
    logits = torch.nn.functional.one_hot(labels, 2).permute(0, 3, 1, 2) + 1.5 * torch.randn(2, 2, 12, 14)
    head = pt.torch.RefineHead(2, 1, dense=dense, spatial=3.0, colour=0.5)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(25):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(head(logits, image.clamp(0, 1)), labels)
        loss.backward()
        optimiser.step()
    before = (logits.argmax(1) != labels).float().mean()
    assert (head(logits, image.clamp(0, 1)).argmax(1) != labels).float().mean() < 0.4 * before
    assert all(torch.isfinite(p.grad).all() for p in head.parameters())


def test_the_head_is_gradchecked():
    logits, image = images(1, 1, (3, 3))
    head = pt.torch.RefineHead(K, 1, dense="exact", spatial=2.0, iterations=2).double()
    names = [name for name, _ in head.named_parameters()]

    def function(given, *parameters):
        return torch.func.functional_call(head, dict(zip(names, parameters, strict=True)), (given, image))

    assert torch.autograd.gradcheck(function, (logits, *head.parameters()), fast_mode=True)


def test_meta_tensors_have_the_shapes():
    crf = pt.torch.CRFLayer.grid((H, W), K).to("meta")
    assert crf(torch.empty(2, K, H, W, device="meta")).shape == (2, K, H, W)


@pytest.mark.slow
@IN_COMPILER
def test_compiled_and_exported_with_any_batch():
    logits, image = images(dtype=torch.float32)
    head = pt.torch.RefineHead(K, 2, size=(H, W), iterations=2, backend="tensor")
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, image), head(logits, image))
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(head, (logits.detach(), image), dynamic_shapes=({0: batch}, {0: batch}))
    more = torch.randn(5, K, H, W), torch.rand(5, 2, H, W)
    torch.testing.assert_close(program.module()(*more), head(*more))


BAD = [
    ({"logits": torch.zeros(2, 2, H, W)}, r"logits must be a tensor \(B, 3, H, W\)"),
    ({"logits": torch.zeros(2, K, H, W, dtype=torch.int64)}, "floating-point"),
    ({"labels": torch.zeros(2, H, W)}, "whole numbers"),
    ({"labels": torch.full((2, H, W), 7)}, "labels hold 7"),
    ({"labels": torch.full((2, H, W), -100)}, "every label is hidden"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_arguments_get_a_sentence(change, sentence):
    given = {"logits": torch.zeros(2, K, H, W), "labels": torch.zeros(2, H, W, dtype=torch.int64)} | change
    with pytest.raises(PotentiaError, match=sentence):
        pt.torch.CRFLayer.grid((H, W), K).loss(**given)


def test_bad_options_get_a_sentence():
    for options, sentence in (
        ({"pairs": "tables"}, "pairs must be one of"),
        ({"pairs": "features"}, "channels"),
        ({"backend": "gpu"}, "backend must be one of"),
        ({"inference": pt.Exact()}, "inference must be a method such as"),
        ({"size": 5}, r"size must be \(height, width\)"),
    ):
        with pytest.raises(PotentiaError, match=sentence):
            pt.torch.CRFLayer.grid(**{"size": (H, W), "n_classes": K} | options)
    with pytest.raises(PotentiaError, match="dense must be one of"):
        pt.torch.RefineHead(K, dense="lattice")
    with pytest.raises(PotentiaError, match="features must be a tensor"):
        pt.torch.RefineHead(K, 3)(torch.zeros(1, K, H, W))


@pytest.mark.slow
@IN_COMPILER
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_programs_give_the_same_numbers(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    logits, image = images(dtype=torch.float32)
    head = pt.torch.RefineHead(K, 2, size=(H, W), iterations=2, backend="tensor").eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.onnx.export(
        head, (logits.detach(), image), dynamo=True, dynamic_shapes=({0: batch}, {0: batch}), verbose=False
    )
    program.save(str(tmp_path / "head.onnx"))
    session = runtime.InferenceSession(str(tmp_path / "head.onnx"))
    more = torch.randn(5, K, H, W), torch.rand(5, 2, H, W)
    given = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), more, strict=True)}
    np.testing.assert_allclose(session.run(None, given)[0], head(*more).detach(), atol=1e-5)

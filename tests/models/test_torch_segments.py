"""`pt.torch.LinearChain` in both backends: constraints, sets of tags, pairs, segments, compiled, exported."""

from itertools import pairwise, product

import pytest

import potentia as pt
from potentia import InfeasibleError, PotentiaError

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
INF = float("inf")
BACKENDS = ("kernels", "tensor")
IN_COMPILER = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def case(n_tags=3, lengths=(4, 1, 3), longest=3, batch_first=True, **options):
    """Chains of both backends with equal parameters, emissions, segments, tags and a mask."""
    rng = torch.Generator().manual_seed(0)
    chains = [
        pt.torch.LinearChain(n_tags, batch_first=True, backend=backend, **options).double() for backend in BACKENDS
    ]
    for parameter in chains[0].parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    chains[1].load_state_dict(chains[0].state_dict())
    batch, steps = len(lengths), max(lengths)
    emissions = torch.randn(batch, steps, n_tags, generator=rng, dtype=torch.float64, requires_grad=True)
    segments = torch.randn(batch, steps, longest, n_tags, generator=rng, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(steps) < torch.tensor(lengths)[:, None]
    tags = torch.randint(n_tags, (batch, steps), generator=rng)
    return chains, emissions, segments, tags, mask


def gradients(value, inputs):
    return torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)


def agree(values, chains, inputs):
    """Values and gradients of both backends are equal."""
    torch.testing.assert_close(*values, atol=1e-10, rtol=0)
    weights = torch.linspace(-1, 2, values[0].numel(), dtype=torch.float64)
    slopes = [
        gradients(weights @ value.flatten(), [*inputs, *chain.parameters()])
        for value, chain in zip(values, chains, strict=True)
    ]
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


ALLOWED = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("options", [{}, {"allowed": ALLOWED}, {"tags": ["O", "B-X", "I-X"], "scheme": "BIO"}])
def test_everything_is_equal_in_both_backends(options):
    chains, emissions, _, tags, mask = case(**options)
    best = [chain.decode(emissions, mask) for chain in chains]
    assert best[0] == best[1]
    padded = [chain.decode(emissions, mask, padded=True) for chain in chains]
    assert padded[0].tolist() == padded[1].tolist()
    assert [row[:n] for row, n in zip(padded[0].tolist(), (4, 1, 3), strict=True)] == best[0]
    assert (padded[0][~mask] == -1).all()
    tags = padded[0].clamp_min(0)
    for reduction in ("none", "sum", "mean", "token_mean"):
        agree([chain(emissions, tags, mask, reduction) for chain in chains], chains, [emissions])
    for name in ("marginals", "pair_marginals"):
        a, b = (getattr(chain, name)(emissions, mask) for chain in chains)
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    mu, pairs = chains[0].marginals(emissions, mask), chains[0].pair_marginals(emissions, mask)
    torch.testing.assert_close(pairs.sum(2)[mask[:, 1:]], mu[:, 1:][mask[:, 1:]], atol=1e-10, rtol=0)
    for a, b in zip(*(chain.k_best(emissions, 4, mask) for chain in chains), strict=True):
        assert [path.labels for path in a] == [path.labels for path in b]
        assert [path.log_probability for path in a] == pytest.approx([path.log_probability for path in b], abs=1e-10)
    if "allowed" in options:
        assert all(ALLOWED[i, j] for path in best[0] for i, j in pairwise(path))


def test_steps_first_is_the_same():
    chains, emissions, segments, tags, mask = case(longest=4)
    for chain in chains:
        want = [chain(emissions, tags, mask), chain(emissions, tags, mask, segments=segments)]
        marginals, pairs = chain.marginals(emissions, mask), chain.pair_marginals(emissions, mask)
        chain.batch_first = False
        turned = emissions.transpose(0, 1), tags.T, mask.T
        torch.testing.assert_close(chain(*turned), want[0])
        torch.testing.assert_close(chain(*turned, segments=segments.transpose(0, 1)), want[1])
        torch.testing.assert_close(chain.marginals(turned[0], mask.T), marginals.transpose(0, 1))
        torch.testing.assert_close(chain.pair_marginals(turned[0], mask.T), pairs.transpose(0, 1))


def test_sets_of_tags_sum_over_labellings():
    chains, emissions, _, _, mask = case()
    sets = torch.rand(3, 4, 3, generator=torch.Generator().manual_seed(1)) < 0.6
    sets[..., 0] = True
    values = [chain(emissions, sets, mask, "none") for chain in chains]
    agree(values, chains, [emissions])
    for k, n in enumerate((4, 1, 3)):
        total = -INF
        for path in product(range(3), repeat=n):
            if all(sets[k, t, y] for t, y in enumerate(path)):
                one = chains[0](emissions[k : k + 1, :n], torch.tensor([path]), reduction="none")[0].item()
                total = torch.logaddexp(torch.tensor(total), torch.tensor(one)).item()
        assert values[0][k].item() == pytest.approx(total, abs=1e-6)
    for chain in chains:
        best = chain.decode(emissions, mask, sets=sets)
        assert all(sets[k, t, y] for k, path in enumerate(best) for t, y in enumerate(path))
        assert (chain.marginals(emissions, mask, sets=sets)[~sets] == 0).all()
        assert chain.k_best(emissions, 1, mask, sets=sets)[0][0].labels == best[0]
        with pytest.raises(PotentiaError, match="sets of tags must be booleans"):
            chain.decode(emissions, mask, sets=sets[0])


def segmentations(n, longest):
    if n == 0:
        yield ()
    for size in range(1, min(n, longest) + 1):
        yield from ((size, *rest) for rest in segmentations(n - size, longest))


def enumerated(chain, emissions, segments, n):
    """Scores of all segmentations of one sequence, with sizes and tags."""
    every, scores = [], []
    for sizes in segmentations(n, segments.shape[1]):
        for tags in product(range(chain.num_tags), repeat=len(sizes)):
            score, t = chain.start_transitions[tags[0]] + chain.end_transitions[tags[-1]], 0
            for k, (size, y) in enumerate(zip(sizes, tags, strict=True)):
                score = score + segments[t, size - 1, y] + emissions[t : t + size, y].sum()
                score = score + (chain.transitions[tags[k - 1], y] if k else 0.0)
                t += size
            every.append((sizes, tags))
            scores.append(score)
    return every, torch.stack(scores)


@pytest.mark.parametrize("backend", [0, 1])
def test_segments_equal_enumeration(backend):
    chains, emissions, segments, _, mask = case()
    chain, lengths = chains[backend], (4, 1, 3)
    found = chain.segment(emissions, segments, mask)
    mu = chain.marginals(emissions, mask, segments=segments)
    tags, begins = (chain.decode(emissions, mask, segments=segments, padded=True), torch.zeros(3, 4, dtype=torch.bool))
    want, likelihood = torch.zeros_like(mu), []
    for k, n in enumerate(lengths):
        every, scores = enumerated(chain, emissions[k], segments[k], n)
        p = torch.softmax(scores, 0).detach()
        best = int(p.argmax())
        assert [(s.stop - s.start, s.tag) for s in found[k]] == list(zip(*every[best], strict=True))
        begins[k, [s.start for s in found[k]]] = True
        likelihood.append(scores[best] - torch.logsumexp(scores, 0))
        for (sizes, labels), weight in zip(every, p, strict=True):
            t = 0
            for size, y in zip(sizes, labels, strict=True):
                want[k, t : t + size, y] += weight
                t += size
    torch.testing.assert_close(mu, want, atol=1e-10, rtol=0)
    value = chain(emissions, tags.clamp_min(0), mask, "none", segments=segments, begins=begins)
    torch.testing.assert_close(value, torch.stack(likelihood), atol=1e-10, rtol=0)
    inputs = [emissions, segments, *chain.parameters()]
    for a, b in zip(
        gradients(value @ torch.tensor([1.0, -2.0, 0.5]).double(), inputs),
        gradients(torch.stack(likelihood) @ torch.tensor([1.0, -2.0, 0.5]).double(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_segments_of_one_token_are_the_chain():
    chains, emissions, _, tags, mask = case()
    none = torch.zeros(3, 4, 1, 3, dtype=torch.float64)
    every = torch.ones(3, 4, dtype=torch.bool)
    for chain in chains:
        torch.testing.assert_close(
            chain(emissions, tags, mask, segments=none, begins=every), chain(emissions, tags, mask)
        )
        assert chain.decode(emissions, mask, segments=none) == chain.decode(emissions, mask)


def test_a_segment_that_is_too_long_is_refused():
    chains, emissions, segments, _, mask = case(longest=2)
    for chain in chains:
        with pytest.raises(PotentiaError, match="sequence 0 have a forbidden"):
            chain(emissions, torch.zeros(3, 4, dtype=torch.int64), mask, segments=segments)
        with pytest.raises(PotentiaError, match=r"segments has shape .* expected"):
            chain(emissions, torch.zeros(3, 4, dtype=torch.int64), mask, segments=segments[:, :2])


def test_bad_sequences_are_refused():
    chains, emissions, _, tags, mask = case()
    for chain in chains:
        for value, error, sentence in ((-INF, InfeasibleError, "forbidden"), (INF, PotentiaError, "NaN")):
            bad = emissions.detach().clone()
            bad[1, 0] = value
            with pytest.raises(error, match=sentence):
                chain(bad, tags, mask)
    with pytest.raises(PotentiaError, match="allowed must be booleans"):
        pt.torch.LinearChain(3, allowed=torch.ones(2, 2))
    with pytest.raises(PotentiaError, match="backend must be one of"):
        pt.torch.LinearChain(3, backend="gpu")


def test_states_that_fall_behind_are_not_lost_in_tensors():
    chain = case(2, (300,))[0][1]
    with torch.no_grad():
        chain.transitions.copy_(torch.tensor([[0.0, -INF], [-INF, 0.0]]))
        chain.start_transitions.zero_()
        chain.end_transitions.zero_()
    emissions = torch.zeros(1, 300, 2, dtype=torch.float64)
    emissions[:, :, 0], emissions[0, -1, 0] = 10.0, -INF
    tags = torch.ones(1, 300, dtype=torch.int64)
    assert chain(emissions, tags).item() == pytest.approx(0.0, abs=1e-9)
    assert chain.decode(emissions) == tags.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types(dtype):
    chains, emissions, _, tags, mask = case()
    narrow = emissions.detach().to(dtype)
    want = chains[0](narrow.double(), tags, mask)
    found = chains[1].float()(narrow, tags, mask)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), want, atol=1e-4, rtol=0)


def test_meta_tensors_have_the_shapes():
    chain = pt.torch.LinearChain(3, batch_first=True).to("meta")
    emissions, mask = torch.empty(2, 5, 3, device="meta"), torch.empty(2, 5, dtype=torch.bool, device="meta")
    assert chain(emissions, torch.empty(2, 5, dtype=torch.int64, device="meta"), mask, "none").shape == (2,)
    assert chain.marginals(emissions, mask).shape == (2, 5, 3)
    assert chain.decode(emissions, mask, padded=True).shape == (2, 5)


class Best(torch.nn.Module):
    """Decoding as a program."""

    def __init__(self, chain):
        super().__init__()
        self.chain = chain

    def forward(self, emissions, mask):
        return self.chain.decode(emissions, mask, padded=True), self.chain.marginals(emissions, mask)


@pytest.mark.slow
@IN_COMPILER
def test_compiled_and_exported():
    chain = case()[0][1].float()
    emissions, mask = torch.randn(3, 4, 3, requires_grad=True), torch.ones(3, 4, dtype=torch.bool)
    tags = torch.randint(3, (3, 4))
    compiled = torch.compile(chain, backend="aot_eager", fullgraph=True)
    value = compiled(emissions, tags, mask)
    torch.testing.assert_close(value, chain(emissions, tags, mask))
    torch.testing.assert_close(
        torch.autograd.grad(value, emissions), torch.autograd.grad(chain(emissions, tags, mask), emissions)
    )
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Best(chain), (emissions.detach(), mask), dynamic_shapes=({0: batch}, {0: batch}))
    more, on = torch.randn(7, 4, 3), torch.arange(4) < torch.tensor([4, 1, 2, 3, 4, 4, 2])[:, None]
    for a, b in zip(program.module()(more, on), Best(chain)(more, on), strict=True):
        torch.testing.assert_close(a, b)

"""`pt.torch.LinearChain` against enumeration, the general layer and pytorch-crf."""

import copy
import warnings
from itertools import product

import numpy as np
import pytest

import potentia as pt
from potentia import InfeasibleError, PotentiaError

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the operations of the twins are too small to share
INF = float("inf")


def chain_and_batch(n_tags=3, lengths=(4, 1, 3), dtype=torch.float64, seed=0, batch_first=True, scale=1.0):
    """A chain with random parameters, emissions, tags and a mask."""
    rng = torch.Generator().manual_seed(seed)
    chain = pt.torch.LinearChain(n_tags, batch_first=batch_first).to(dtype)
    for parameter in chain.parameters():
        parameter.data = scale * torch.randn(parameter.shape, generator=rng, dtype=dtype)
    batch, steps = len(lengths), max(lengths)
    emissions = (scale * torch.randn(batch, steps, n_tags, generator=rng, dtype=dtype)).requires_grad_()
    tags = torch.randint(n_tags, (batch, steps), generator=rng)
    mask = torch.arange(steps) < torch.tensor(lengths)[:, None]
    return chain, emissions, tags, mask


def path_score(chain, emissions, path):
    """Score of the tags of one sequence, (steps, tags)."""
    score = chain.start_transitions[path[0]] + chain.end_transitions[path[-1]]
    for t, tag in enumerate(path):
        score = score + emissions[t, tag]
        if t:
            score = score + chain.transitions[path[t - 1], tag]
    return score


def all_paths(chain, emissions):
    """Every labelling of one sequence with its score."""
    paths = list(product(range(chain.num_tags), repeat=len(emissions)))
    return paths, torch.stack([path_score(chain, emissions, path) for path in paths])


def enumerated_likelihood(chain, emissions, tags, mask):
    found = []
    for k, n in enumerate(mask.sum(1).tolist()):
        scores = all_paths(chain, emissions[k, :n])[1]
        found.append(path_score(chain, emissions[k, :n], tags[k, :n].tolist()) - torch.logsumexp(scores, 0))
    return torch.stack(found)


def gradients(value, emissions, chain):
    inputs = [emissions, *chain.parameters()]
    return torch.autograd.grad(value, inputs, retain_graph=True, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("scale", [1.0, 60.0, 900.0])
@pytest.mark.parametrize("lengths", [(4, 1, 3), (1,), (5, 5)])
def test_likelihood_and_gradient_equal_enumeration(scale, lengths):
    chain, emissions, tags, mask = chain_and_batch(lengths=lengths, scale=scale)
    found = chain(emissions, tags, mask, reduction="none")
    want = enumerated_likelihood(chain, emissions, tags, mask)
    torch.testing.assert_close(found, want, atol=1e-10, rtol=1e-12)
    weights = torch.linspace(-1, 2, len(lengths), dtype=torch.float64)
    for a, b in zip(
        gradients(weights @ found, emissions, chain), gradients(weights @ want, emissions, chain), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_gradcheck():
    chain, emissions, tags, mask = chain_and_batch()
    names = [name for name, _ in chain.named_parameters()]

    def likelihood(given, *parameters):
        return torch.func.functional_call(chain, dict(zip(names, parameters, strict=True)), (given, tags, mask, "none"))

    assert torch.autograd.gradcheck(likelihood, (emissions, *chain.parameters()))


def forbidden_case(scale=1.0):
    """-inf in every place; tags that are allowed."""
    chain, emissions, tags, mask = chain_and_batch(4, (5, 1, 4, 3), scale=scale, seed=3)
    with torch.no_grad():
        chain.transitions[0, 1] = chain.transitions[2, 2] = chain.transitions[3, 0] = -INF
        chain.start_transitions[1] = chain.end_transitions[2] = -INF
        emissions[0, 2, 3] = emissions[2, 1, 0] = -INF
    best = [torch.tensor(path) for path in chain.decode(emissions, mask)]
    for k, path in enumerate(best):
        tags[k, : len(path)] = path
    return chain, emissions, tags, mask


@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_forbidden_scores_are_exact_and_get_no_gradient(scale):
    chain, emissions, tags, mask = forbidden_case(scale)
    found = chain(emissions, tags, mask, reduction="none")
    torch.testing.assert_close(found, enumerated_likelihood(chain, emissions, tags, mask), atol=1e-10, rtol=1e-12)
    d_emissions, d_start, d_end, d_pair = gradients(found.sum(), emissions, chain)
    assert all(torch.isfinite(d).all() for d in (d_emissions, d_start, d_end, d_pair))
    assert d_pair[0, 1] == d_pair[2, 2] == d_start[1] == d_end[2] == d_emissions[0, 2, 3] == 0


def test_states_that_fall_behind_for_long_and_win_in_the_end_are_not_lost():
    """Tag 1 loses 10 a step for 300 steps, beyond what rescaled numbers hold, until tag 0 is forbidden."""
    chain, emissions, _, _ = chain_and_batch(2, (300, 300))
    with torch.no_grad():
        chain.transitions.copy_(torch.tensor([[0.0, -INF], [-INF, 0.0]]))
        chain.start_transitions.zero_()
        chain.end_transitions.zero_()
        emissions.zero_()
        emissions[:, :, 0] = 10.0
        emissions[0, -1, 0] = -INF
        emissions[1, -1, 1] = 4000.0
    tags = torch.ones(2, 300, dtype=torch.int64)
    found = chain(emissions, tags, reduction="none")
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0], dtype=torch.float64), atol=1e-9, rtol=0)
    assert chain.decode(emissions) == tags.tolist()
    torch.testing.assert_close(chain.marginals(emissions)[..., 1], torch.ones(2, 300, dtype=torch.float64))
    torch.testing.assert_close(gradients(found.sum(), emissions, chain)[0], torch.zeros_like(emissions))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("scale", [1.0, 900.0])
def test_marginals_best_and_k_best_equal_enumeration(batch_first, scale):
    chain, emissions, _, mask = chain_and_batch(scale=scale)
    chain.batch_first = batch_first
    given, on = (emissions, mask) if batch_first else (emissions.transpose(0, 1), mask.T)
    mu, best = chain.marginals(given, on), chain.decode(given, mask=on)
    many = chain.k_best(given, 30, on)
    mu = mu if batch_first else mu.transpose(0, 1)
    for k, n in enumerate(mask.sum(1).tolist()):
        paths, scores = all_paths(chain, emissions[k, :n])
        log_p = torch.log_softmax(scores, 0)
        order = torch.argsort(log_p, descending=True)[:30].tolist()
        assert [tuple(path.labels) for path in many[k]] == [paths[i] for i in order]
        np.testing.assert_allclose([p.log_probability for p in many[k]], log_p[order].detach(), atol=1e-9)
        assert tuple(best[k]) == paths[order[0]]
        want = torch.zeros(n, 3, dtype=torch.float64)
        for path, p in zip(paths, log_p.exp(), strict=True):
            for t, tag in enumerate(path):
                want[t, tag] += p.detach()
        torch.testing.assert_close(mu[k, :n], want, atol=1e-10, rtol=0)
        assert mu[k, n:].abs().sum() == 0
    assert not mu.requires_grad


def test_k_best_gives_fewer_where_there_are_fewer():
    chain, emissions, _, mask = forbidden_case()
    for k, n in enumerate(mask.sum(1).tolist()):
        found = chain.k_best(emissions, 300, mask)[k]
        scores = all_paths(chain, emissions[k, :n])[1]
        assert len(found) == int((scores > -INF).sum()) < 300
        assert sum(np.exp(path.log_probability) for path in found) == pytest.approx(1.0)


def test_the_general_layer_gives_the_same_likelihood_and_marginals():
    chain, emissions, tags, mask = chain_and_batch(4, (6, 2, 5))
    lengths = mask.sum(1)
    first, last = torch.cumsum(lengths, 0) - lengths, torch.cumsum(lengths, 0) - 1
    node = emissions[mask].index_add(0, first, chain.start_transitions.expand(3, 4))
    node = node.index_add(0, last, chain.end_transitions.expand(3, 4))
    graphs = [pt.Graph.chain(n, n_states=4) for n in lengths.tolist()]
    layer = pt.torch.CRFLayer(graphs, pt.Exact())
    theta = {"node": node, "edge": chain.transitions}
    want = -layer.loss(theta, tags[mask], "likelihood", reduction="sum")
    found = chain(emissions, tags, mask)
    torch.testing.assert_close(found, want, atol=1e-10, rtol=0)
    for a, b in zip(gradients(found, emissions, chain), gradients(want, emissions, chain), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    torch.testing.assert_close(chain.marginals(emissions, mask)[mask], layer(theta)["node"], atol=1e-10, rtol=0)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("n_tags", "lengths"), [(1, (3, 2)), (5, (9, 1, 4)), (9, tuple(range(1, 33)))])
def test_everything_is_as_in_pytorch_crf(n_tags, lengths, batch_first):
    torchcrf = pytest.importorskip("torchcrf")
    theirs = torchcrf.CRF(n_tags, batch_first=batch_first)
    chain, emissions, tags, mask = chain_and_batch(n_tags, lengths, torch.float32, batch_first=batch_first)
    chain.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(chain.state_dict())
    assert [name for name, _ in chain.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    emissions = emissions.detach()
    if not batch_first:
        emissions, tags, mask = emissions.transpose(0, 1), tags.T, mask.T
    emissions.requires_grad_()
    masks = [mask, mask.byte(), None]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="where received a uint8")  # pytorch-crf's
        for on in masks:
            for reduction in ("none", "sum", "mean", "token_mean"):
                ours, want = (m(emissions, tags, mask=on, reduction=reduction) for m in (chain, theirs))
                assert ours.dtype == want.dtype
                torch.testing.assert_close(ours, want, atol=1e-5, rtol=1e-5)
                for a, b in zip(
                    gradients(ours.sum(), emissions, chain), gradients(want.sum(), emissions, theirs), strict=True
                ):
                    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
            assert chain.decode(emissions, mask=on) == theirs.decode(emissions, mask=on)


def test_parameters_start_small_and_the_options_are_shown():
    torch.manual_seed(0)
    chain = pt.torch.LinearChain(40)
    for parameter in chain.parameters():
        assert 0.02 < parameter.std() < 0.1
        assert parameter.abs().max() <= 0.1
    assert repr(chain) == "LinearChain(num_tags=40)"
    assert chain.batch_first is False


def test_threads_and_blocks_do_not_change_the_numbers(monkeypatch):
    from potentia.models.torch import chain as chain_function

    chain, emissions, tags, mask = chain_and_batch(6, tuple(range(1, 21)))

    def run():
        value = chain(emissions, tags, mask)
        return [value, *gradients(value, emissions, chain)]

    whole = run()
    monkeypatch.setattr(chain_function, "_BLOCK_WORK", 10)
    found = {}
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("POTENTIA_THREADS", threads)
        found[threads] = run()
        for a, b, c in zip(whole, found["1"], found[threads], strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-14)
            torch.testing.assert_close(b, c, atol=0, rtol=0)


def test_backward_can_be_repeated_but_not_differentiated():
    chain, emissions, tags, mask = chain_and_batch()
    value = chain(emissions, tags, mask)
    for a, b in zip(gradients(value, emissions, chain), gradients(value, emissions, chain), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)
    (slope,) = torch.autograd.grad(value**2, emissions, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
    with torch.no_grad():
        assert chain(emissions, tags, mask).item() == value.item()
    given = emissions * 1.0
    value = chain(given, tags, mask)
    given.mul_(2.0)
    with pytest.raises(RuntimeError, match="inplace"):
        value.backward()


def test_an_empty_batch_is_a_sum_of_nothing():
    chain = pt.torch.LinearChain(3, batch_first=True)
    emissions = torch.zeros(0, 4, 3, requires_grad=True)
    value = chain(emissions, torch.zeros(0, 4, dtype=torch.int64))
    assert value.item() == 0
    assert gradients(value, emissions, chain)[3].abs().max() == 0
    assert chain.decode(emissions) == []


def test_other_types_of_emissions():
    chain, emissions, tags, mask = chain_and_batch(dtype=torch.float32)
    want = chain(emissions, tags, mask)
    low = emissions.detach().bfloat16().requires_grad_()
    found = chain(low, tags, mask)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, want, atol=0.2, rtol=0)
    assert gradients(found, low, chain)[0].dtype == torch.bfloat16
    wide = chain(emissions.double(), tags, mask)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), want)


TAGS = {
    "BIO": ["O", "B-X", "I-X", "B-Y", "I-Y"],
    "IOB1": ["O", "B-X", "I-X", "B-Y", "I-Y"],
    "BIOES": ["O", "B-X", "I-X", "E-X", "S-X", "B-Y-Z", "E-Y-Z", "I-Y-Z"],
}
RIGHT = {
    "BIO": ["O", "B-X", "B-X I-X", "B-X B-X", "B-X I-X B-Y I-Y O B-X", "O B-Y"],
    "IOB1": ["O", "I-X", "I-X B-X I-X", "I-X I-Y", "I-X B-X B-X", "O I-Y O"],
    "BIOES": ["O", "S-X", "B-X E-X", "B-X I-X I-X E-X", "B-Y-Z E-Y-Z S-X O", "S-X S-X"],
}
WRONG = {
    "BIO": ["I-X", "O I-X", "B-X I-Y", "B-Y I-X I-X"],
    "IOB1": ["B-X", "O B-X", "I-Y B-X", "I-X O B-X"],
    "BIOES": ["I-X", "E-X", "B-X", "B-X O", "S-X I-X", "B-X E-Y-Z", "B-X S-X", "B-X B-X E-X", "B-X I-X", "E-X O"],
}


@pytest.mark.parametrize("scheme", TAGS)
def test_schemes_allow_what_they_should(scheme):
    names = TAGS[scheme]
    chain = pt.torch.LinearChain(len(names), batch_first=True, tags=names, scheme=scheme)
    for text in RIGHT[scheme]:
        tags = torch.tensor([[names.index(tag) for tag in text.split()]])
        emissions = torch.zeros(*tags.shape, len(names), requires_grad=True)
        chain.zero_grad()
        chain(emissions, tags).backward()
        gone = chain._forbidden_transitions
        assert chain.transitions.grad[gone].abs().max() == 0
    for text in WRONG[scheme]:
        tags = torch.tensor([[names.index(tag) for tag in text.split()]])
        with pytest.raises(PotentiaError, match="tags of sequence 0 have a forbidden"):
            chain(torch.zeros(*tags.shape, len(names)), tags)


@pytest.mark.parametrize("scheme", TAGS)
def test_decoded_tags_keep_to_the_scheme(scheme):
    names = TAGS[scheme]
    chain = pt.torch.LinearChain(len(names), batch_first=True, tags=names, scheme=scheme)
    emissions = 5 * torch.randn(20, 7, len(names), generator=torch.Generator().manual_seed(0))
    for path in chain.decode(emissions):
        chain(torch.zeros(1, 7, len(names)), torch.tensor([path]))  # raises where forbidden
    plain = pt.torch.LinearChain(len(names), batch_first=True)
    plain.load_state_dict(chain.state_dict())
    assert plain.decode(emissions) != chain.decode(emissions)
    assert "scheme" in repr(chain)
    assert copy.deepcopy(chain).decode(emissions) == chain.decode(emissions)


def bad(**change):
    """A call with one argument changed."""
    chain, emissions, tags, mask = chain_and_batch(3, (4, 2))
    given = {"emissions": emissions.detach(), "tags": tags, "mask": mask} | change
    return chain, given


BAD = [
    ({"emissions": torch.zeros(2, 4)}, "3 dimensions"),
    ({"emissions": torch.zeros(2, 4, 3, dtype=torch.int64)}, "floating-point"),
    ({"emissions": torch.zeros(2, 4, 5)}, "expected num_tags=3"),
    ({"emissions": torch.full((2, 4, 3), torch.nan)}, "sequence 0 hold NaN"),
    ({"emissions": torch.full((2, 4, 3), INF)}, "NaN, .inf"),
    ({"emissions": torch.full((2, 4, 3), -INF)}, "every labelling of sequence 0 is forbidden"),
    ({"tags": torch.zeros(2, 3, dtype=torch.int64)}, "tags must be whole numbers"),
    ({"tags": torch.zeros(2, 4)}, "tags must be whole numbers"),
    ({"tags": torch.full((2, 4), 3)}, "tags hold 3 at token 0 of sequence 0"),
    ({"tags": torch.full((2, 4), -1)}, "tags hold -1"),
    ({"mask": torch.ones(2, 3, dtype=torch.bool)}, "mask has shape"),
    ({"mask": torch.zeros(2, 4, dtype=torch.bool)}, "mask of the first timestep must all be on"),
    ({"mask": torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0]])}, "mask of sequence 1 has a gap"),
    ({"reduction": "median"}, "reduction must be"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_arguments_get_a_sentence(change, sentence):
    chain, given = bad(**change)
    with pytest.raises(PotentiaError, match=sentence):
        chain(**given)
    if "tags" in change or "reduction" in change:
        return
    del given["tags"]
    for method in (chain.decode, chain.marginals, lambda **kw: chain.k_best(k=2, **kw)):
        with pytest.raises(PotentiaError, match=sentence):
            method(**given)


def test_bad_parameters_and_options_get_a_sentence():
    chain, given = bad()
    with torch.no_grad():
        chain.transitions[0, 0] = torch.nan
    with pytest.raises(PotentiaError, match="transitions hold NaN"):
        chain(**given)
    with torch.no_grad():
        chain.transitions.fill_(-INF)
    with pytest.raises(InfeasibleError, match="every labelling of sequence 0"):
        chain(**given)
    with pytest.raises(PotentiaError, match="num_tags"):
        pt.torch.LinearChain(0)
    for options, sentence in (
        ({"tags": ["O", "B-X"], "scheme": "BIO"}, "2 names"),
        ({"tags": ["O", "B-X", "I-X"]}, "belong together"),
        ({"tags": ["O", "B-X", "I-X"], "scheme": "BMES"}, "scheme must be"),
        ({"tags": ["O", "B-X", "E-X"], "scheme": "BIO"}, "tag 'E-X' is not a tag of the scheme"),
        ({"tags": ["O", "B-X", "I"], "scheme": "BIO"}, "tag 'I' is not a tag"),
    ):
        with pytest.raises(PotentiaError, match=sentence):
            pt.torch.LinearChain(3, **options)
    with pytest.raises(PotentiaError, match="k must"):
        pt.torch.LinearChain(3).k_best(torch.zeros(2, 1, 3), 0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda chain: chain([[1]], torch.zeros(2, 1)), "emissions must be a Tensor"),
        (lambda chain: chain.decode(np.zeros((1, 2, 3))), "emissions must be a Tensor"),
        (lambda chain: chain(torch.zeros(2, 1, 3), [[0], [1]]), "tags must be a Tensor"),
        (lambda chain: chain.decode(torch.zeros(2, 1, 3), [[1], [1]]), "mask must be a Tensor"),
    ],
)
def test_what_is_no_tensor_gets_one_sentence(call, sentence):
    with pytest.raises(pt.PotentiaError, match=sentence):
        call(pt.torch.LinearChain(3))

"""`pt.torch` beside pytorch-crf (chains) and beside message passing in plain PyTorch (grids), in one run.

    python studies/benchmarks/torch_layer.py [--threads 1] [--repeats 5] [--out studies/benchmarks/torch_layer.jsonl]

Prints one row per size: milliseconds forward and backward of both, their ratio, and the largest relative difference
of losses. Runs alternate, the fastest of each counts. Chains get new lengths in every run. Needs `potentia[torch]` and
`pip install pytorch-crf==0.7.2`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import potentia as pt
from potentia.base.resources import using_threads

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from torch_twin import MessagePassingTwin

CHAINS = ((32, 50, 9), (64, 100, 20), (8, 1000, 9))
GRIDS = ((100, 2), (100, 21))
ITERATIONS = 20

Run = Callable[[], torch.Tensor]


def fastest(ours: Run, theirs: Run, repeats: int) -> tuple[float, float]:
    """Seconds of the fastest run of each, runs alternating."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for run, kept in zip((ours, theirs), seconds, strict=True):
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    return min(seconds[0]), min(seconds[1])


def measured(name: str, ours: Run, theirs: Run, other: str, repeats: int) -> dict[str, Any]:
    """Compare the losses once, then measure; prints the row."""
    torch.manual_seed(1)
    a = ours().item()
    torch.manual_seed(1)
    b = theirs().item()
    fast, slow = fastest(ours, theirs, repeats)
    print(
        f"{name:28} {fast * 1e3:9.2f} ms  {other} {slow * 1e3:9.2f} ms  ratio {slow / fast:6.1f}  "
        f"difference {abs(a - b) / abs(b):.1e}",
        flush=True,
    )
    return {"part": "torch", "what": name, "beside": other, "ms": fast * 1e3, "other_ms": slow * 1e3,
            "ratio": slow / fast}  # fmt: skip


def chains(batch: int, steps: int, n_tags: int, repeats: int) -> dict[str, Any]:
    """Log-likelihood and its gradient in float32, with a mask of new lengths in every run."""
    import torchcrf

    ours = pt.torch.LinearChain(n_tags, batch_first=True)
    theirs = torchcrf.CRF(n_tags, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    emissions = torch.randn(batch, steps, n_tags, requires_grad=True)
    tags = torch.randint(n_tags, (batch, steps))

    def run(model: torch.nn.Module) -> torch.Tensor:
        lengths = torch.randint(steps // 2, steps + 1, (batch,))
        lengths[0] = steps
        model.zero_grad()
        emissions.grad = None
        loss = -model(emissions, tags, mask=torch.arange(steps) < lengths[:, None])
        loss.backward()
        return loss.detach()

    return measured(
        f"chains {batch} x {steps} x {n_tags}", lambda: run(ours), lambda: run(theirs), "pytorch-crf", repeats
    )


def grids(side: int, n_states: int, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """TRW marginals of variables and the gradient of a function of them by nodes and pairs."""
    graph = pt.Graph.grid((side, side), n_states=n_states)
    n, m = graph.n_variables, len(graph.scopes["edge"])
    inference = pt.TRW(iterations=ITERATIONS, tol=0)
    layer = pt.torch.CRFLayer(graph, inference)
    counting = inference.counting_numbers(graph)
    twin = MessagePassingTwin(graph, counting[:n], counting[n : n + m])
    node = torch.randn(n, n_states, dtype=dtype, requires_grad=True)
    edge = torch.randn(m, n_states, n_states, dtype=dtype, requires_grad=True)
    direction = torch.randn(n, n_states, dtype=dtype)

    def run(marginals: Callable[[], torch.Tensor]) -> torch.Tensor:
        loss = (marginals() * direction).sum()
        torch.autograd.grad(loss, (node, edge))
        return loss.detach()

    return measured(
        f"grid {side} x {side} x {n_states} {str(dtype).removeprefix('torch.')}",
        lambda: run(lambda: layer({"node": node, "edge": edge})["variables"]),
        lambda: run(lambda: twin(node, edge, ITERATIONS)[0]),
        "plain torch",
        repeats,
    )


def main() -> None:
    """All sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of both (default 1)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the rows as JSON lines")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    with using_threads(given.threads):
        rows = [chains(*sizes, 16 * given.repeats) for sizes in CHAINS]
        rows += [grids(*sizes, dtype, given.repeats) for sizes in GRIDS for dtype in (torch.float64, torch.float32)]
    if given.out:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

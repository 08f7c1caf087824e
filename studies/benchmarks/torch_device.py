"""The tensor backend of `pt.torch` on a device, beside the kernels, pytorch-crf and plain PyTorch operations.

    python studies/benchmarks/torch_device.py --device cuda [--threads 2] [--repeats 5] [--out FILE]

Prints a table: milliseconds forward and backward of each way, runs alternating, the fastest of each counts. The kernels
run on the CPU and include the copies. Chains get new lengths in every run. pytorch-crf is left out if not installed
(`pip install pytorch-crf==0.7.2`), and plain PyTorch is the message passing of the tests' twin, on the same device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
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

Run = Callable[[], Any]


def fastest(runs: dict[str, Run], repeats: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of the fastest run of each, runs alternating."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats + 1):  # the first builds layouts
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def chains(batch: int, steps: int, n_tags: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Log-likelihood and its gradient in float32, with a mask of new lengths in every run."""
    models: dict[str, Any] = {
        backend: pt.torch.LinearChain(n_tags, batch_first=True, backend=backend).to(device)
        for backend in ("tensor", "kernels")
    }
    try:
        import torchcrf

        models["pytorch-crf"] = torchcrf.CRF(n_tags, batch_first=True).to(device)
    except ImportError:
        pass
    emissions = torch.randn(batch, steps, n_tags, device=device, requires_grad=True)
    tags = torch.randint(n_tags, (batch, steps), device=device)

    def run(model: torch.nn.Module) -> None:
        lengths = torch.randint(steps // 2, steps + 1, (batch, 1), device=device)
        lengths[0] = steps
        (-model(emissions, tags, mask=torch.arange(steps, device=device) < lengths)).backward()

    return fastest({name: partial(run, model) for name, model in models.items()}, repeats, device)


def grids(side: int, states: int, dtype: torch.dtype, device: torch.device, repeats: int) -> dict[str, float]:
    """TRW marginals of variables and the gradient of a function of them by nodes and pairs."""
    graph = pt.Graph.grid((side, side), n_states=states)
    n, m = graph.n_variables, len(graph.scopes["edge"])
    inference = pt.TRW(iterations=ITERATIONS, tol=0)
    node = torch.randn(n, states, dtype=dtype, device=device, requires_grad=True)
    edge = torch.randn(m, states, states, dtype=dtype, device=device, requires_grad=True)
    direction = torch.randn(n, states, dtype=dtype, device=device)

    def run(marginals: Callable[[], torch.Tensor]) -> None:
        torch.autograd.grad((marginals() * direction).sum(), (node, edge))

    def layer(backend: str) -> Run:
        made = pt.torch.CRFLayer(graph, inference, backend=backend).to(device)
        return lambda: run(lambda: made({"node": node, "edge": edge})["variables"])

    ways = {"tensor": layer("tensor"), "kernels": layer("kernels")}
    if device.type == "cpu":  # its index tensors are on the CPU
        counting = inference.counting_numbers(graph)
        twin = MessagePassingTwin(graph, counting[:n], counting[n : n + m])
        ways["plain torch"] = lambda: run(lambda: twin(node, edge, ITERATIONS)[0])
    return fastest(ways, repeats, device)


def images(batch: int, side: int, states: int, device: torch.device, repeats: int) -> dict[str, float]:
    """`RefineHead` on a batch of images, forward and backward in float32."""
    logits = torch.randn(batch, states, side, side, device=device, requires_grad=True)
    image = torch.rand(batch, 3, side, side, device=device)
    heads = {
        "tensor": pt.torch.RefineHead(states, 3, backend="tensor"),
        "kernels": pt.torch.RefineHead(states, 3, backend="kernels"),
        "dense grid": pt.torch.RefineHead(states, 3, dense="grid", colour=0.3),
    }
    for head in heads.values():
        head.to(device)

    def run(head: torch.nn.Module) -> None:
        head(logits, image).sum().backward()

    return fastest({name: partial(run, head) for name, head in heads.items()}, repeats, device)


def main() -> None:
    """All sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="such as cuda or mps (default cpu)")
    parser.add_argument("--threads", type=int, default=2, help="threads on the CPU (default 2)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="leave the largest grid out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the rows as JSON lines")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []

    def show(what: str, times: dict[str, float]) -> None:
        rows.append({"part": "torch-device", "what": what, "device": str(device), **times})
        print(f"{what:30} " + "  ".join(f"{name} {ms:9.2f} ms" for name, ms in times.items()), flush=True)

    with using_threads(options.threads):
        for size in CHAINS:
            show("chains " + " x ".join(map(str, size)), chains(*size, device, options.repeats))
        types = [torch.float32] if device.type == "mps" else [torch.float32, torch.float64]
        for side, states in GRIDS[: 1 if options.small else None]:
            for dtype in types:
                name = f"grid {side} x {side} x {states} {str(dtype).removeprefix('torch.')}"
                show(name, grids(side, states, dtype, device, options.repeats))
        show("images 4 x 64 x 64, 5 classes", images(4, 64, 5, device, options.repeats))
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

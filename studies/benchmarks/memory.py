"""Memory of fits whose data are elsewhere: parts in files, and sequences that workers of a cluster read.

    python studies/benchmarks/memory.py [--mib 1024] [--budget 200] [--out studies/benchmarks/memory.jsonl]

Out of core: binary grids of 100 x 100 with 20 node and 8 edge features in float32 (`--mib` of them in part files),
linear potentials and one step of the direct solver, with two and with three parts in memory, cut so that those take
`--budget` MiB. The peak is that of the process, less what it had after a fit of one image. The fit of the same parts in
memory is compared with them: the largest difference of a parameter.

Sequences: `potentia train --sequences --cluster local` with files of two sizes and the same words: the peak of the
command, which is the client and the scheduler. Every measurement runs in a separate process.
Needs Linux and `potentia[dask]`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from cluster import EDGE_FEATURES, NODE_FEATURES, SIDE, noise

import potentia as pt

ENTRIES = 2 * SIDE * SIDE + 4 * 2 * SIDE * (SIDE - 1)
FEATURE_BYTES = 4 * (NODE_FEATURES * SIDE * SIDE + EDGE_FEATURES * 2 * SIDE * (SIDE - 1))
#: Of an image in a fit: features, and 24 bytes of messages, biases and scores per table entry.
IMAGE_BYTES = FEATURE_BYTES + 24 * ENTRIES
SEQUENCE_MIB = (4, 16)
MIB = 2**20


def peak() -> float:
    """The most memory that this process has had, in MiB; `getrusage` counts that of its parent, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def fitted(data: Any) -> Any:
    """A CRF after one step."""
    learner = pt.IteratedLogistic(iterations=1, sweeps=5, tol=0.0, solver="direct", track_error=False)
    return pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit(data)


def fit_images(folder: str, parts_in_memory: str, entries: str, out: str) -> dict[str, Any]:
    """Fit part files with some of them in memory, or with 0 all examples, and write the parameters."""
    fitted(list(noise(1, SIDE)))
    before, start, resident = peak(), time.perf_counter(), int(parts_in_memory)
    files = pt.parts(folder, resident=max(resident, 1))
    crf = fitted(files if resident else pt.parts([e for part in files for e in part], part_entries=int(entries)))
    np.savez(out, **{kind: potential.coef_ for kind, potential in crf.potentials_.items()})
    return {"seconds": time.perf_counter() - start, "before_mib": before, "peak_mib": peak() - before}


def train_sequences(path: str, out: str) -> dict[str, Any]:
    """Train on a token file on two local workers."""
    from potentia.app.cli import main

    start = time.perf_counter()
    options = ["--cluster", "local", "--iterations", "3", "--quiet"]
    if main(["train", "--sequences", path, "--out", out, *options]):
        raise SystemExit("the command failed.")
    return {"seconds": time.perf_counter() - start, "peak_mib": peak()}


def write_tokens(path: Path, mib: float) -> None:
    """Sentences of random words, so few that the model is the same for all sizes."""
    draw, size = np.random.default_rng(0), 0
    words = [f"word{k:04}" for k in range(30)]
    with path.open("w") as file:
        while size < mib * MIB:
            numbers = draw.integers(len(words), size=20)
            size += file.write("".join(f"{words[k]}\t{'OBI'[k % 3]}\n" for k in numbers) + "\n")


def child(*arguments: Any) -> dict[str, Any]:
    """What a function of this file returns in a separate process."""
    command = [sys.executable, "-W", "ignore", __file__, "--call", *map(str, arguments)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]
    )
    return found


def out_of_core(mib: float, budget: float, folder: Path) -> list[dict[str, Any]]:
    """Rows of two and three resident parts, each beside the same parts in memory."""
    rows = []
    n_images = round(mib * MIB / FEATURE_BYTES)
    for resident in (2, 3):
        per_part = int(budget * MIB / resident / IMAGE_BYTES)
        data = folder / f"parts-{resident}"
        paths = pt.write_parts(noise(n_images, SIDE), data, part_entries=per_part * ENTRIES)
        outs = [folder / f"{resident}-{name}.npz" for name in ("files", "memory")]
        own, held = (
            child("images", data, n, per_part * ENTRIES, out) for n, out in zip((resident, 0), outs, strict=True)
        )
        files, memory = (dict(np.load(out)) for out in outs)
        rows.append(
            {
                "part": "out of core",
                "resident": resident,
                "parts": len(paths),
                "data_mib": n_images * FEATURE_BYTES / MIB,
                "budget_mib": budget,
                "before_mib": own["before_mib"],
                "peak_mib": own["peak_mib"],
                "memory_peak_mib": held["peak_mib"],
                "seconds": own["seconds"],
                "memory_seconds": held["seconds"],
                "difference": max(float(np.max(np.abs(files[k] - memory[k]))) for k in files),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        for path in paths:
            Path(path).unlink()
    return rows


def sequences(folder: Path) -> list[dict[str, Any]]:
    """Rows of both sizes."""
    rows = []
    for mib in SEQUENCE_MIB:
        path = folder / "tokens.tsv"
        write_tokens(path, mib)
        found = child("sequences", path, folder / "model")
        rows.append({"part": "client memory", "file_mib": mib, **found})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=1024)
    parser.add_argument("--budget", type=float, default=200)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the rows as JSON lines")
    parser.add_argument("--call", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore", pt.ConvergenceWarning)
    if given.call:
        name, *rest = given.call
        print(json.dumps(fit_images(*rest) if name == "images" else train_sequences(*rest)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = [*sequences(Path(folder)), *out_of_core(given.mib, given.budget, Path(folder))]
    if given.out:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

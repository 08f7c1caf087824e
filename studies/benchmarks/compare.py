"""Benchmarks of two versions, run in turns on one machine: the ratio of every line, new over old.

`python studies/benchmarks/compare.py f6c913a --rounds 7 --quick` checks the old commit out into a temporary folder,
runs `potentia bench` of both versions in turns, and prints the median of each time of the old one, of this one, and
their ratio; lines above 1.1 are marked. Run it on a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
#: What tells one line from another, and what it measures.
KEYS = ("part", "what", "graph", "scores", "method", "asked_threads", "data", "system")
MEASURES = ("ns_per_message", "inference_ms", "gradient_ms", "seconds", "predict_seconds", "memory_mib")


def measure(source, quick):
    """The times of one run of a version, by line."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "potentia", "bench", "--out", str(rows), *(["--quick"] * quick)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, source))}
        subprocess.run(command, check=True, env=environment, cwd=source[0].parent, stdout=subprocess.DEVNULL)
        found = {}
        for line in rows.read_text().splitlines():
            row = json.loads(line)
            name = ", ".join(str(row[key]) for key in KEYS if key in row)
            found |= {f"{name}: {key}": row[key] for key in MEASURES if isinstance(row.get(key), float)}
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="the version to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="smaller grids, fewer repetitions")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", old, arguments.commit], check=True, cwd=ROOT)
        try:
            runs = {"old": [], "new": []}
            for _ in range(arguments.rounds):
                for name, root in (("old", old), ("new", ROOT)):
                    runs[name].append(measure([root / "src", root / "studies", root], arguments.quick))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", old], check=True, cwd=ROOT)
    for line in [line for line in runs["old"][0] if line in runs["new"][0]]:
        before, after = (median(run[line] for run in runs[name]) for name in ("old", "new"))
        print(f"{after / before:6.2f}{' *' if after > 1.1 * before else '  '} {before:12.4g} {after:12.4g}  {line}")


if __name__ == "__main__":
    main()

"""What a first run costs: the size of an installation, and the demo with kernels that must be compiled.

    python studies/benchmarks/first_run.py [--out studies/benchmarks/first_run.jsonl]

Installs this folder with its dependencies into a new environment in a temporary folder, sums up the sizes of the files,
and runs `potentia demo` there: seconds, and seconds of CPU time, until its first model is trained and evaluated, and
until its end. CPU time depends less on what else the machine runs. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def megabytes(folder: Path) -> float:
    """Size of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def installed(folder: Path) -> tuple[Path, float]:
    """A new environment's programs, and what potentia and its dependencies added to it in MB."""
    # without compiled kernels, which an installation from this folder would copy
    left_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    sources = folder / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources / name)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    before = megabytes(environment)
    subprocess.run([environment / "bin" / "pip", "install", "--quiet", sources], check=True)
    return environment / "bin", megabytes(environment) - before


def cpu_seconds(process: int) -> float:
    """CPU time of a running process and of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def demo(programs: Path, folder: Path) -> dict[str, float]:
    """Seconds until the demo's first row is written, and until it ends."""
    rows = folder / "demo" / "denoising" / "rows.jsonl"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start, cpu, found = time.perf_counter(), 0.0, {}
    command = [programs / "potentia", "demo", "--out", folder / "demo"]
    with subprocess.Popen(command, env=clean, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None:
            cpu = cpu_seconds(run.pid)
            if not found and rows.exists() and rows.stat().st_size:
                found = {"first_model_seconds": time.perf_counter() - start, "first_model_cpu_seconds": cpu}
            time.sleep(0.1)
    if run.returncode or not found:
        raise SystemExit(f"The demo ended with exit code {run.returncode}.")
    return found | {"demo_seconds": time.perf_counter() - start, "demo_cpu_seconds": cpu}


def main() -> None:
    """Install, measure, print the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the row as a line of JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        programs, size = installed(Path(folder))
        seconds = demo(programs, Path(folder))
    row = {"part": "first run", "cores": os.cpu_count(), "installed_mb": size, **seconds}
    print(json.dumps(row))
    if given.out:
        given.out.write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

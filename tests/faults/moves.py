"""Kills at the last move of `predict --out`: a new folder is there whole or not at all, and one that was there before
holds the files of one run, all of them, once the next run has started.

`python tests/faults/moves.py --kills 40 --seed 1` kills predictions before one of the system's calls that a move
consists of, prints every failure, and exits with 1 if there is one. The two models name their classes by different
values, so that every file says which run wrote it.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from own_data import make_images
from potentia.app.cli import main as main_command

#: Children find the library imported.
FORK = multiprocessing.get_context("fork")
#: What a move begins with, and what it consists of.
FIRST, CALLS = ("rename", "replace"), ("rename", "replace", "unlink", "mkdir", "rmdir")


def command(line, die_at):
    """Run a command that dies before this call of its move; its exit code is the number of calls if it lives."""
    made = []

    def called(name, own, *args, **options):
        if made or name in FIRST:
            made.append(name)
        if made and len(made) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return own(*args, **options)

    for name in CALLS:
        own = getattr(os, name)
        setattr(os, name, lambda *args, name=name, own=own, **options: called(name, own, *args, **options))
    code = main_command([*line, "--quiet"])
    os._exit(255 if code else len(made))


def run(line, die_at=0):
    """The number of calls of a move, in a process of its own; negative if it was killed."""
    process = FORK.Process(target=command, args=(line.split(), die_at))
    process.start()
    process.join()
    if process.exitcode == 255:
        raise SystemExit(f"potentia {line}: failed")
    return process.exitcode


def content(folder):
    """Names and bytes of the files of p0, p1, ... in a folder's subfolders."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("p*.*") if p.is_file()}


def campaign(kills, rng):
    """How many predictions were killed, and what was wrong."""
    count, wrong = 0, []
    os.chdir(tempfile.mkdtemp())
    for name, values in (("old", (0, 7)), ("new", (1, 9))):
        Path(name).mkdir()
        make_images(Path(name), values=values)
        # in this process, so that its children find everything loaded
        main_command(
            f"train --images {name}/photos --masks {name}/masks --out {name}/model --threads 1 --quiet".split()
        )
    Path("one").mkdir()
    shutil.copy("old/photos/p0.png", "one/q.png")
    replacing = "predict new/model --images new/photos --out out"
    run("predict old/model --images old/photos --out old/out --marginals npz")
    shutil.copytree("old/out", "out")
    longest = {True: run(replacing)}
    old, new = content(Path("old/out")), content(Path("out"))
    shutil.rmtree("out")
    longest[False] = run(replacing)
    for number in range(kills):
        there = bool(number % 4)
        shutil.rmtree("out", ignore_errors=True)
        if there:
            shutil.copytree("old/out", "out")
        die_at = rng.randint(1, longest[there])
        count += run(replacing, die_at) < 0
        at = f"kill before call {die_at} of {longest[there]}, {'old' if there else 'no'} folder"
        if not there and Path("out").exists() and content(Path("out")) != new:
            wrong.append(f"{at}: the new folder is not whole")
        run("predict old/model --images one --out out")
        if content(Path("out")) not in ([old, new] if there else [{}, new]):
            wrong.append(f"{at}: the folder holds files of two runs, or not all of one")
        left = [path.name for path in Path().iterdir() if path.name.startswith(".")]
        wrong += [f"{at}: left {left}"] if left else []
    shutil.rmtree(Path.cwd())
    return count, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    count, wrong = campaign(arguments.kills, random.Random(arguments.seed))
    print(*wrong, f"{count} of {arguments.kills} killed, {len(wrong)} failures", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

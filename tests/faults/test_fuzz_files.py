"""The short form of the file fuzzer, in a process of its own, so that a crash is seen."""

import subprocess
import sys
from pathlib import Path


def test_altered_files_give_a_working_object_or_one_sentence():
    script = Path(__file__).with_name("fuzz_files.py")
    found = subprocess.run(
        [sys.executable, script, "--trials", "150", "--seed", "4"], capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "works" in found.stdout
    assert " index " in found.stdout
    assert "refused" in found.stdout

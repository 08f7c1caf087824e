"""Short forms of the campaigns of `make faults`, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("kills.py", ["--kills", "1", "--pairs", "1", "--learners", "direct", "soft-3"]),
        ("soak.py", ["--calls", "120"]),
        ("api_calls.py", ["--calls", "400"]),
        ("moves.py", ["--kills", "8"]),
    ],
)
def test_the_short_campaign_finds_no_failure(script, options):
    path = Path(__file__).with_name(script)
    done = subprocess.run([sys.executable, path, *options], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout

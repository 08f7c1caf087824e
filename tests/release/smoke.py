"""What `make release` runs in an environment that has the wheel alone: the demo, a fit, a saved model."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

import potentia as pt

assert version("potentia") == pt.__version__
assert Path(pt.__file__).is_relative_to(sys.prefix), f"this is not the installed wheel but {pt.__file__}"

command = Path(sys.prefix) / "bin" / "potentia"
subprocess.run([command, "demo", "--out", "demo"], check=True)
assert (Path("demo") / "report.html").stat().st_size > 10_000

train, test = pt.datasets.denoising(4, (20, 20), seed=0), pt.datasets.denoising(2, (20, 20), seed=1)
crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}).fit(train)
crf.save("smoke.potentia")
for found, again in zip(crf.predict(test), pt.load("smoke.potentia").predict(test), strict=True):
    assert np.array_equal(found, again)
print(f"potentia {pt.__version__}: the demo, a fit ({crf.score(test):.0%} right) and a saved model work.")

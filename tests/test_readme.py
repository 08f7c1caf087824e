"""The README's first example runs as printed and says what it promises."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_ten_line_example_runs(capsys):
    first = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)[0]
    assert len(first.strip().splitlines()) <= 12
    names = {}
    exec(first, names)
    result = names["result"]
    assert result.bound == "upper"
    assert result.converged
    assert names["labels"].shape == (100, 100)
    assert str(result.value) in capsys.readouterr().out

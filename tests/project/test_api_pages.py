"""The reference: every public name has an example that runs, and says what each of its options does."""

import doctest
import inspect
import re
import types

import pytest

import potentia as pt

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")]


def _public():
    """{name: class or function} of the package and of its `extend` and `multilabel`."""
    spaces = {"": pt, "extend.": pt.extend, "multilabel.": pt.multilabel}
    found = {prefix + name: getattr(space, name) for prefix, space in spaces.items() for name in space.__all__}
    return {name: value for name, value in found.items() if not isinstance(value, types.ModuleType)}


PUBLIC = _public()


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name):
    if name == "LightGBM":
        pytest.importorskip("lightgbm")
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(inspect.unwrap(PUBLIC[name]), name, module=False, globs={"__name__": "__main__"})
    assert example.examples, f"{name} has no example"
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert runner.run(example, out=said.append).failed == 0, "".join(said)


def _undocumented(value):
    """Parameters of a class or function, those without a default left out for functions, that its text never names."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return []
    options = inspect.signature(value).parameters.values()
    classes = [c for c in getattr(value, "__mro__", [value]) if c.__module__.startswith("potentia")] or [value]
    text = "\n".join(vars(c).get("__doc__") or "" if inspect.isclass(c) else c.__doc__ for c in classes)
    needed = [o.name for o in options if inspect.isclass(value) or o.default is not o.empty]
    return [name for name in needed if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_option_is_documented(name):
    assert not _undocumented(PUBLIC[name])

"""Types, errors, and checks of arrays and options."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import FrameType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Scores or marginals per kind: one array, or a list of arrays where state counts are mixed.
Tables = Mapping[str, Floats | Sequence[Floats]]

#: Anything NumPy can turn into an array.
ArrayLike = Any

V = TypeVar("V")


class lazy(Generic[V]):  # noqa: N801
    """An attribute computed at first use and then stored in the instance.

    As `functools.cached_property`, whose lock before Python 3.12 lets only one thread at a time compute it for any
    instance.
    """

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> V:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self._name] = self._make(instance)
        return value


def printable(text: str) -> str:
    """The text with control characters and line breaks escaped: names that files hold may have any."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class PotentiaError(ValueError):
    """Input that cannot be used; the message is one sentence that names the field, shape or file.

    Example:
        >>> import potentia as pt
        >>> try:
        ...     pt.TRW(iterations=-1).infer(pt.Graph.chain(2, n_states=2), {})
        ... except pt.PotentiaError as error:
        ...     print(error)
        iterations must be a whole number >= 0, not -1.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """One sentence where memory ends although estimates said that there is enough."""
    try:
        yield
    except MemoryError as error:
        said = f" ({str(error).splitlines()[0]})" if str(error) else ""
        raise PotentiaError(
            f"{what} needs more memory than there is{said}; use less data at a time, or fewer variables or states."
        ) from None


class InfeasibleError(PotentiaError):
    """Every labelling is forbidden: some region or variable has no state with a finite score.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> try:
        ...     pt.Exact().infer(pt.Graph.chain(2, n_states=2), {"edge": np.full((2, 2), -np.inf)})
        ... except pt.InfeasibleError as error:
        ...     print(error)
        theta['edge'][0] (variables [0, 1]) forbids every configuration.
    """


class WidthError(PotentiaError):
    """Exact inference would need a table larger than allowed; the message states the width.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> try:
        ...     pt.Exact(max_table=1000).infer(pt.Graph.grid((20, 20), n_states=2), {"edge": np.eye(2)})
        ... except pt.extend.WidthError as error:
        ...     print("too wide")
        too wide
    """


class ConvergenceWarning(UserWarning):
    """An iterative method stopped before it met its tolerance, or a gradient is inaccurate.

    Example:
        >>> import potentia as pt
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", pt.ConvergenceWarning)  # few iterations are intended
        ...     crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, pt.MarginalRisk(iterations=2))
        ...     crf = crf.fit(pt.datasets.denoising(1, (8, 8), seed=0))
    """


def within_package(frame: FrameType, package: str = __name__.partition(".")[0]) -> bool:
    """Whether a frame runs code of this package, or of another one."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == package


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that led here: the first frame outside this package and PyTorch."""
    message = printable(message)
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and (within_package(frame) or within_package(frame, "torch")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def plain_array(values: ArrayLike, name: str, dtype: Any = None) -> NDArray[Any]:
    """The values as an array; refuses what is no array of one shape, and masked values, which NumPy would unmask."""
    if np.ma.is_masked(values):
        raise PotentiaError(
            f"{name} is a masked array, whose mask would be lost; fill it first, labels with .filled(-1)."
        )
    if isinstance(values, Iterator | Set | Mapping):
        raise PotentiaError(f"{name} must be an array or a list, not a {type(values).__name__}.")
    try:
        given = np.asarray(values)
        if dtype is not None and given.dtype.kind == "c":
            raise TypeError("it holds complex numbers")
        return given if dtype is None else given.astype(dtype, copy=False)
    # other libraries' tensors raise RuntimeError, and integers beyond 64 bits OverflowError
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        reason = "its rows differ in length" if "inhomogeneous" in reason else reason
        raise PotentiaError(f"{name} is not an array of numbers of one shape ({reason}).") from None


def whole_numbers(values: ArrayLike, name: str) -> Ints:
    """The values as 64-bit integers; refuses fractions, infinities and anything but numbers."""
    given = plain_array(values, name)
    kind = given.dtype.kind
    whole = kind in "bi" or (kind == "u" and bool(np.all(given < 2**63)))
    if kind == "f":
        whole = bool(np.all((np.abs(given) < 2**53) & (given == np.floor(given))))
    if not whole and given.size:
        raise PotentiaError(f"{name} must hold whole numbers, not {given.dtype}.")
    return given.astype(np.int64)


def shown(value: Any) -> str:
    """A value that was given, for a message: on one line, and not all of it."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def real_number(value: Any, name: str) -> float:
    """The value as a float; refuses anything but one number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise PotentiaError(f"{name} must be a number, not {shown(value)}.")
    try:
        return float(value)
    except OverflowError:
        raise PotentiaError(f"{name} must be a number that a double can hold.") from None


def real_numbers(values: ArrayLike, name: str) -> Floats:
    """The values as an array of doubles; refuses anything but numbers of one shape."""
    return plain_array(values, name, float)


def finite_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """The values as an array that keeps their numeric type; refuses anything but finite numbers of one shape."""
    given = plain_array(values, name)
    if given.dtype.kind not in "fiub":
        raise PotentiaError(f"{name} must hold real numbers, not {given.dtype}.")
    # the sum is finite unless a value is not, or finite ones overflow: only then is every value looked at
    if given.dtype.kind == "f" and not np.isfinite(given.sum(dtype=np.float64)):
        bad = np.argwhere(~np.isfinite(given))
        if len(bad):
            raise PotentiaError(f"{name} holds a value that is not finite at {tuple(bad[0].tolist())}.")
    return given


def length(value: Any) -> int | None:
    """The number of items; None of what has none, such as numbers, generators and arrays without axes."""
    try:
        return len(value)
    except TypeError:
        return None


def is_number(text: str) -> bool:
    """Whether a text is a number, without underscores, which Python takes for separators of digits."""
    try:
        return "_" not in text and float(text) is not None
    except ValueError:
        return False


def check_count(name: str, value: object, least: int = 0, *, optional: bool = False) -> None:
    """A whole number of at least `least`, and small enough for kernels; or None if that is `optional`."""
    if optional and value is None:
        return
    if isinstance(value, int) and abs(value) >= 2**63:
        raise PotentiaError(f"{name} must be a whole number below 2^63.")
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise PotentiaError(f"{name} must be a whole number >= {least}, not {shown(value)}.")


def check_share(name: str, value: object, top: float | None = None) -> None:
    """A number >= 0, and below `top` where given."""
    number = real_number(value, name)
    if not number >= 0 or (top is not None and number >= top):
        limit = ">= 0" if top is None else f"in [0, {top:g})"
        raise PotentiaError(f"{name} must be {limit}, not {shown(value)}.")


def check_number(name: str, value: object, least: float = 0.0, most: float = math.inf) -> None:
    """A finite number within bounds."""
    if not least <= real_number(value, name) <= min(most, sys.float_info.max):
        bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise PotentiaError(f"{name} must be a finite number, {bounds}, not {shown(value)}.")


def check_positive(name: str, value: object, most: float = sys.float_info.max) -> None:
    """A number above zero, by default a finite one."""
    if not 0 < real_number(value, name) <= most:
        kind = "number" if most == math.inf else "finite number"
        top = f" and at most {most:g}" if most < sys.float_info.max else ""
        raise PotentiaError(f"{name} must be a {kind} above 0{top}, not {shown(value)}.")


def check_flag(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise PotentiaError(f"{name} must be True or False, not {shown(value)}.")


def check_choice(name: str, value: object, choices: Collection[object], other: str = "") -> None:
    """One of some texts or numbers; `other` names what else the option may be, "None" allows that."""
    if other == "None" and value is None:
        return
    if not isinstance(value, str | int | np.integer) or isinstance(value, bool) or value not in choices:
        more = f" or {other}" if other else ""
        raise PotentiaError(f"{name} must be one of {', '.join(map(repr, choices))}{more}, not {shown(value)}.")


def by_name(name: str, value: Any, makers: Mapping[str, Callable[[], V]], kind: Any) -> V:
    """An option that is an object of some kind, or the name of what makes one with default options."""
    if not isinstance(value, kind):
        check_choice(name, value, makers, f"a {kind.__name__}")
        value = makers[value]()
    found: V = value
    return found


def check_type(name: str, value: object, *kinds: type, optional: bool = False) -> None:
    """An object of one of some classes, or None if that is allowed."""
    if not isinstance(value, kinds) and not (optional and value is None):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise PotentiaError(f"{name} must be a {wanted}, not {shown(value)}.")


def check_function(name: str, value: object) -> None:
    """A function, or None."""
    if value is not None and not callable(value):
        raise PotentiaError(f"{name} must be a function, not {shown(value)}.")


def texts_of(name: str, values: Any) -> list[str]:
    """The texts of a list of texts; one text is none."""
    if isinstance(values, str | bytes | Mapping) or not np.iterable(values):
        raise PotentiaError(f"{name} must be a list of texts, not {shown(values)}.")
    found = list(values)
    for number, value in enumerate(found):
        if not isinstance(value, str):
            raise PotentiaError(f"{name}[{number}] must be a text, not {shown(value)}.")
    return found


def check_size(name: str, value: Any) -> tuple[int, int]:
    """A height and a width, as whole numbers of at least 1."""
    sides = whole_numbers(value, name)
    if sides.shape != (2,) or sides.min() < 1:
        raise PotentiaError(f"{name} must be a height and a width of at least 1, not {shown(value)}.")
    return int(sides[0]), int(sides[1])


def prefixed(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays whose names begin with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def entropies(p: Floats) -> Floats:
    """Entropy in nats along the last axis of probabilities."""
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1))

"""Classes that files name: registered by subclassing, described as JSON with their options, and rebuilt from it.

A file never names a module to import or a function to call: only classes that the running program has already defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from ._types import PotentiaError

_CLASSES: dict[str, type[Registered]] = {}
#: The library's own classes that are imported at first use, and their modules.
_LATE = {"Network": "potentia.torch"}
#: Keys of JSON objects that encode something other than a dictionary.
_MARKS = ({"class", "options"}, {"mapping"}, {"function"})


class Registered:
    """Base of every class that files may name: potentials, losses, gradients, inference, learners and models.

    A subclass is known from its definition on. Its options are what `get_params` returns, or the fields of a dataclass,
    and its constructor takes them as keywords.
    """

    #: Options under names that older files use; None for one that no longer exists.
    renamed_options: ClassVar[Mapping[str, str | None]] = {}

    @classmethod
    def decode_option(cls, name: str, value: Any) -> Any:
        """An option of a file as the constructor takes it."""
        return value

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _CLASSES[saved_name(cls)] = cls


@dataclass(frozen=True)
class SavedFunction:
    """Stands for a function among the options of a saved object, of which a file holds the name only."""

    name: str

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse, because the function is not in the file."""
        raise PotentiaError(
            f"the function {self.name} is not in the file that named it: set that option again first."
        )


def saved_name(cls: type) -> str:
    """The library's own classes by name, so that files survive a move; others with their module."""
    own = cls.__module__.startswith("potentia.")
    return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"


def find_class(name: Any, base: type) -> type[Any]:
    """The registered subclass of `base` that a file names."""
    if isinstance(name, str) and name in _LATE and name not in _CLASSES:
        import_module(_LATE[name])
    found = _CLASSES.get(name) if isinstance(name, str) else None
    if found is not None and issubclass(found, base) and not inspect.isabstract(found):
        return found
    if isinstance(name, str) and "." in name:
        raise PotentiaError(f"the file names the class {name}, which is unknown: import its module first.")
    raise PotentiaError(f"the file names the class {name!r}, which is not a {base.__name__} of this version.")


def to_json(thing: Registered | None) -> dict[str, Any] | None:
    """{"class": name, "options": {...}}, options being plain values, lists, dictionaries and further such objects.

    Arrays and tuples become lists. A function is recorded by its name only, see `SavedFunction`; anything else is
    refused.
    """
    if thing is None:
        return None
    name = type(thing).__name__
    if not isinstance(thing, Registered):
        raise PotentiaError(
            f"an object of class {name} cannot be saved: derive its class from a base class of potentia."
        )
    return {
        "class": saved_name(type(thing)),
        "options": {key: encode(value, f"{key} of {name}") for key, value in _options(thing).items()},
    }


def from_json(content: Any, base: type) -> Any:
    """The object of a subclass of `base` that `to_json` described."""
    if content is None:
        return None
    if not isinstance(content, dict) or set(content) != {"class", "options"}:
        raise PotentiaError(f"the file describes no {base.__name__} where one is expected.")
    if not isinstance(content["options"], dict):
        raise PotentiaError(f"the file holds no options of {content['class']!r}.")
    return build(
        find_class(content["class"], base), {key: decode(value) for key, value in content["options"].items()}
    )


def build(cls: type[Any], options: Mapping[str, Any]) -> Any:
    """An object of a class with the options of a file, under the names of this version."""
    names = {key: cls.renamed_options.get(key, key) for key in options}
    given = {name: cls.decode_option(name, options[key]) for key, name in names.items() if name is not None}
    try:
        inspect.signature(cls).bind(**given)
    except TypeError as error:
        raise PotentiaError(f"the file has options that {cls.__name__} does not take: {error}.") from None
    return cls(**given)


def _options(thing: Registered) -> dict[str, Any]:
    """The options of an object, which its constructor must take."""
    found = {}
    if hasattr(thing, "get_params"):
        found = thing.get_params(deep=False)
    elif is_dataclass(thing):
        found = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    try:
        inspect.signature(type(thing)).bind(**found)
    except TypeError as error:
        raise PotentiaError(
            f"a {type(thing).__name__} cannot be saved: make it a dataclass or define get_params ({error})."
        ) from None
    if vars(thing) and not found:
        raise PotentiaError(
            f"a {type(thing).__name__} cannot be saved: make it a dataclass or define get_params."
        )
    return found


def encode(value: Any, name: str) -> Any:
    """An option's value as JSON; `name` is how errors call it."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Registered):
        return to_json(value)
    if isinstance(value, list | tuple | range):
        return [encode(item, name) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and set(value) not in _MARKS:
            return {key: encode(item, name) for key, item in value.items()}
        return {"mapping": [[encode(key, name), encode(item, name)] for key, item in value.items()]}
    if isinstance(value, SavedFunction):
        return {"function": value.name}
    if callable(value):
        known = value if hasattr(value, "__qualname__") else type(value)
        return {"function": f"{known.__module__}.{known.__qualname__}"}
    raise PotentiaError(f"{name} of type {type(value).__name__} cannot be saved.")


def decode(value: Any) -> Any:
    """The value that `encode` wrote."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"class", "options"}:
        return from_json(value, Registered)
    if set(value) == {"mapping"}:
        return {decode(key): decode(item) for key, item in value["mapping"]}
    if set(value) == {"function"}:
        return SavedFunction(str(value["function"]))
    return {key: decode(item) for key, item in value.items()}

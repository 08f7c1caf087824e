"""Part files: consecutive examples in one file of JSON and arrays, and data sets made of them.

Equal graphs are stored once, and features of one kind, type and width below each other, so that a file of many small
examples has few arrays. float32 and sparse features are stored as such.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.files import new_folder
from ..base.saving import read_file, reading, write_file
from ..base.schema import FLAG, Array, Count, Items, Kind, Named, Schema, Section, check
from ..base.types import PotentiaError, check_count
from ..features.example import Example
from ..features.parts import Loaded, Parts, Source
from ..graph.structure import Graph
from ..graph.union import Union
from .data import PART_ENTRIES, checked_examples, cut_examples, hold_examples

KIND = "part"
ENDING = ".potentia"
_STEM = "part-"

_CONTENT: Schema = {
    "graphs": Items(
        Section(
            {
                "n_variables": Count(least=1),
                "regions": Named(Items(Count())),
                "forests": Count(optional=True),
                "parts": Items(Count(), optional=True),
            }
        )
    ),
    "examples": Items(
        Section(
            {
                "graph": Count(),
                "name": Kind((str,), optional=True),
                "features": Named(Count()),
                "inputs": Named(Count()),
                "labels": FLAG,
                "weights": FLAG,
            }
        )
    ),
    "matrices": Items(Section({"sparse": FLAG, "columns": Count(most=2**62)})),
}
_FLAT: Schema = {
    "n_states": Array("i8", ("*",), low=1, below=2**48 + 1),
    "scopes": Array("i8", ("*",), low=0, below=2**48),
    "labels": Array("i8", ("*",), low=-1, below=2**48),
    "weights": Array("f8", ("*",)),
}


def parts(items: Any, *, part_entries: int | None = None, resident: int = 1) -> Parts:
    """A data set in parts, which are read when they are visited.

    Args:
        items: a folder that `write_parts` wrote; a list of paths of part files, functions of no arguments that return
            lists of examples, Dask delayed objects of such lists, and examples; or a Dask bag of examples. Each file,
            function, delayed object or partition is one part; examples next to each other are cut.
        part_entries: table entries (regions times configurations) of a part of examples given as such; about 4 million
            by default. Results depend on the cuts by rounding only, and not on who works on which part.
        resident: how many parts are in memory at once where they are not all. A fit reads all others again in each
            round; its messages wait in a temporary folder (TMPDIR).

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> examples = pt.datasets.denoising(4, (8, 8), seed=0)
        >>> data = pt.parts([lambda k=k: examples[k : k + 2] for k in (0, 2)])
        >>> len(data), [len(part) for part in data]
        (2, [2, 2])
    """
    check_count("resident", resident, 1)
    check_count("part_entries", part_entries, 1, optional=True)
    sources: list[Source] = []
    n_examples = 0
    for held, group in itertools.groupby(_items(items), lambda item: isinstance(item, Example)):
        if held:
            examples = list(group)
            sources += hold_examples(examples, part_entries or PART_ENTRIES, n_examples)
            n_examples += len(examples)
        else:
            sources += [_source(item) for item in group]
    if part_entries is not None and not n_examples:
        raise PotentiaError("part_entries cuts examples given as such; `write_parts` takes it for files.")
    return Parts(sources, resident)


def _items(items: Any) -> list[Any]:
    """The parts as a list: files of a folder, partitions of a bag, or the items themselves."""
    if isinstance(items, str | os.PathLike):
        folder = Path(items)
        paths = sorted(folder.glob(f"{_STEM}*{ENDING}")) if folder.is_dir() else [folder]
        if not paths:
            raise PotentiaError(f"{folder} holds no files named {_STEM}*{ENDING}.")
        return list(paths)
    if hasattr(items, "to_delayed"):
        return list(items.to_delayed())
    if isinstance(items, Parts) or not isinstance(items, Iterable):
        raise PotentiaError(f"parts must be a folder or a list of paths and functions, not a {type(items).__name__}.")
    return list(items)


def _source(item: Any) -> Source:
    """The source of a part: a file, a delayed object or a function."""
    if isinstance(item, str | os.PathLike):
        path = os.path.abspath(item)
        return Loaded(partial(read_part, path), path, path)
    if hasattr(item, "__dask_graph__"):
        return Loaded(partial(_compute, item), str(getattr(item, "key", "delayed")))
    if callable(item):
        return Loaded(item)
    raise PotentiaError(
        f"a part must be a path, a function that returns examples or an Example, not a {type(item).__name__}."
    )


def _compute(delayed: Any) -> Any:
    """What a Dask delayed object stands for, computed in this process."""
    import dask

    return delayed.compute(scheduler=dask.get)


def write_parts(
    examples: Iterable[Example], folder: str | os.PathLike[str], *, part_entries: int | None = None
) -> list[Path]:
    """Write examples to part files in a folder, which is made if need be; returns the files.

    Examples are taken one by one, so an iterator over more than memory holds will do.
    `part_entries`: table entries of a part, about 4 million by default.

    Example:
        >>> import potentia as pt
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = pt.write_parts(pt.datasets.denoising(4, (8, 8), seed=0), folder, part_entries=1)
        ...     data = pt.parts(folder)
        ...     len(files), sum(len(part) for part in data)
        (4, 4)
    """
    check_count("part_entries", part_entries, 1, optional=True)
    target = new_folder(folder)
    if any(target.glob(f"{_STEM}*{ENDING}")):
        raise PotentiaError(f"{target} already holds part files; delete them or choose another folder.")
    paths = []
    for number, chosen in enumerate(cut_examples(checked_examples(examples), part_entries or PART_ENTRIES)):
        paths.append(target / f"{_STEM}{number:05d}{ENDING}")
        write_part(paths[-1], chosen)
    if not paths:
        raise PotentiaError("there are no examples.")
    return paths


# -- writing ---------------------------------------------------------------------------------------------------


def _number(graph: Graph, graphs: list[Graph], numbers: dict[str, int]) -> int:
    """The number of a graph among different ones, by its digest; what a union is made of comes before it."""
    if graph.digest not in numbers:
        for part in graph.made_of:
            _number(part, graphs, numbers)
        numbers[graph.digest] = len(graphs)
        graphs.append(graph)
    return numbers[graph.digest]


def write_part(path: str | os.PathLike[str], examples: Sequence[Example]) -> None:
    """Write consecutive examples to one file."""
    graphs, numbers = list[Graph](), dict[str, int]()
    matrices: dict[tuple[Any, ...], list[Any]] = {}
    inputs: list[Any] = []
    entries = []
    for example in examples:
        stores = {}
        for kind, x in example.features.items():
            sparse = not isinstance(x, np.ndarray)
            key = kind, sparse, x.dtype.str, x.shape[1]
            matrices.setdefault(key, []).append(x)
            stores[kind] = list(matrices).index(key)
        entries.append(
            {
                "graph": _number(example.graph, graphs, numbers),
                "name": example.name,
                "features": stores,
                "inputs": {kind: len(inputs) + k for k, kind in enumerate(example.inputs)},
                "labels": example.labels is not None,
                "weights": example.weights is not None,
            }
        )
        inputs += example.inputs.values()
    metas = [
        {
            "n_variables": graph.n_variables,
            "regions": {kind: list(scope.shape) for kind, scope in graph.scopes.items()},
            "forests": graph.n_forests,
            "parts": [numbers[part.digest] for part in graph.made_of] or None,
        }
        for graph in graphs
    ]
    content = {
        "graphs": metas,
        "examples": entries,
        "matrices": [{"sparse": key[1], "columns": key[3]} for key in matrices],
    }
    flat = {
        "n_states": _joined([graph.n_states for graph in graphs], np.int64),
        "scopes": _joined([s.ravel() for graph in graphs for s in graph.scopes.values()], np.int64),
        "labels": _joined([e.labels for e in examples if e.labels is not None], np.int64),
        "weights": _joined([e.weights for e in examples if e.weights is not None], np.float64),
    }
    for number, blocks in enumerate(matrices.values()):
        flat |= {f"matrix{number}/{name}": array for name, array in _stacked(blocks).items()}
    flat |= {f"input{number}": array for number, array in enumerate(inputs)}
    write_file(path, KIND, content, flat)


def _joined(arrays: Sequence[Any], dtype: Any) -> Any:
    """Arrays one after another, of one type also where there are none."""
    return np.concatenate([np.zeros(0, dtype), *arrays], dtype=dtype)


def _stacked(blocks: Sequence[Any]) -> dict[str, Any]:
    """Matrices of one kind, type and width below each other."""
    if isinstance(blocks[0], np.ndarray):
        return {"values": blocks[0] if len(blocks) == 1 else np.concatenate(blocks)}
    lengths = np.concatenate([np.diff(block.indptr) for block in blocks])
    return {
        "values": np.concatenate([block.data for block in blocks]),
        "columns": np.concatenate([block.indices for block in blocks]).astype(np.int64),
        "offsets": np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
    }


# -- reading ---------------------------------------------------------------------------------------------------


class _Cursor:
    """Takes consecutive entries of an array, or rows of a CSR matrix; errors call them by `unit`."""

    def __init__(self, array: Any, name: str, unit: str = "entries") -> None:
        self.array, self.name, self.unit, self.at = array, name, unit, 0

    def take(self, n: int) -> Any:
        """The next n entries."""
        self.at += n
        size = self.array.shape[0]
        if self.at > size:
            raise PotentiaError(f"the saved part is damaged: {self.name} has {size} {self.unit}, too few.")
        return self.array[self.at - n : self.at]


def read_part(path: str | os.PathLike[str]) -> list[Example]:
    """The examples that `write_part` wrote; what the file holds is checked before it is used."""
    with reading(path):
        content, arrays = read_file(path, KIND)
        meta_data = check(_CONTENT, content, KIND)
        flat = {name: _Cursor(array, name) for name, array in check(_FLAT, arrays, KIND).items()}
        graphs = _read_graphs(meta_data["graphs"], flat)
        matrices = [_matrix(number, meta, arrays) for number, meta in enumerate(meta_data["matrices"])]
        stored = (arrays.get(f"input{k}") for k in itertools.count())
        inputs = list(itertools.takewhile(lambda array: array is not None, stored))
        return [_read_example(meta, graphs, matrices, inputs, flat) for meta in meta_data["examples"]]


def _read_graphs(metas: Sequence[Mapping[str, Any]], flat: Mapping[str, _Cursor]) -> list[Graph]:
    """The graphs of a file, unions made of those before them."""
    graphs: list[Graph] = []
    for meta in metas:
        states = flat["n_states"].take(meta["n_variables"])
        scopes = {}
        for kind, shape in meta["regions"].items():
            if len(shape) != 2:
                raise PotentiaError(f"the saved part is damaged: regions of {kind!r} have the shape {shape}.")
            scopes[kind] = flat["scopes"].take(shape[0] * shape[1]).reshape(shape)
        if meta["parts"]:
            parts = [_chosen(graphs, number, "graph") for number in meta["parts"]]
            graphs.append(_read_union(parts, Graph(states, scopes)))
        else:
            graphs.append(Graph.restored(states, scopes, meta["forests"]))
    return graphs


def _read_union(parts: Sequence[Graph], stated: Graph) -> Graph:
    """The union of graphs, which must be the stated one; no union larger than that is made."""
    size = (sum(part.n_variables for part in parts), sum(len(s) for part in parts for s in part.scopes.values()))
    if size == (stated.n_variables, sum(map(len, stated.scopes.values()))):
        graph = Union(parts).graph
        same = graph.kinds == stated.kinds and np.array_equal(graph.n_states, stated.n_states)
        if same and all(np.array_equal(graph.scopes[kind], s) for kind, s in stated.scopes.items()):
            return graph
    raise PotentiaError("the saved part is damaged: a union is not that of its graphs.")


def _read_example(
    meta: Mapping[str, Any],
    graphs: Sequence[Graph],
    matrices: Sequence[_Cursor],
    inputs: Sequence[Any],
    flat: Mapping[str, _Cursor],
) -> Example:
    """An example from its description and the next entries of the file's arrays."""
    graph: Graph = _chosen(graphs, meta["graph"], "graph")
    features = {}
    for kind, number in meta["features"].items():
        features[kind] = _chosen(matrices, number, "matrix").take(len(graph.scopes.get(kind, range(graph.n_variables))))
    labels = flat["labels"].take(graph.n_variables) if meta["labels"] else None
    weights = flat["weights"].take(graph.n_variables) if meta["weights"] else None
    whole = {kind: _chosen(inputs, number, "input") for kind, number in meta["inputs"].items()}
    return Example(graph, features, labels, weights, meta["name"], whole)


def _chosen(items: Sequence[Any], number: int, what: str) -> Any:
    """The item that a file names by number; refuses numbers beyond the last."""
    if number >= len(items):
        raise PotentiaError(f"the saved part is damaged: it names {what} {number} of {len(items)}.")
    return items[number]


def _matrix(number: int, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> _Cursor:
    """A cursor over the rows of a feature matrix, dense or CSR."""
    name, columns = f"matrix{number}", meta["columns"]
    if not meta["sparse"]:
        schema: Schema = {f"{name}/values": Array("f4 f8", ("*", columns))}
        return _Cursor(check(schema, arrays, KIND)[f"{name}/values"], name)
    from scipy import sparse

    schema = {
        f"{name}/values": Array("f4 f8", ("nnz",)),
        f"{name}/columns": Array("i8", ("nnz",), low=0, below=columns),
        f"{name}/offsets": Array("i8", ("*",), ends="nnz"),
    }
    values, indices, offsets = check(schema, arrays, KIND).values()
    shape = len(offsets) - 1, columns
    return _Cursor(sparse.csr_array((values, indices, offsets), shape=shape), name, "rows")

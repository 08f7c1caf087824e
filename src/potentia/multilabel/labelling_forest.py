"""A random forest over whole labellings: how often training rows that reach the same leaves have each labelling."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from .._schema import Array, Rule, Schema
from .._threads import map_items, thread_count
from .._types import Bools, Floats, Ints

#: Rows whose features are spread out at once.
_CHUNK = 1000

#: What a file holds: the trees one after another, a leaf's left child being -1.
FOREST: Schema = {
    "labellings": Array("f8", ("L", "V"), low=-1),
    "left": Array("i8", ("m",), low=-1, below="m"),
    "right": Array("i8", ("m",), low=-1, below="m"),
    "feature": Array("i8", ("m",), low=0, below="d"),
    "threshold": Array("f8", ("m",)),
    "roots": Array("i8", ("T",), low=0, below="m"),
    "data": Array("f8", ("nnz",), low=0),
    "indices": Array("i8", ("nnz",), low=0, below="L"),
    "indptr": Array("i8", ("m+1",), ends="nnz"),
    "trees": Rule(
        lambda found: (
            len(found["roots"]) > 0
            and all(
                bool(np.all((side == -1) == (found["left"] == -1)))
                and bool(np.all((side == -1) | (side > np.arange(len(side)))))
                for side in (found["left"], found["right"])
            )
        ),
        "are inconsistent",
    ),
}


class LabellingForest(NamedTuple):
    """Trees as flat arrays over their nodes, and the shares (nodes, L) of the labellings (L, V) in the leaves."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    roots: Ints
    shares: Any
    labellings: Floats

    def probabilities(self, X: Any) -> Any:
        """P(labelling) of every row, sparse (n, L): the mean over trees of the shares in the leaf that is reached."""
        parts = [self._leaves(X[a : a + _CHUNK]) for a in range(0, X.shape[0], _CHUNK)]
        leaves = np.concatenate(parts) if parts else np.empty((0, len(self.roots)), dtype=np.int64)
        n, T = leaves.shape
        reached = sparse.csr_array(
            (np.full(n * T, 1.0 / T), leaves.ravel(), np.arange(0, n * T + 1, T)), shape=(n, len(self.left))
        )
        return sparse.csr_array(reached @ self.shares)

    def marginals(self, probabilities: Any) -> Floats:
        """P(label = +1) (n, V), from sparse probabilities of labellings."""
        return np.asarray(probabilities @ (self.labellings > 0).astype(float))

    def _leaves(self, X: Any) -> Ints:
        # scikit-learn compares features in single precision
        values = (X.toarray() if sparse.issparse(X) else X).astype(np.float32)
        rows = np.arange(len(values))
        found = np.empty((len(values), len(self.roots)), dtype=np.int64)
        for t, root in enumerate(self.roots):
            node = np.full(len(values), root)
            inner = rows[self.left[node] >= 0]
            while inner.size:
                at = node[inner]
                less = values[inner, self.feature[at]] <= self.threshold[at]
                node[inner] = np.where(less, self.left[at], self.right[at])
                inner = inner[self.left[node[inner]] >= 0]
            found[:, t] = node
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a file."""
        own = {name: getattr(self, name) for name in FOREST if name in self._fields}
        parts = {name: getattr(self.shares, name) for name in ("data", "indices", "indptr")}
        return own | {name: v.astype(np.int64) if v.dtype.kind == "i" else v for name, v in parts.items()}

    @staticmethod
    def from_arrays(found: dict[str, Any]) -> LabellingForest:
        """The forest whose arrays a file had."""
        shape = (len(found["left"]), len(found["labellings"]))
        shares = sparse.csr_array((found["data"], found["indices"], found["indptr"]), shape=shape)
        parts = {name: found[name] for name in LabellingForest._fields if name != "shares"}
        return LabellingForest(shares=shares, **parts)


def learn_forest(
    X: Any, signs: Floats, weight: Floats, n_trees: int, seed: int
) -> tuple[LabellingForest, Any, Bools]:
    """A forest, the probabilities (n, L) of each training row by trees that did not see it, and rows that have them.

    Each tree splits a bootstrap sample until its leaves are pure, by square roots of all features at a time.
    """
    labellings, number = np.unique(signs, axis=0, return_inverse=True)
    number = number.ravel()
    seeds = np.random.default_rng(seed).integers(2**31 - 1, size=n_trees)
    X32 = X.astype(np.float32)
    grown = map_items(
        lambda s: _grow(X32, signs, number, len(labellings), weight, s), seeds.tolist(), thread_count(None)
    )
    sizes = np.concatenate([[0], np.cumsum([len(tree.left) for tree in grown])])
    forest = LabellingForest(
        np.concatenate([_moved(t.left, by) for t, by in zip(grown, sizes, strict=False)]),
        np.concatenate([_moved(t.right, by) for t, by in zip(grown, sizes, strict=False)]),
        np.concatenate([t.feature for t in grown]),
        np.concatenate([t.threshold for t in grown]),
        sizes[:-1],
        sparse.csr_array(sparse.vstack([t.shares for t in grown])),
        labellings,
    )
    total = sum(t.unseen for t in grown)
    count = np.sum([np.diff(t.unseen.indptr) > 0 for t in grown], axis=0)
    held_out = sparse.csr_array(sparse.diags_array(1.0 / np.maximum(count, 1)) @ total)
    return forest, held_out, count > 0


def _moved(nodes: Ints, by: int) -> Ints:
    return np.where(nodes >= 0, nodes + by, -1)


class _Tree(NamedTuple):
    """One tree, with the shares of its leaves (nodes, L), and of the rows that it did not see (n, L)."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    shares: Any
    unseen: Any


def _grow(X: Any, signs: Floats, number: Ints, n_labellings: int, weight: Floats, seed: int) -> _Tree:
    from sklearn.tree import DecisionTreeRegressor

    n = len(number)
    drawn = np.bincount(np.random.default_rng(seed).integers(n, size=n), minlength=n) * weight
    model = DecisionTreeRegressor(max_features="sqrt", random_state=seed)
    model.fit(X, signs, sample_weight=drawn, check_input=True)
    tree = model.tree_
    leaves = model.apply(X)
    counts = sparse.coo_array((drawn, (leaves, number)), shape=(tree.node_count, n_labellings)).tocsr()
    counts.eliminate_zeros()
    sums = np.asarray(counts.sum(axis=1)).ravel()
    shares = sparse.csr_array(sparse.diags_array(1.0 / np.where(sums > 0, sums, 1.0)) @ counts)
    aside = sparse.diags_array((drawn == 0).astype(float))
    unseen = sparse.csr_array(aside @ shares[leaves])
    unseen.eliminate_zeros()
    feature = np.maximum(tree.feature, 0).astype(np.int64)
    left, right = (side.astype(np.int64) for side in (tree.children_left, tree.children_right))
    return _Tree(left, right, feature, tree.threshold.copy(), shares, unseen)

"""Chain models in the files of CRFsuite (binary), Wapiti (text) and CRF++ (text), as `StoredChain` values."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..base.files import read_text, replacing
from ..base.types import Floats, Ints, PotentiaError
from ..features.template import Template
from ..learn.chain import MAX_PAIR_LABELS, AttributeLabels, ChainWeights

#: Chunk of a CRFsuite file: begins with four letters and its size.
_HEADER = struct.Struct("<4sI4s9I")
_FEATURE = np.dtype([("kind", "<u4"), ("src", "<u4"), ("dst", "<u4"), ("w", "<f8")])
_BYTE_ORDER = 0x62445371
#: Bytes before the first record of a CQDB database: its header, and 256 references to hash tables.
_RECORDS = 24 + 256 * 8
_MAX_LABELS = 1 << 15
#: Attributes, labels (or pairs of labels, before * L + after) and weights.
Entries = tuple[Ints, Ints, Floats]
NO_ENTRIES: Entries = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


class StoredChain(NamedTuple):
    """What these files hold.

    Attributes:
        labels: names, in the order of the file.
        names: of attributes; with a template also those of patterns without macros, which stand for `pairs`.
        weights: of attributes with labels, and with pairs of neighbouring labels; of neighbouring labels alone.
        template: patterns that make attributes of columns, if any.
    """

    labels: list[str]
    names: list[str]
    weights: ChainWeights
    template: Template | None = None

    @classmethod
    def of(
        cls, labels: list[str], names: list[str], state: Entries, pairs: Floats, pair_state: Entries = NO_ENTRIES,
        template: Template | None = None,
    ) -> StoredChain:  # fmt: skip
        """From entries in any order; those of weight zero go."""
        n = len(labels)

        def rows(entries: Entries, n_codes: int) -> tuple[AttributeLabels, Floats]:
            owner, code, weight = entries
            live = np.flatnonzero(weight)
            joined = owner[live] * n_codes + code[live]
            order = np.argsort(joined)
            return AttributeLabels.of_codes(joined[order], len(names), max(n_codes, 1)), weight[live][order]

        (features, of_labels), (pair_features, of_pairs) = rows(state, n), rows(pair_state, n * n)
        if len(of_pairs) and n > MAX_PAIR_LABELS:
            raise PotentiaError(f"features of pairs need at most {MAX_PAIR_LABELS} labels, but this model has {n}.")
        weights = ChainWeights(features, pair_features, np.concatenate([of_labels, of_pairs]), pairs, np.zeros((0, n)))
        return cls(labels, names, weights, template)


# -- CRFsuite ------------------------------------------------------------------------------------------------


def read_crfsuite(path: Any) -> StoredChain:
    """A model that CRFsuite, python-crfsuite or sklearn-crfsuite wrote."""
    return parse_crfsuite(*_content(path))


def parse_crfsuite(path: Path, data: bytes) -> StoredChain:
    """The model that a file holds, which messages call `path`."""
    if len(data) < _HEADER.size or data[:4] != b"lCRF":
        raise PotentiaError(f"{path} is no CRFsuite model: it does not begin with 'lCRF'.")
    _, size, kind, version, _, n_labels, n_names, features, labels, names, _, _ = _HEADER.unpack_from(data)
    if kind != b"FOMC" or version != 100:
        raise PotentiaError(f"{path} is a CRFsuite model of type {kind!r} and version {version}, not FOMC and 100.")
    if size > len(data):
        raise PotentiaError(f"{path} is damaged: it has {len(data)} bytes, but says {size}.")
    if not 0 < n_labels <= _MAX_LABELS:
        raise PotentiaError(f"{path} is damaged: it says that there are {n_labels} labels.")
    rows = _features(path, data, features, n_labels, n_names)
    states, moves = rows[rows["kind"] == 0], rows[rows["kind"] == 1]
    pairs = np.zeros((n_labels, n_labels))
    pairs[moves["src"], moves["dst"]] = moves["w"]
    owner, label = (states[name].astype(np.int64) for name in ("src", "dst"))
    if len(np.unique(owner * n_labels + label)) < len(owner):
        _damaged(path, "an attribute has two weights for one label")
    of_labels = _database(path, data, labels, n_labels, "labels")
    of_names = _database(path, data, names, n_names, "attributes")
    return StoredChain.of(of_labels, of_names, (owner, label, states["w"].astype(np.float64)), pairs)


def _features(path: Path, data: bytes, at: int, n_labels: int, n_names: int) -> Any:
    """The features, checked."""
    count = _word(path, data, at + 8) if data[at : at + 4] == b"FEAT" else len(data)
    if at + 12 + count * _FEATURE.itemsize > len(data):
        _damaged(path, "its features do not fit in the file")
    rows = np.frombuffer(data, _FEATURE, count, at + 12)
    of_states = rows["kind"] == 0
    in_range = np.where(of_states, rows["src"] < n_names, rows["src"] < n_labels) & (rows["dst"] < n_labels)
    if not (in_range & (rows["kind"] <= 1)).all() or not np.isfinite(rows["w"]).all():
        _damaged(path, "a feature names an attribute or label that does not exist, or has no finite weight")
    return rows


def _database(path: Path, data: bytes, at: int, n: int, what: str) -> list[str]:
    """The n texts of a CQDB database, by number."""
    if data[at : at + 4] != b"CQDB" or at + _RECORDS > len(data):
        _damaged(path, f"there is no database of {what} where one should be")
    size, _, order, n_back, back = struct.unpack_from("<5I", data, at + 4)
    if order != _BYTE_ORDER or at + size > len(data) or n_back != n or back + 4 * n > size:
        _damaged(path, f"the database of {what} is inconsistent")
    offsets = np.frombuffer(data, "<u4", n, at + back).astype(np.int64)
    if n and (offsets.min() < _RECORDS or offsets.max() + 8 > size):
        _damaged(path, f"the database of {what} points outside itself")
    texts = []
    for number, offset in enumerate(offsets.tolist()):
        number_there, length = struct.unpack_from("<2I", data, at + offset)
        if number_there != number or length == 0 or offset + 8 + length > size:
            _damaged(path, f"the database of {what} is inconsistent")
        texts.append(data[at + offset + 8 : at + offset + 7 + length].decode("utf-8", "surrogateescape"))
    if len(set(texts)) != n:
        _damaged(path, f"two {what} have the same name")
    return texts


def crfsuite_bytes(chain: StoredChain) -> bytes:
    """A chain as CRFsuite's model file."""
    n_names, n_labels, weights = len(chain.names), len(chain.labels), chain.weights
    before, after = np.nonzero(weights.pairs)
    first = len(weights.state)
    rows = np.zeros(first + len(before), _FEATURE)
    rows["kind"][first:] = 1
    rows["src"] = np.concatenate([weights.features.owner, before])
    rows["dst"] = np.concatenate([weights.features.label, after])
    rows["w"] = np.concatenate([weights.state, weights.pairs[before, after]])
    ptr = first + np.searchsorted(before, np.arange(n_labels + 1))
    blob = bytearray(_HEADER.size)
    places = []
    for chunk in (
        lambda at: _chunk(b"FEAT", struct.pack("<I", len(rows)) + rows.tobytes()),
        lambda at: _database_bytes(chain.labels),
        lambda at: _database_bytes(chain.names),
        # CRFsuite keeps two more labels here, which have no features
        lambda at: _references(b"LFRF", ptr, at, n_labels + 2),
        lambda at: _references(b"AFRF", weights.features.ptr, at, n_names),
    ):
        places.append(len(blob))
        blob += chunk(len(blob))
        blob += bytes(-len(blob) % 4 if len(places) > 2 else 0)
    blob[: _HEADER.size] = _HEADER.pack(b"lCRF", len(blob), b"FOMC", 100, 0, n_labels, n_names, *places)
    return bytes(blob)


def _chunk(name: bytes, body: bytes) -> bytes:
    """A chunk of a CRFsuite file: name, length, body."""
    return name + struct.pack("<I", len(body) + 8) + body


def _references(name: bytes, ptr: Ints, at: int, n: int) -> bytes:
    """For each of n owners where its list of features is, then these lists: features ptr[k] .. ptr[k + 1] - 1."""
    here, offsets, lists = at + 12 + 4 * n, [0] * n, bytearray()
    for k in range(len(ptr) - 1):
        offsets[k] = here + len(lists)
        members = np.arange(ptr[k], ptr[k + 1], dtype="<u4")
        lists += struct.pack("<I", len(members)) + members.tobytes()
    return _chunk(name, struct.pack(f"<{n + 1}I", n, *offsets) + lists)


def _database_bytes(texts: Sequence[str]) -> bytes:
    """A CQDB database of texts: records, 256 hash tables with linear probing, and the records by number."""
    records, offsets, tables = bytearray(), [], [[] for _ in range(256)]  # type: ignore[var-annotated]
    for number, text in enumerate(texts):
        key = text.encode("utf-8", "surrogateescape") + b"\0"
        offsets.append(_RECORDS + len(records))
        tables[(code := lookup3(key)) % 256].append((code, offsets[-1]))
        records += struct.pack("<2I", number, len(key)) + key
    references, hashed, here = [], bytearray(), _RECORDS + len(records)
    for entries in tables:
        size = 2 * len(entries)
        references.append((here + len(hashed) if size else 0, size))
        slots = [(0, 0)] * size
        for code, offset in entries:
            k = (code >> 8) % size
            while slots[k][1]:
                k = (k + 1) % size
            slots[k] = code, offset
        hashed += np.array(slots, dtype="<u4").tobytes()
    back = here + len(hashed)
    head = struct.pack("<4s5I", b"CQDB", back + 4 * len(texts), 0, _BYTE_ORDER, len(texts), back)
    table = np.array(references, dtype="<u4").tobytes()
    return head + table + bytes(records) + bytes(hashed) + np.array(offsets, dtype="<u4").tobytes()


def lookup3(key: bytes) -> int:
    """The 32-bit hash of a text by Jenkins' lookup3 ("hashlittle"), which CQDB files are built on."""
    mask = 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + len(key)) & mask
    blocks = [struct.unpack("<3I", key[k : k + 12].ljust(12, b"\0")) for k in range(0, len(key), 12)]
    for number, words in enumerate(blocks):
        a, b, c = ((x + word) & mask for x, word in zip((a, b, c), words, strict=True))
        if number + 1 < len(blocks):
            for turn in (4, 6, 8, 16, 19, 4):
                a = (a - c) & mask ^ _turned(c, turn)
                a, b, c = b, (c + b) & mask, a
                # the roles of the three words move on by one after each step
    if not blocks:
        return c
    for turn in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _turned(b, turn)) & mask
        a, b, c = b, c, a
    return b


def _turned(word: int, by: int) -> int:
    """A 32-bit word rotated left."""
    return (word << by | word >> (32 - by)) & 0xFFFFFFFF


# -- Wapiti --------------------------------------------------------------------------------------------------


def read_wapiti(path: Any) -> StoredChain:
    """A CRF that Wapiti wrote, with its patterns."""
    path, data = _content(path)
    head = re.match(rb"#mdl#(?:(\d{1,3})#)?(\d{1,12})\n#rdr#(\d{1,9})/(\d{1,9})(?:/\d{1,9})?\n", data)
    if not head:
        raise PotentiaError(f"{path} is no Wapiti model: it does not begin with #mdl# and #rdr#.")
    if head[1] not in (None, b"2"):
        raise PotentiaError(f"{path} is a Wapiti model of type {head[1].decode()}; only CRFs (type 2) are read.")
    lines, at = _texts(path, data, head.end(), int(head[3]))
    labels, at = _quarks(path, data, at, "labels")
    names, at = _quarks(path, data, at, "observations")
    if not 0 < len(labels) <= _MAX_LABELS:
        _damaged(path, f"it says that there are {len(labels)} labels")
    template = Template("\n".join(lines), "wapiti")
    number, weight = _numbered(path, data[at:])
    if len(number) != int(head[2]):
        _damaged(path, f"it has {len(number)} weights, but says {int(head[2])}")
    return _from_flat(path, labels, names, template, number, weight)


def wapiti_bytes(chain: StoredChain) -> bytes:
    """A chain with a template as Wapiti's model file."""
    template = chain.template
    if template is None:
        raise PotentiaError("a Wapiti model has patterns, but this model was trained without a template.")
    constant = template.constant
    if constant is not None and constant not in chain.names:  # one more attribute, which has no weights
        features, pair_features = (f._replace(ptr=np.append(f.ptr, f.ptr[-1])) for f in chain.weights[:2])
        weights = chain.weights._replace(features=features, pair_features=pair_features)
        chain = chain._replace(names=[*chain.names, constant], weights=weights)
    number, weight = _to_flat(chain)
    patterns = [pattern.source for pattern in template.patterns]
    last_column = max(template.n_columns - 1, 0)
    shown = [f"{w:e}" for w in weight.tolist()]
    if any(float(text) != w for text, w in zip(shown, weight.tolist(), strict=True)):
        shown = [_hexadecimal(w) for w in weight.tolist()]
    parts = [f"#mdl#2#{len(number)}\n#rdr#{len(patterns)}/{last_column}/0\n".encode(), *_quoted(patterns)]
    for texts in (chain.labels, chain.names):
        parts += [f"#qrk#{len(texts)}\n".encode(), *_quoted(texts)]
    parts += [f"{k}={text}\n".encode() for k, text in zip(number.tolist(), shown, strict=True)]
    return b"".join(parts)


def _hexadecimal(weight: float) -> str:
    """As C's %a writes it: without the zeros at the end of the mantissa."""
    return re.sub(r"\.?0*p", "p", weight.hex())


def _quoted(texts: Iterable[str]) -> list[bytes]:
    """Texts as netstrings, one per line."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return [b"%d:%s,\n" % (len(text), text) for text in encoded]


def _quarks(path: Path, data: bytes, at: int, what: str) -> tuple[list[str], int]:
    """The list of names at a place of a Wapiti file, and where it ends."""
    head = re.compile(rb"#qrk#(\d{1,9})\n").match(data, at)
    if not head:
        _damaged(path, f"there is no list of {what} where one should be")
    texts, at = _texts(path, data, head.end(), int(head[1]))
    if len(set(texts)) != len(texts):
        _damaged(path, f"two {what} have the same name")
    return texts, at


def _texts(path: Path, data: bytes, at: int, n: int) -> tuple[list[str], int]:
    """n texts, each as length:text, and where the next line begins."""
    size, texts = re.compile(rb"(\d{1,9}):"), []
    for _ in range(n):
        head = size.match(data, at)
        end = head.end() + int(head[1]) if head else 0
        if not head or data[end : end + 2] != b",\n":
            _damaged(path, f"the text at byte {at} does not have the length it says")
        texts.append(data[head.end() : end].decode("utf-8", "surrogateescape"))
        at = end + 2
    return texts, at


def _numbered(path: Path, data: bytes) -> tuple[Ints, Floats]:
    """Lines number=weight."""
    pairs = [line.split(b"=") for line in data.split(b"\n") if line]
    try:
        number = np.array([int(k) for k, _ in pairs], dtype=np.int64)
        weight = np.array([float.fromhex(w.decode()) if b"x" in w else float(w) for _, w in pairs], dtype=np.float64)
    except (ValueError, OverflowError):
        _damaged(path, "a weight is not of the form number=weight")
    if not np.isfinite(weight).all() or (len(number) and (number.min() < 0 or np.any(np.diff(number) <= 0))):
        _damaged(path, "weights are not finite or their numbers do not ascend")
    return number, weight


# -- CRF++ ---------------------------------------------------------------------------------------------------


def read_crfpp(path: Any) -> StoredChain:
    """A model in the text form that ``crf_learn -t`` writes, with its template."""
    path, data = _content(path)
    blocks = data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n\n", 4)
    if len(blocks) < 5 or not blocks[0].startswith("version:"):
        raise PotentiaError(f"{path} is no CRF++ model in text form (made by crf_learn -t).")
    head = dict(re.findall(r"^([\w-]+): *(\S+)$", blocks[0], re.MULTILINE))
    try:
        factor, n_weights = float(head["cost-factor"]), int(head["maxid"])
    except (KeyError, ValueError):
        _damaged(path, "its head has no number 'cost-factor' or 'maxid'")
    labels, names, offsets = blocks[1].split("\n"), [], []
    for line in blocks[3].split("\n"):
        offset, _, name = line.partition(" ")
        if not (name and offset.isdecimal() and len(offset) < 13):
            _damaged(path, f"the line {line[:60]!r} is not of the form number feature")
        names.append(name)
        offsets.append(int(offset))
    try:
        weight = np.array(blocks[4].split(), dtype=np.float64)
    except ValueError:
        _damaged(path, "a weight is no number")
    if len(weight) != n_weights or not np.isfinite(np.append(weight, factor)).all():
        _damaged(path, f"it has {len(weight)} finite weights, but says {n_weights}")
    if not 0 < len(labels) <= _MAX_LABELS or len(set(labels)) < len(labels) or len(set(names)) < len(names):
        _damaged(path, "labels or features are missing or have the same name")
    order = np.argsort(offsets, kind="stable")
    return _from_flat(
        path, labels, [names[k] for k in order], Template(blocks[2], "crf++"),
        np.arange(len(weight)), weight * factor,
    )  # fmt: skip


# -- weights of observations in one vector -------------------------------------------------------------------


def _counts(names: Sequence[str], n: int) -> tuple[Ints, Ints]:
    """Weights that each observation has of labels (n or none) and of pairs of labels (n * n or none)."""
    first = [name[:1].lower() for name in names]
    of_labels = np.array([n if letter in "u*" else 0 for letter in first], dtype=np.int64)
    return of_labels, np.array([n * n if letter in "b*" else 0 for letter in first], dtype=np.int64)


def _from_flat(
    path: Path, labels: list[str], names: list[str], template: Template, number: Ints, weight: Floats
) -> StoredChain:
    """A chain whose weights lie observation by observation: those of labels, then those of pairs."""
    n = len(labels)
    if any(name[:1] not in ("u", "U", "b", "B", "*") for name in names):
        _damaged(path, "an observation begins with another letter than u, b or *")
    of_labels, of_pairs = _counts(names, n)
    begin = np.concatenate([[0], np.cumsum(of_labels + of_pairs)])
    if len(number) and number[-1] >= begin[-1]:
        _damaged(path, f"there is a weight number {number[-1]}, but the observations have {begin[-1]}")
    owner = np.searchsorted(begin, number, side="right") - 1
    rank = number - begin[owner]
    of_state = rank < of_labels[owner]
    code = np.where(of_state, rank, rank - of_labels[owner])
    pairs, constant = np.zeros((n, n)), template.constant
    of_all = ~of_state & (owner == (names.index(constant) if constant in names else -1))
    pairs.ravel()[code[of_all]] = weight[of_all]
    moved = ~of_state & ~of_all
    state, pair_state = ((owner[chosen], code[chosen], weight[chosen]) for chosen in (of_state, moved))
    return StoredChain.of(labels, names, state, pairs, pair_state, template)


def _to_flat(chain: StoredChain) -> tuple[Ints, Floats]:
    """Numbers and weights of a chain, as `_from_flat` takes them."""
    n, constant = len(chain.labels), chain.template.constant if chain.template else None
    of_labels, of_pairs = _counts(chain.names, n)
    begin = np.concatenate([[0], np.cumsum(of_labels + of_pairs)])
    features, pair_features, state, pairs, _ = chain.weights
    number = [
        begin[features.owner] + features.label, (begin[:-1] + of_labels)[pair_features.owner] + pair_features.label
    ]  # fmt: skip
    weight = [state]
    code = np.flatnonzero(pairs)
    if len(code):
        if constant not in chain.names:
            raise PotentiaError("the model has weights of neighbouring labels, but its template has no line 'b'.")
        at = chain.names.index(constant)
        number.append(begin[at] + of_labels[at] + code)
        weight.append(pairs.ravel()[code])
    joined = np.concatenate(number)
    order = np.argsort(joined)
    return joined[order], np.concatenate(weight)[order]


# -- bytes ---------------------------------------------------------------------------------------------------


def _content(path: Any) -> tuple[Path, bytes]:
    """The bytes of a file, unpacked if its name ends in .gz or .xz."""
    return Path(path), read_text(path, "latin-1").encode("latin-1")


def write_bytes(path: Any, data: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as file:
        file.write(data)


def _word(path: Path, data: bytes, at: int) -> int:
    """The 32-bit word at a place of the file."""
    if at + 4 > len(data):
        _damaged(path, "it ends too early")
    return int(struct.unpack_from("<I", data, at)[0])


def _damaged(path: Path, why: str) -> NoReturn:
    """Raise the error for a damaged file."""
    raise PotentiaError(f"{path} is damaged: {why}.")

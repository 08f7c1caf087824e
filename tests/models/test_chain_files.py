"""Models of CRFsuite, Wapiti and CRF++: what they label, and that damaged files end in one sentence."""

import itertools
import lzma
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from support.data_sets import DATA, needs

import potentia as pt
from potentia.features.template import Template


def unpacked(name, tmp_path):
    target = tmp_path / name.rpartition("/")[2].removesuffix(".xz")
    target.write_bytes(lzma.decompress((DATA / name).read_bytes()))
    return target


# -- CRFsuite ------------------------------------------------------------------------------------------------


def address_features(tokens):
    """Attributes as the addresses' model names them."""
    described = []
    for token in tokens:
        bare = re.sub(r"[.]+$|[^\w]+$", "", token).lower()
        described.append(
            {
                "abbrev": token.endswith("."),
                "digits": "all_digits"
                if token.isdigit()
                else "some_digits"
                if re.search(r"\d", token)
                else "no_digits",
                "word": bare if not bare.isdigit() else False,
                "length": f"{'d' if bare.isdigit() else 'w'}:{len(bare)}",
                "endsinpunc": token[-1] if re.match(r".+[^.\w]$", token) else False,
                "has.vowels": bool(re.search("[aeiou]", bare[1:])),
            }
        )
    for t, token in enumerate(described[1:], 1):
        token["previous"] = {k: v for k, v in described[t - 1].items() if k not in ("previous", "next")}
        described[t - 1]["next"] = {k: v for k, v in token.items() if k not in ("previous", "next")}
    described[0]["address.start"] = described[-1]["address.end"] = True
    return described


def addresses():
    for name in ("test_labeled", "test_us50", "train_labeled", "train_us50"):
        for row in ET.parse(DATA / f"usaddress/{name}.xml").getroot():
            tokens = [element.text for element in row if element.text]
            if tokens:
                yield address_features(tokens)


@needs("usaddress")
def test_the_model_of_addresses_labels_as_crfsuite_does(tmp_path):
    pycrfsuite = pytest.importorskip("pycrfsuite")
    path = unpacked("usaddress/usaddr.crfsuite.xz", tmp_path)
    model, tagger = pt.ChainCRF.from_crfsuite(path), pycrfsuite.Tagger()
    tagger.open(str(path))
    X = list(addresses())
    assert len(X) > 1500
    assert model.predict(X) == [tagger.tag(x) for x in X]
    for x, rows in zip(X[::7], model.predict_marginals(X[::7]), strict=True):
        tagger.set(x)
        theirs = [[tagger.marginal(y, t) for y in model.classes_] for t in range(len(x))]
        assert np.abs(np.array([[row[y] for y in model.classes_] for row in rows]) - theirs).max() < 1e-6
    model.to_crfsuite(tmp_path / "again")
    first, second = path.read_bytes(), (tmp_path / "again").read_bytes()
    # CRFsuite leaves four bytes of each of its two databases to chance
    assert len(first) == len(second)
    assert sum(a != b for a, b in zip(first, second, strict=True)) <= 8
    model.save(tmp_path / "saved")
    assert pt.load(tmp_path / "saved").predict(X[:50]) == model.predict(X[:50])


def test_crfsuite_reads_what_is_written_for_it(tmp_path):
    pycrfsuite = pytest.importorskip("pycrfsuite")
    rng = np.random.default_rng(0)
    X = [[{"w": str(rng.integers(40)), "é": bool(rng.integers(2)), "v": 0.5} for _ in range(6)] for _ in range(40)]
    y = [[str(rng.choice(["a", "b", "ü"])) for _ in tokens] for tokens in X]
    model = pt.ChainCRF(0.1, 0.1, 30, delta=0).fit(X, y)
    model.to_crfsuite(tmp_path / "m.crfsuite")
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "m.crfsuite"))
    assert [tagger.tag(x) for x in X] == model.predict(X)
    info = tagger.info()
    assert {k: pytest.approx(v, abs=1e-6) for k, v in model.state_features_.items()} == info.state_features
    again = pt.ChainCRF.from_crfsuite(tmp_path / "m.crfsuite")
    assert again.state_features_ == model.state_features_
    assert again.transition_features_ == model.transition_features_


# -- Wapiti and CRF++ ----------------------------------------------------------------------------------------


class SlowDecoder:
    """Labels by the definition of Wapiti's and CRF++'s models, from lines of text and dictionaries."""

    def __init__(self, patterns, labels, weights, border):
        self.patterns, self.labels, self.weights, self.border = patterns, labels, weights, border

    def fill(self, pattern, rows, t):
        def text(match):
            place, column = t + int(match[2]), int(match[3])
            if place < 0:
                found = f"{self.border}{max(place, -5)}".replace("-5", "-#")
            elif place >= len(rows):
                found = f"{self.border}+{min(place - len(rows) + 1, 5)}".replace("+5", "+#")
            else:
                found = rows[place][column]
            return found.lower() if match[1] == "X" else found

        return re.sub(r"%([xX])\[ *(-?\d+),(\d+)\]", text, pattern)

    def tables(self, rows):
        n = len(self.labels)
        node, pair = np.zeros((len(rows), n)), np.zeros((len(rows), n, n))
        for t, pattern in itertools.product(range(len(rows)), self.patterns):
            name = self.fill(pattern, rows, t)
            if name[0] in "uU*":
                node[t] += [self.weights.get((name, a), 0.0) for a in range(n)]
            if name[0] in "bB*" and t:
                pair[t] += [[self.weights.get((name, a, b), 0.0) for b in range(n)] for a in range(n)]
        return node, pair

    def decode(self, rows):
        """The best labels and the marginals."""
        node, pair = self.tables(rows)
        best, back, alpha = [node[0]], [], [node[0]]
        for t in range(1, len(rows)):
            scores = best[-1][:, None] + pair[t]
            back.append(scores.argmax(axis=0))
            best.append(scores.max(axis=0) + node[t])
            alpha.append(np.logaddexp.reduce(alpha[-1][:, None] + pair[t], axis=0) + node[t])
        beta = [np.zeros(len(self.labels))]
        for t in range(len(rows) - 1, 0, -1):
            beta.append(np.logaddexp.reduce(pair[t] + node[t] + beta[-1], axis=1))
        path = [int(best[-1].argmax())]
        for step in reversed(back):
            path.append(int(step[path[-1]]))
        log_mu = np.array(alpha) + np.array(beta[::-1])
        return [self.labels[k] for k in path[::-1]], np.exp(log_mu - np.logaddexp.reduce(alpha[-1]))


def quoted(lines, n):
    return [next(lines).partition(":")[2][:-1] for _ in range(n)]


def wapiti_decoder(path):
    """Read a Wapiti model line by line."""
    lines = iter(path.read_text().split("\n"))
    next(lines)
    patterns = quoted(lines, int(re.match(r"#rdr#(\d+)/", next(lines))[1]))
    labels = quoted(lines, int(next(lines)[5:]))
    names = quoted(lines, int(next(lines)[5:]))
    n, owners, weights = len(labels), [], {}
    for name in names:
        owners += [(name, a) for a in range(n)] if name[0] in "u*" else []
        owners += [(name, a, b) for a in range(n) for b in range(n)] if name[0] in "b*" else []
    for line in lines:
        number, _, weight = line.partition("=")
        if number:
            weights[owners[int(number)]] = float.fromhex(weight) if "x" in weight else float(weight)
    return SlowDecoder(patterns, labels, weights, "_x")


def rows_of(name, most):
    """Sequences of rows without their labels."""
    text = lzma.decompress((DATA / name).read_bytes()).decode()
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    return [[line.split()[:-1] for line in block.split("\n")] for block in blocks[:most]]


@needs("grobid")
@pytest.mark.parametrize("name", ["date", "name-citation"])
def test_models_of_wapiti_label_by_their_definition(name, tmp_path):
    path = unpacked(f"grobid/models/{name}.wapiti.xz", tmp_path)
    model, slow = pt.ChainCRF.from_wapiti(path), wapiti_decoder(path)
    X = rows_of(f"grobid/{name}-180506.train.xz", 150)
    labels, marginals = model.predict(X), model.predict_marginals(X)
    for tokens, found, mu in zip(X, labels, marginals, strict=True):
        expected, theirs = slow.decode(tokens)
        assert found == expected
        assert np.abs(np.array([[row[y] for y in model.classes_] for row in mu]) - theirs).max() < 1e-6
    model.to_wapiti(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@needs("anystyle")
def test_the_model_of_references_with_features_of_pairs(tmp_path):
    path = unpacked("anystyle/parser.mod.xz", tmp_path)
    model, slow = pt.ChainCRF.from_wapiti(path), wapiti_decoder(path)
    assert len(model.pair_features_) > 1000
    model.to_wapiti(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    rng = np.random.default_rng(1)
    # texts that the model knows, column by column
    known = {}
    for attribute, _ in model.state_features_:
        for pattern in slow.patterns:
            prefix, macro, rest = pattern.partition("%x[ 0,")
            if macro and "/" not in rest and attribute.startswith(prefix):
                known.setdefault(int(rest[:-1]), set()).add(attribute[len(prefix) :])
    columns = [sorted(known.get(c, {"none"})) for c in range(20)]
    X = [[[str(rng.choice(c)) for c in columns] for _ in range(rng.integers(1, 12))] for _ in range(40)]
    for tokens, found in zip(X, model.predict(X), strict=True):
        expected, theirs = slow.decode(tokens)
        assert found == expected
        mu = model.predict_marginals([tokens])[0]
        assert np.abs(np.array([[row[y] for y in model.classes_] for row in mu]) - theirs).max() < 1e-6
    model.save(tmp_path / "saved")
    assert pt.load(tmp_path / "saved").predict_marginals(X) == model.predict_marginals(X)


def crfpp_text(seed=0, factor=1.5):
    """A model as crf_learn -t writes it, and its slow decoder."""
    rng = np.random.default_rng(seed)
    labels, patterns = ["N", "V", "X"], ["U00:%x[-1,0]", "U01:%x[0,0]/%x[1,1]", "B", "B02:%x[0,1]"]
    values = ["a", "b", "_B-1", "_B+1"]
    names = [f"U00:{v}" for v in values[:3]] + [f"U01:{v}/{w}" for v in "ab" for w in ("1", "2", "_B+1")]
    names += ["B", "B02:1", "B02:2"]
    offsets, weights, place = [], {}, 0
    flat = []
    for name in names:
        offsets.append(place)
        keys = [(name, a) for a in range(3)] if name[0] == "U" else [(name, a, b) for a in range(3) for b in range(3)]
        for key in keys:
            flat.append(float(f"{rng.normal():.16f}"))
            weights[key] = factor * flat[-1]
        place += len(keys)
    head = f"version: 100\ncost-factor: {factor}\nmaxid: {place}\nxsize: 2\n"
    features = "\n".join(f"{k} {name}" for k, name in zip(offsets, names, strict=True))
    body = "\n".join(f"{w:.16f}" for w in flat)
    text = f"{head}\n" + "\n".join(labels) + "\n\n" + "\n".join(patterns) + f"\n\n{features}\n\n{body}\n"
    return text, SlowDecoder(patterns, labels, weights, "_B")


def test_models_of_crfpp_label_by_their_definition(tmp_path):
    text, slow = crfpp_text()
    (tmp_path / "model.txt").write_text(text)
    model = pt.ChainCRF.from_crfpp(tmp_path / "model.txt")
    rng = np.random.default_rng(3)
    X = [
        [[str(rng.choice(["a", "b", "c"])), str(rng.integers(1, 4))] for _ in range(rng.integers(1, 7))]
        for _ in range(40)
    ]
    for tokens, found, mu in zip(X, model.predict(X), model.predict_marginals(X), strict=True):
        expected, theirs = slow.decode(tokens)
        assert found == expected
        assert np.abs(np.array([[row[y] for y in model.classes_] for row in mu]) - theirs).max() < 1e-9


def test_a_trained_model_is_read_back_from_wapitis_form(tmp_path):
    rng = np.random.default_rng(4)
    X = [[[str(rng.integers(5)), str(rng.integers(2))] for _ in range(5)] for _ in range(30)]
    y = [[str(rng.choice(["p", "q"])) for _ in tokens] for tokens in X]
    template = Template('*\nu1:%x[0,0]\nb2:%x[0,1]\nu3:%t[0,0,"^[34]$"]\nu4:%m[0,0,"^\\d?"]')
    model = pt.ChainCRF(c2=0.5, template=template).fit(X, y)
    model.to_wapiti(tmp_path / "model")
    again = pt.ChainCRF.from_wapiti(tmp_path / "model")
    assert again.predict_marginals(X) == model.predict_marginals(X)


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["crfsuite", "wapiti", "crfpp"])
def test_damaged_files_end_in_one_sentence_or_are_models(kind, tmp_path):
    rng = np.random.default_rng(5)
    read = getattr(pt.ChainCRF, f"from_{kind}")
    good = tmp_path / "good"
    if kind == "crfsuite":
        X = [[{"w": str(k % 3)} for k in range(4)] for _ in range(3)]
        pt.ChainCRF().fit(X, [["a", "b", "a", "c"]] * 3).to_crfsuite(good)
    elif kind == "wapiti":
        X, y = [[["a", "1"], ["b", "2"]]] * 3, [["p", "q"]] * 3
        pt.ChainCRF(template=Template("u:%x[0,0]\nb:%x[0,1]\nb")).fit(X, y).to_wapiti(good)
    else:
        good.write_text(crfpp_text()[0])
    data, path = good.read_bytes(), tmp_path / "bad"
    refused = 0
    for trial in range(300):
        broken = bytearray(data)
        if trial % 3 == 0:
            del broken[rng.integers(len(data)) :]
        for _ in range(trial % 3):
            at = int(rng.integers(min(len(broken), 4000 if kind != "crfsuite" else len(broken))))
            broken[at] = int(rng.integers(256))
        path.write_bytes(broken)
        try:
            model = read(path)
        except pt.PotentiaError as error:
            refused += "\n" not in str(error)
        else:
            assert np.isfinite(model.weights_.state).all()
    assert refused > 100


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    X, y = [[{"v": np.arange(2.0)}, {"v": np.ones(2)}]] * 3, [["a", "b"]] * 3
    with pytest.raises(pt.PotentiaError, match="CRFsuite has no arrays"):
        pt.ChainCRF().fit(X, y).to_crfsuite(tmp_path / "m")
    X = [[{"w": "x"}, {"w": "z"}]] * 3
    with pytest.raises(pt.PotentiaError, match="has patterns, but this model was trained without a template"):
        pt.ChainCRF().fit(X, y).to_wapiti(tmp_path / "m")
    with pytest.raises(pt.PotentiaError, match="CRFsuite has no features of pairs"):
        pt.ChainCRF(pair_attributes=["w"]).fit(X, y).to_crfsuite(tmp_path / "m")
    with pytest.raises(pt.PotentiaError, match="labels must be texts in a file of CRFsuite"):
        pt.ChainCRF().fit(X, [[0, 1]] * 3).to_crfsuite(tmp_path / "m")
    with pytest.raises(pt.PotentiaError, match="there is no such file"):
        pt.ChainCRF.from_wapiti(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    for kind in ("crfsuite", "wapiti", "crfpp"):
        with pytest.raises(pt.PotentiaError, match="is no"):
            getattr(pt.ChainCRF, f"from_{kind}")(tmp_path / "text")


def test_a_pattern_may_hold_any_character():
    template = pt.features.Template("U00:\0%x[0,0]\0\nU01:%x[0,1]\0")
    names = template.items([[["a", "b"]]], first=0).names
    assert sorted(names) == ["u00:\0a\0", "u01:b\0"]

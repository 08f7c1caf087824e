"""Sentences to examples."""

import numpy as np
import pytest

import potentia as pt
from potentia.base.types import PotentiaError
from potentia.features import Gazetteer, TokenFeatures

SENTENCES = [
    [["The", "dog", "sees", "Rex"], ["D", "N", "V", "P"], ["B-NP", "I-NP", "O", "B-NP"]],
    [["A", "dog"], ["D", "N"], ["B-NP", "I-NP"]],
]


def test_every_token_knows_its_window():
    features = TokenFeatures(window=1).fit(SENTENCES)
    examples = features.transform(SENTENCES)
    assert features.classes_ == ["B-NP", "I-NP", "O"]
    assert [e.graph.n_variables for e in examples] == [4, 2]
    names = {column: name for name, column in features.index_.items()}
    row = {names[k] for k in examples[0].features["node"][[1]].indices}
    assert {"0[-1]=The", "0[0]=dog", "0[1]=sees", "1[0]=N", "0[-1:2]=The|dog", "1[0:2]=N|V"} <= row
    assert {"1[-1:3]=D|N|V"} <= row
    np.testing.assert_array_equal(examples[0].labels, [0, 1, 2, 0])


def test_rare_indicators_unseen_ones_and_unknown_labels_are_left_out():
    features = TokenFeatures(window=0, min_count=2).fit(SENTENCES)
    assert set(features.index_) == {"0[0]=dog", "1[0]=D", "1[0]=N"}
    example = features.transform([[["Cats"], ["N"], ["B-VP"]]])[0]
    assert example.features["node"].nnz == 1
    np.testing.assert_array_equal(example.labels, [-1])
    assert features.transform([[["Cats"], ["N"]]], labelled=False)[0].labels is None


def test_spelling_adds_affixes_and_shape():
    features = TokenFeatures(window=0, spelling=True).fit(SENTENCES)
    assert {"prefix=Re", "suffix=ex", "shape=Xxx", "lower=rex"} <= set(features.index_)


def test_wrong_columns_get_a_sentence():
    features = TokenFeatures().fit(SENTENCES)
    with pytest.raises(PotentiaError, match="sentence 0 has 1 input columns, not 2"):
        features.transform([[["a"], ["O"]]])
    with pytest.raises(PotentiaError, match="two columns"):
        TokenFeatures().fit([[["a"]]])
    with pytest.raises(PotentiaError, match="window"):
        TokenFeatures(window=-1)


def test_a_chain_learns_from_tokens():
    features = TokenFeatures().fit(SENTENCES)
    train = features.transform(SENTENCES)
    learner = pt.MarginalRisk("likelihood", pt.Exact(), ridge=1e-3, iterations=30, tol=0.0)
    model = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(train)
    assert model.score(train) == 1.0


def test_gazetteers_mark_their_longest_phrases(tmp_path):
    gazetteer = Gazetteer(["New York", "new  york city", "York", "", "Paris"])
    assert gazetteer.phrases == ["new york", "new york city", "paris", "york"]
    words = ["In", "New", "York", "City", "and", "new", "york", "and", "York", ",", "PARIS", "New"]
    assert gazetteer.mark(words) == ["", "B", "I", "I", "", "B", "I", "", "B", "", "B", ""]
    (tmp_path / "cities.txt").write_bytes("New York\nMünchen\n".encode("latin-1"))
    with pytest.raises(PotentiaError, match=r"cities\.txt: the text is not UTF-8"):
        Gazetteer.read(tmp_path / "cities.txt")
    assert Gazetteer.read(tmp_path / "cities.txt", "latin-1").mark(["münchen"]) == ["B"]
    features = TokenFeatures(window=0, gazetteers={"city": gazetteer})
    assert list(features.names([["In", "New", "York"]])) == [
        ["0[0]=In"],
        ["0[0]=New", "city=B"],
        ["0[0]=York", "city=I"],
    ]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(PotentiaError, match="has no phrases"):
        Gazetteer.read(tmp_path / "empty.txt")
    with pytest.raises(PotentiaError, match="not fitted"):
        features.transform(SENTENCES)
    with pytest.raises(PotentiaError, match=r"the columns of sentence 0 have \[1, 2\] tokens"):
        TokenFeatures().fit(SENTENCES).transform([[["a", "b"], ["N", "N"], ["O"]]])


def test_clusters_give_classes_of_words_and_neighbours(tmp_path):
    (tmp_path / "brown.txt").write_text("110100 the 9\n0111 Dog 3\n0110 dog 2\n")
    (tmp_path / "class.txt").write_text("the D\nran V\n")
    clusters = {name: pt.features.Clusters.read(tmp_path / f"{name}.txt") for name in ("brown", "class")}
    names = list(TokenFeatures(window=0, clusters=clusters).names([["The", "Dog", "ran"]]))
    of_clusters = [[name for name in token if name.startswith(("brown", "class"))] for token in names]
    assert of_clusters == [
        ["brown[0]=1101", "brown[0]=110100", "brown[1]=0111", "class[0]=D"],
        ["brown[-1]=1101", "brown[-1]=110100", "brown[0]=0111", "class[-1]=D", "class[1]=V"],
        ["brown[-1]=0111", "class[0]=V"],
    ]
    (tmp_path / "odd.txt").write_text("a b c d\n")
    with pytest.raises(pt.PotentiaError, match="line 1 is neither"):
        pt.features.Clusters.read(tmp_path / "odd.txt")

"""Pipelines on user data, below the command line."""

import gzip
import re
import time
import warnings

import numpy as np
import pytest
from scipy import sparse

import potentia as pt
from own_data import make_images, make_sequences, make_table
from potentia.app import images, sequences, tables
from potentia.app.image_files import Mask, paired_files, read_image, read_mask, write_mask
from potentia.app.pipeline import Staging
from potentia.app.pixel_values import find_classes
from potentia.app.table_files import Label, learn_feature, learn_label, read_table, write_table
from potentia.app.training import Run
from potentia.base.progress import Bar
from potentia.base.saving import write_file
from potentia.features import span_scores
from potentia.metrics import segmentation_scores

Image = pytest.importorskip("PIL.Image")
PALETTE = [v for k in range(256) for v in (k, 255 - k, 40)]


# -- masks and classes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "coloured", "palette"),
    [
        ([[0, 7], [255, 7]], False, None),
        ([[0, 7], [255, 7]], False, PALETTE),
        ([[0, 700], [65535, 7]], False, None),
        ([[0x102030, 0xFFFFFF], [0, 0xFF0000]], True, None),
    ],
)
def test_masks_are_read_back_as_written(codes, coloured, palette, tmp_path):
    write_mask(tmp_path / "m.png", Mask(np.array(codes), coloured, palette))
    found = read_mask(tmp_path / "m.png")
    assert found.codes.tolist() == codes
    assert found.coloured == coloured
    assert found.palette == palette


def test_black_and_white_masks_are_0_and_255(tmp_path):
    Image.fromarray(np.array([[0, 255]], dtype=np.uint8)).convert("1").save(tmp_path / "m.png")
    assert read_mask(tmp_path / "m.png").codes.tolist() == [[0, 255]]


def test_classes_from_values_leave_out_void(tmp_path):
    mask = Mask(np.array([[3, 9], [255, 3]]), False, None)
    classes = find_classes([mask], None, "255")
    assert (classes.codes, classes.names, classes.void) == ([3, 9], ["3", "9"], [255])
    labels = classes.labels(mask, tmp_path)
    assert labels.tolist() == [[0, 1], [-1, 0]]
    assert classes.mask(np.array([[1, 0]])).codes.tolist() == [[9, 3]]
    with pytest.raises(pt.PotentiaError, match="value 4 is not a class; classes are 3, 9"):
        classes.labels(Mask(np.array([[4]]), False, None), tmp_path)
    with pytest.raises(pt.PotentiaError, match="holds colours"):
        classes.labels(Mask(np.array([[4]]), True, None), tmp_path)


def test_palettes_must_agree_on_the_colours_of_classes(tmp_path):
    red, black = [255, 0, 0], [0, 0, 0]
    masks = [Mask(np.array([[0, 1]]), False, [*a, *b]) for a, b in ((black, red), (red, black))]
    classes = find_classes(masks, None, None)
    assert classes.labels(masks[0], tmp_path / "a.png").tolist() == [[0, 1]]
    assert classes.labels(Mask(np.array([[1]]), False, None), tmp_path / "b.png").tolist() == [[1]]
    with pytest.raises(pt.PotentiaError, match=r"c\.png: the palette has the colour #ff0000 for 0, but"):
        classes.labels(masks[1], tmp_path / "c.png")


def test_values_beyond_a_palette_are_written_without_it(tmp_path):
    write_mask(tmp_path / "m.png", Mask(np.array([[0, 300]]), False, [0, 0, 0, 255, 0, 0]))
    assert read_mask(tmp_path / "m.png").codes.tolist() == [[0, 300]]


def test_palette_files_name_classes_of_numbers_and_of_colours(tmp_path):
    file = tmp_path / "palette.csv"
    file.write_text("7,sky,#0000ff\n\n0,ground\n255,void\n")
    classes = find_classes([Mask(np.array([[0, 7]]), False, PALETTE)], file, None)
    assert (classes.codes, classes.names, classes.void) == ([7, 0], ["sky", "ground"], [255])
    assert classes.colours == [0x0000FF, 0x00FF28]  # its own, and the masks' colour of value 0
    assert classes.paint(np.array([[0]])).tolist() == [[[0, 0, 255]]]
    file.write_text("#ff0000,a\n#00ff00,b\n#000000,void\n")
    classes = find_classes([Mask(np.array([[0xFF0000]]), True, None)], file, None)
    assert (classes.codes, classes.colours, classes.void) == ([0xFF0000, 0xFF00], [0xFF0000, 0xFF00], [0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,a\nx,b\n", "line 2: 'x' is not a whole number"),
        ("0\n", "value,name"),
        ("0,a\n0,b\n", "value 0 occurs twice"),
        ("0,a\n1,a\n", "name a occurs twice"),
        ("0,a,red\n", "line 1: 'red' is not a colour #rrggbb\\.$"),
        ("0,a\n", "lists 1 class,"),
    ],
)
def test_bad_palette_files_are_one_sentence(text, words, tmp_path):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(pt.PotentiaError, match=words):
        find_classes([Mask(np.array([[0]]), False, None)], tmp_path / "p.csv", None)


def test_images_are_read_as_meant_to_be_seen(tmp_path):
    grey = np.array([[0, 40], [200, 255], [1, 2]], dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert np.array_equal(read_image(tmp_path / "grey.png"), grey)
    deep = grey.astype(np.uint16) * 17 + 1000
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert np.array_equal(read_image(tmp_path / "deep.png"), deep)
    turned = Image.Exif()
    turned[274] = 6  # to be turned by 90 degrees
    Image.fromarray(grey).save(tmp_path / "turned.jpg", exif=turned)
    assert read_image(tmp_path / "turned.jpg").shape == (2, 3)


# -- images --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    make_images(folder, palette=PALETTE, void=255)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"node": "linear", "position": "no"},
        {"node": "linear", "feature_set": "papers"},
        {"node": "mlp", "edge": "constant", "reduce": 0.5},
        {"superpixels": 12},
    ],
)
def test_a_saved_image_pipeline_predicts_identically(options, image_folder, tmp_path):
    made, facts = images.train(
        image_folder / "photos", image_folder / "masks", void="255", iterations=1, run=Run(validation=0.3), **options
    )
    assert facts["classes"] == ["0", "7"]
    assert "validation_accuracy" in facts
    assert "training_accuracy" in facts or "cross_fitted_accuracy" in facts
    made.save(tmp_path / "model")
    found = pt.load(tmp_path / "model")
    assert found.settings() == made.settings()
    photo = read_image(image_folder / "photos" / "p1.jpg")
    marginals = found.predict_marginals(photo)
    assert marginals.shape == (*photo.shape[:2], 2)
    assert np.array_equal(marginals, made.predict_marginals(photo))
    facts = found.predict_files(image_folder / "photos", tmp_path / "out", marginals="npz")
    written = read_mask(tmp_path / "out" / "labels" / "p1.png")
    assert np.array_equal(written.codes, np.where(made.predict(photo) == 1, 7, 0))
    assert written.palette == PALETTE
    assert read_image(tmp_path / "out" / "overlays" / "p1.png").shape == photo.shape
    with np.load(tmp_path / "out" / "marginals" / "p1.npz") as arrays:
        assert np.allclose(arrays["marginals"], marginals)
        assert arrays["names"].tolist() == ["0", "7"]
    # the written label maps are masks themselves, with which the model agrees wholly
    assert found.evaluate_files(image_folder / "photos", masks=tmp_path / "out" / "labels")["accuracy"] == 1.0


def test_margin_learner_predicts_its_best_labelling(image_folder, tmp_path):
    with pytest.warns(pt.ConvergenceWarning):
        made, _ = images.train(
            image_folder / "photos",
            image_folder / "masks",
            void="255",
            learner="margin",
            edge="constant",
            feature_set="papers",
            iterations=2,
        )
    photo = read_image(image_folder / "photos" / "p0.png")
    example, _ = made.paper_example(photo)
    assert np.array_equal(made.predict(photo).ravel(), made.model.predict([example])[0])
    made.predict_files(image_folder / "photos", tmp_path / "out", marginals="png")
    assert len(list((tmp_path / "out" / "marginals").iterdir())) == 6


def test_scores_of_a_confusion_matrix():
    found = segmentation_scores(np.array([[3, 1, 0], [1, 5, 0], [0, 0, 0]]), ["a", "b", "c"])
    assert found["accuracy"] == pytest.approx(0.8)
    assert [row["recall"] for row in found["classes"][:2]] == pytest.approx([3 / 4, 5 / 6])
    assert [row["iou"] for row in found["classes"][:2]] == pytest.approx([3 / 5, 5 / 7])
    assert np.isnan(found["classes"][2]["iou"])
    assert found["mean_iou"] == pytest.approx((3 / 5 + 5 / 7) / 2)
    with pytest.raises(pt.PotentiaError, match="no pixel"):
        segmentation_scores(np.zeros((2, 2), dtype=int), ["a", "b"])


# -- tables ----------------------------------------------------------------------------------------------------


def test_numbers_are_standardised_and_missing_ones_are_the_mean():
    feature = learn_feature("x", ["1", None, "3"])
    assert feature.matrix(["1", "3", None, "2"]).ravel() == pytest.approx([-1, 1, 0, 0])
    with pytest.raises(pt.PotentiaError, match="row 2 of column 'x' is 'big'"):
        feature.matrix(["1", "big"])
    with pytest.raises(pt.PotentiaError, match="finite"):
        learn_feature("x", ["1", "inf"])
    with pytest.raises(pt.PotentiaError, match="no values"):
        learn_feature("x", [None, None])


def _masks(*codes):
    return [Mask(np.array(own), False, None) for own in codes]


def test_values_that_often_mean_unlabelled_give_a_warning():
    scribbles = np.zeros((40, 40), dtype=int)
    scribbles[5:8, 5:15], scribbles[20:23, 5:15] = 1, 2
    with pytest.warns(UserWarning, match="the value 0, 96% of all pixels .* --void 0"):
        assert len(find_classes(_masks(scribbles), None, None)) == 3
    with pytest.warns(UserWarning, match="the value 0, 96%"):  # to keep what is rare says nothing of it
        find_classes(_masks(scribbles), None, None, "keep")
    assert len(find_classes(_masks(scribbles), None, "0")) == 2
    assert len(find_classes(_masks(np.minimum(scribbles, 1)), None, None)) == 2  # an object and its background
    border = np.repeat(np.repeat([[0, 1], [2, 255]], 8, 0), 8, 1)
    with pytest.warns(UserWarning, match="the value 255, 25% .* --void 255"):
        find_classes(_masks(border), None, None)
    find_classes(_masks(border, np.full((4, 4), 128)), None, None)  # levels of grey


def test_masks_of_instances_are_refused():
    first, second = (np.repeat(np.repeat(np.arange(n * n).reshape(n, n), 4, 0), 4, 1) for n in (3, 4))
    with pytest.raises(pt.PotentiaError, match="numbers its regions from 1, up to 15"):
        find_classes(_masks(first, second), None, None)
    assert len(find_classes(_masks(first, second), None, None, "keep")) == 16
    assert len(find_classes(_masks(second, second), None, None)) == 16


def test_a_void_value_that_no_mask_has_gives_a_warning():
    mask = np.repeat(np.repeat([[3, 9], [7, 3]], 4, 0), 4, 1)
    with pytest.warns(UserWarning, match="--void 254: no mask has this value"):
        assert len(find_classes(_masks(mask), None, "7,254")) == 2


def test_masks_without_an_image_are_named(tmp_path):
    for name in ("images/a.png", "masks/a.png", "masks/b.png", "masks/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((2, 2), dtype=np.uint8)).save(tmp_path / name)
    with pytest.warns(UserWarning, match="2 masks without an image in .*images, such as b.png"):
        assert len(paired_files(tmp_path / "images", tmp_path / "masks")) == 1


def test_columns_that_number_rows_are_left_out(tmp_path):
    rows = "".join(f"{k},{k + 7},{k % 3},{k % 2},{(k + 1) % 2}\n" for k in range(12))
    (tmp_path / "t.csv").write_text(",id,x,code,a\n" + rows)
    said = []
    pipeline, _ = tables.train(tmp_path / "t.csv", ["a"], run=Run(say=said.append))
    assert [feature.name for feature in pipeline.features] == ["x", "code"]
    assert said == [f"column {name!r} numbers the rows and is left out." for name in ("", "id")]
    kept, _ = tables.train(tmp_path / "t.csv", ["a"], categorical=["id"])
    assert [feature.name for feature in kept.features] == ["id", "x", "code"]


@pytest.mark.parametrize(
    ("column", "present"),
    [
        (["ja", "nein", "ja", "ja"], "ja"),
        (["TRUE", "False", "False"], "TRUE"),
        (["off", "running", "running"], "running"),
        (["spam", "ham", "ham", "ham"], "spam"),
        (["zebra", "ant", "zebra"], "ant"),
        (["a", "b"], "b"),
        (["1", "0", "1"], "1"),
    ],
)
def test_which_of_two_texts_counts_as_present(column, present):
    label = learn_label("x", column)
    assert label.values[1] == present
    assert label.shown == ("x" if present == "1" else f"x={present}")


def test_the_value_that_counts_as_present_is_named(tmp_path):
    rows = "".join(f"{k % 5},{'ja' if k % 5 > 2 else 'nein'}\n" for k in range(30))
    (tmp_path / "t.csv").write_text("x,a\n" + rows)
    said = []
    pipeline, _ = tables.train(tmp_path / "t.csv", ["a"], run=Run(say=said.append))
    assert said == ["label 'a': 'ja' counts as present, 'nein' as absent."]
    pipeline.predict_files(tmp_path / "t.csv", tmp_path / "out.csv", probabilities=True, scores=True)
    out = read_table(tmp_path / "out.csv")
    assert list(out) == ["a", "a=ja_probability", "a=ja_score"]
    likely = {a for a, p in zip(out["a"], out["a=ja_probability"], strict=True) if float(p) > 0.5}
    assert likely == {"ja"}


def test_texts_become_indicators_and_unseen_ones_none():
    feature = learn_feature("x", ["b", "a", None, "1"])
    assert feature.texts == ["1", "a", "b"]
    assert feature.matrix(["a", "c", None]).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    with pytest.raises(pt.PotentiaError, match="--ignore x"):
        learn_feature("x", [f"t{k}" for k in range(1001)])


def test_labels_are_any_two_values():
    label = learn_label("a", ["Yes", "no", "Yes"])
    assert label.values == ["no", "Yes"]
    assert label.encode(["no", "Yes"]).tolist() == [0, 1]
    assert label.decode(np.array([1, 0])) == ["Yes", "no"]
    assert learn_label("a", ["10", "9.0", "9"]).values == ["9", "10"]
    with pytest.raises(pt.PotentiaError, match="'maybe', but training had 'no' and 'Yes'"):
        label.encode(["maybe"])
    with pytest.raises(pt.PotentiaError, match="takes 3 values"):
        learn_label("a", ["x", "y", "z"])
    assert learn_label("a", ["x", None, "y"]).encode(["y", None, "x"]).tolist() == [1, -1, 0]


def test_labels_come_back_as_training_spelled_them():
    label = learn_label("a", ["02", "01", "1.0"])
    assert (label.values, label.texts) == (["1", "2"], ["01", "02"])
    assert label.decode(label.encode(["1", "2.0"])) == ["01", "02"]
    assert learn_label("a", ["1_2", "12"]).values == ["12", "1_2"]
    with pytest.raises(pt.PotentiaError, match=r"takes 3 values \('a', 'b\\nc', 'd'\); a label takes two"):
        learn_label("a", ["a", "b\nc", "d"])


def test_a_constant_label_knows_one_other_value():
    label = learn_label("a", ["apple", "apple"])
    assert label.encode(["apple", "kiwi", "kiwi"]).tolist() == [0, 1, 1]
    with pytest.raises(pt.PotentiaError, match="has the value 'kiwi', but training had 'apple'"):
        label.encode(["kiwi", "banana"])


@pytest.mark.parametrize(("value", "state"), [("1", 1), ("0", 0), ("yes", 0)])
def test_labels_constant_in_training_know_one_value_from_all_others(value, state):
    label = Label("a", [value], [value])
    assert label.encode([value, "other"]).tolist() == [state, 1 - state]
    assert label.decode(np.array([state])) == [value]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_in_three_dialects(separator, tmp_path):
    text = '\ufeffx,"y"\n1,"two words"\n\n?,NA\n'.replace(",", separator)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert read_table(tmp_path / "t.csv") == {"x": ["1", None], "y": ["two words", None]}


def test_a_column_of_texts_that_hardly_repeat_is_remarked_on(tmp_path):
    rows = "".join(f"no {k:02d};{k % 2}\n" for k in range(40))
    (tmp_path / "t.csv").write_text("size;a\n" + rows)
    said = []
    tables.train(tmp_path / "t.csv", ["a"], run=Run(say=said.append))
    assert len(said) == 1
    assert said[0].startswith("column 'size' has 40 different texts in 40 rows")


def test_one_row_and_labels_of_one_value_are_remarked_on(tmp_path):
    said = []
    (tmp_path / "t.csv").write_text("size,a,b\n" + "".join(f"{k},{k % 2},yes\n" for k in range(20)))
    tables.train(tmp_path / "t.csv", ["a", "b"], run=Run(say=said.append))
    assert said == ["label 'b' has only the value 'yes', which is always predicted."]
    said.clear()
    (tmp_path / "t.csv").write_text("size,a\n1,1\n")
    tables.train(tmp_path / "t.csv", ["a"], run=Run(say=said.append))
    assert said == ["there is only one row to train on, so every prediction repeats its labels."]


def test_predicting_warns_of_a_column_without_any_known_text(tmp_path):
    make_table(tmp_path / "t.csv")
    made, _ = tables.train(tmp_path / "t.csv", ["a", "b", "c"])
    (tmp_path / "new.csv").write_text("size,colour\n1,purple\n2,pink\n")
    with pytest.warns(UserWarning, match="training had none of the values of column 'colour'"):
        made.predict_files(tmp_path / "new.csv", tmp_path / "p.csv")
    (tmp_path / "new.csv").write_text("size,colour\n1,purple\n2,red\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.predict_files(tmp_path / "new.csv", tmp_path / "p.csv")


@pytest.mark.filterwarnings("error")
def test_numbers_too_large_to_compute_with_name_their_column():
    with pytest.raises(pt.PotentiaError, match="column 'x' has numbers too large to compute with"):
        learn_feature("x", ["1e308", "1e308", "-1e308", "1e308"])
    feature = learn_feature("x", ["1", "2", None])
    with pytest.raises(pt.PotentiaError, match="row 2 of column 'x' is '-1e308', too large to compute with"):
        feature.matrix(["1", "-1e308"])


def test_a_blank_line_of_a_table_of_one_column_is_a_row(tmp_path):
    (tmp_path / "t.csv").write_text("x\n1\n\n-1\n\n")
    assert read_table(tmp_path / "t.csv") == {"x": ["1", None, "-1"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [("x,y\n1\n", "row 1 has 1 cells"), ("x,x\n1,2\n", "two columns 'x'"), ("x,y\n", "no rows"), ("", "no rows")],
)
def test_bad_tables_are_one_sentence(text, words, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(pt.PotentiaError, match=words):
        read_table(tmp_path / "t.csv")


def test_parquet_tables_hold_the_same(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"x": [1.5, None], "flag": [True, False], "t": ["a", ""]}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet") == {"x": ["1.5", None], "flag": ["1", "0"], "t": ["a", None]}
    write_table(tmp_path / "w.parquet", {"a": ["1", "0"], "b": ["yes", "no"]})
    assert read_table(tmp_path / "w.parquet") == {"a": ["1", "0"], "b": ["yes", "no"]}
    assert parquet.read_table(tmp_path / "w.parquet").to_pydict() == {"a": [1, 0], "b": ["yes", "no"]}
    strange = {"long": ["9" * 5000, "1"], "wide": ["9" * 30, "1"], "signs": ["--5", "1"], "zeros": ["-0", "01"]}
    for name, cells in strange.items():  # not integers that a column can hold
        write_table(tmp_path / "w.parquet", {name: cells})
        assert read_table(tmp_path / "w.parquet") == {name: cells}
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(pt.PotentiaError, match=r"bad\.parquet"):
        read_table(tmp_path / "bad.parquet")


@pytest.mark.parametrize("learner", tables.MODELS)
def test_a_saved_table_pipeline_predicts_identically(learner, tmp_path):
    make_table(tmp_path / "data.csv")
    run = Run(validation=0.25)
    made, facts = tables.train(tmp_path / "data.csv", ["a", "b", "c"], model=learner, run=run)
    assert (facts["features"], facts["rows"]) == (3, 40)
    assert facts["training_exact_match"] > 0.8
    made.save(tmp_path / "model")
    found = pt.load(tmp_path / "model")
    table = read_table(tmp_path / "data.csv")
    assert found.predict(table) == made.predict(table)
    found.predict_files(tmp_path / "data.csv", tmp_path / "out.csv")
    assert read_table(tmp_path / "out.csv") == found.predict(table)
    assert set(found.predict(table)["b"]) == {"no", "yes"}
    measures = found.evaluate_files(tmp_path / "data.csv")
    assert set(measures) == {"rows", "exact_match", "hamming_loss", "f_micro", "f_macro", "f_samples"}
    assert repr(found).startswith("TablePipeline(labels: a, b, c; feature columns: 2; model: ")
    assert "a, b, c" in found._repr_html_()


def test_codes_of_categories_and_missing_numbers_have_indicators():
    codes = learn_feature("x", ["1", "2.0", "1.0", None, "10"], categorical=True)
    assert codes.texts == ["1", "10", "2"]
    assert codes.matrix(["2", "1.0", "7", None]).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    few = learn_feature("x", ["1", "3"] + [None] * 4)
    many = learn_feature("x", ["1", "3"] + [None] * 5)
    assert (few.width, many.width) == (1, 2)
    assert many.matrix(["3", None]).tolist() == [[1, 0], [0, 1]]


def test_columns_of_text_are_read_by_their_words(tmp_path):
    rng, lines = np.random.default_rng(0), ["note,when,a,b"]
    for i in range(120):
        words = [str(word) for word in rng.choice(["sun", "rain", "wind", "sea", "hill"], 3)]
        note = f"{i}: {' '.join(words)}" if i else ""
        lines.append(f'"{note}",2024-{1 + i % 12:02d}-03,{int("rain" in words)},{int(i % 12 > 5)}')
    (tmp_path / "t.csv").write_text("\n".join(lines))
    made, facts = tables.train(tmp_path / "t.csv", ["a", "b"], text=["note"], run=Run(seed=1, validation=0.25))
    assert facts["features"] == 2048 + 1
    assert facts["validation_exact_match"] > 0.8
    assert facts["most_useful_columns"] == ["a: note", "b: when"]
    made.save(tmp_path / "m")
    table = read_table(tmp_path / "t.csv")
    assert sparse.issparse(made.matrix(table))
    assert pt.load(tmp_path / "m").predict_proba(table) == made.predict_proba(table)
    with pytest.raises(pt.PotentiaError, match="no column 'other'"):
        tables.train(tmp_path / "t.csv", ["a"], text=["other"])


def test_predicted_tables_have_ids_probabilities_and_scores(tmp_path):
    lines = ["key,code,size,a,b"]
    rng = np.random.default_rng(0)
    for i in range(60):
        code, size = rng.integers(3), rng.normal()
        lines.append(f"r{i},{code},{'' if i % 7 == 0 else size},{int(code == 1)},{int(size > 0)}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    options = {"ignore": ["key"], "categorical": ["code"], "run": Run(seed=1)}
    made, facts = tables.train(tmp_path / "t.csv", ["a", "b"], **options)
    assert facts["features"] == 3 + 2
    assert facts["classifiers"] == ["linear", "rbf", "forest"]
    made.save(tmp_path / "m")
    found = pt.load(tmp_path / "m")
    table = read_table(tmp_path / "t.csv")
    assert found.predict(table)["a"] == table["a"]
    assert found.predict_proba(table) == made.predict_proba(table)
    more = {"id": ["key"], "probabilities": True, "scores": True}
    found.predict_files(tmp_path / "t.csv", tmp_path / "out.csv", **more)
    out = read_table(tmp_path / "out.csv")
    assert list(out) == ["key", "a", "b", "a_probability", "b_probability", "a_score", "b_score"]
    assert out["key"] == table["key"]
    assert [float(p) for p in out["b_probability"]] == found.predict_proba(table)["b"]
    assert all((float(s) > 0) == (float(p) > 0.5) for s, p in zip(out["a_score"], out["a_probability"], strict=True))
    with pytest.raises(pt.PotentiaError, match="no column 'name'"):
        found.predict_files(tmp_path / "t.csv", tmp_path / "out.csv", id=["name"])


def test_what_is_no_table_is_one_sentence_and_no_rows_are_none(tmp_path):
    make_table(tmp_path / "data.csv")
    found = tables.train(tmp_path / "data.csv", ["a", "b", "c"], model="independent")[0]
    assert found.predict({}) == {"a": [], "b": [], "c": []}
    assert found.predict_proba({"size": [], "colour": []}) == {"a": [], "b": [], "c": []}
    with pytest.raises(pt.PotentiaError, match="a table is a dictionary of columns"):
        found.predict([])
    with pytest.raises(pt.PotentiaError, match="different lengths, 1 to 2"):
        found.predict({"size": ["1"], "colour": ["red", "red"]})


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("network", {"alpha": 1.0}, "--alpha cannot be combined with --model network"),
        ("lmbm", {"order": "index"}, "--order cannot be combined with --model lmbm"),
        ("network", {"order": "f-score"}, "order"),
        ("independent", {"target": "hamming"}, "--target cannot be combined with --model independent"),
    ],
)
def test_options_of_other_models_are_one_sentence(model, options, words, tmp_path):
    make_table(tmp_path / "data.csv")
    with pytest.raises(pt.PotentiaError, match=words):
        tables.train(tmp_path / "data.csv", ["a"], model=model, **options)


# -- sequences -------------------------------------------------------------------------------------------------


def test_a_saved_sequence_pipeline_predicts_identically(tmp_path):
    make_sequences(tmp_path / "train.tsv")
    made, facts = sequences.train(tmp_path / "train.tsv", run=Run(validation=0.25))
    assert facts["labels"] == ["B-NP", "I-NP", "O"]
    made.save(tmp_path / "model")
    found = pt.load(tmp_path / "model")
    assert found.settings() == made.settings()
    text = (tmp_path / "train.tsv").read_text()
    bare = "".join(line.rpartition("\t")[0] + "\n" for line in text.split("\n"))
    with gzip.open(tmp_path / "bare.tsv.gz", "wt") as file:
        file.write(bare)
    found.predict_files(tmp_path / "train.tsv", tmp_path / "out.tsv.gz")
    found.predict_files(tmp_path / "bare.tsv.gz", tmp_path / "bare_out.tsv")
    with gzip.open(tmp_path / "out.tsv.gz", "rt") as file:
        columns = pt.datasets.conll(tmp_path / "out.tsv.gz")
        assert file.read().count("\n") == text.count("\n")
    assert [s[:3] for s in columns] == pt.datasets.conll(tmp_path / "train.tsv")
    assert [s[-1] for s in columns] == [s[-1] for s in pt.datasets.conll(tmp_path / "bare_out.tsv")]
    scores = found.evaluate_files(tmp_path / "train.tsv")
    assert scores["span_f1"] == span_scores([s[2] for s in columns], [s[3] for s in columns])["f1"]
    assert scores["tokens"] == 40
    assert repr(found).startswith("SequencePipeline(labels: B-NP, I-NP, O; indicators: ")
    assert found.predict([]) == found.predict_marginals([]) == []
    (tmp_path / "train.tsv").write_text("\ufeff" + text, encoding="utf-8")
    assert pt.datasets.conll(tmp_path / "train.tsv")[0][0][0] in ("the", "a")


def test_sequences_are_decoded_as_asked_within_the_scheme_of_their_labels(tmp_path):
    lines = {"a": "O", "b": "B-X", "c": "I-X"}
    text = "\n".join("".join(f"{w}\t{lines[w]}\n" for w in words) for words in ("abca", "bcab", "aabc", "bb"))
    (tmp_path / "t.tsv").write_text(text)
    made, facts = sequences.train(tmp_path / "t.tsv", c1=0.0, c2=1.0)
    assert (facts["scheme"], made.model.scheme) == ("BIO", "BIO")
    odd = [[["c", "c", "c"]]]
    assert made.predict(odd)[0][0] != "I-X"
    row = [max(p, key=p.get) for p in made.predict_marginals(odd)[0]]
    assert made.predict(odd, "mpm")[0] == row
    assert made.model.decode == "map"
    free, facts = sequences.train(tmp_path / "t.tsv", c1=0.0, c2=1.0, scheme="none")
    assert facts["scheme"] is None
    assert free.predict(odd)[0][0] == "I-X"
    small = sequences.train(tmp_path / "t.tsv", c1=0.3)[0]
    assert len(small.model.index_.numbers) < len(made.model.index_.numbers)


def test_an_empty_label_is_refused_with_its_line(tmp_path):
    make_sequences(tmp_path / "train.tsv")
    made, _ = sequences.train(tmp_path / "train.tsv")
    lines = (tmp_path / "train.tsv").read_text().split("\n")
    lines[7] = lines[7].rpartition("\t")[0] + "\t"
    (tmp_path / "empty.tsv").write_text("\n".join(lines))
    with pytest.raises(pt.PotentiaError, match=r"empty\.tsv: line 8 has no label"):
        sequences.train(tmp_path / "empty.tsv")
    with pytest.raises(pt.PotentiaError, match=r"empty\.tsv: line 8 has no label"):
        made.evaluate_files(tmp_path / "empty.tsv")
    made.predict_files(tmp_path / "empty.tsv", tmp_path / "out.tsv")  # which needs no labels


def test_labels_that_almost_keep_to_a_scheme_are_remarked_on(tmp_path):
    make_sequences(tmp_path / "t.tsv", n=20)
    text = (tmp_path / "t.tsv").read_text().replace("B-NP", "I-NP", 1)
    (tmp_path / "t.tsv").write_text(text)
    said = []
    _, facts = sequences.train(tmp_path / "t.tsv", run=Run(say=said.append))
    assert facts["scheme"] is None
    assert said[0].startswith("labels look like BIO, but 1 of 20 sentences break it")
    sequences.train(tmp_path / "t.tsv", scheme="none", run=Run(say=said.append))
    assert len(said) == 1


def test_headers_and_columns_of_numbers_are_remarked_on(tmp_path):
    make_sequences(tmp_path / "t.tsv", n=20)
    text = (tmp_path / "t.tsv").read_text()
    said = []
    sequences.train(tmp_path / "t.tsv", run=Run(say=said.append))
    assert not said
    (tmp_path / "h.tsv").write_text("token\ttag\tlabel\n" + text)
    sequences.train(tmp_path / "h.tsv", run=Run(say=said.append))
    assert said == [
        "the label 'label' occurs in the first line only, which may be a header; if it is, delete that line."
    ]
    tags = iter(range(1000))
    numbers = re.sub(r"\t(DT|NN|VB)\t", lambda _: f"\t{next(tags) / 7:.3f}\t", text)
    (tmp_path / "n.tsv").write_text(numbers)
    sequences.train(tmp_path / "n.tsv", run=Run(say=said.append))
    assert said[1].startswith("column 2 holds many different numbers")
    (tmp_path / "c.tsv").write_text(re.sub(r"\t(DT|NN|VB)\t", lambda m: f"\t{len(m[1])}\t", text))
    sequences.train(tmp_path / "c.tsv", run=Run(say=said.append))
    assert len(said) == 2


def test_labels_in_the_place_of_a_feature_are_warned_of(tmp_path):
    """A file without the column before the labels looks like one without labels."""
    make_sequences(tmp_path / "t.tsv")
    made, _ = sequences.train(tmp_path / "t.tsv")
    lines = [line.split("\t") for line in (tmp_path / "t.tsv").read_text().split("\n")]
    for kept in ((0, 1), (0, 2)):
        text = "\n".join("\t".join(line[k] for k in kept) if len(line) > 1 else "" for line in lines)
        (tmp_path / "two.tsv").write_text(text)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made.predict_files(tmp_path / "two.tsv", tmp_path / "out.tsv")
        found = [str(w.message) for w in caught]
        assert len(found) == (kept == (0, 2)), found
        assert all("knows none of the values of column 2 of" in message for message in found)


def test_gazetteers_go_with_the_pipeline(tmp_path):
    (tmp_path / "t.tsv").write_text("in\tO\nRome\tB-C\n\nin\tO\nBonn\tB-C\n\na\tO\ncat\tO\n\na\tO\ndog\tO\n")
    (tmp_path / "city.txt").write_text("Rome\nBonn\nOslo\n")
    made, _ = sequences.train(tmp_path / "t.tsv", gazetteers=[tmp_path / "city.txt"], c1=0.0)
    made.save(tmp_path / "model")
    (tmp_path / "city.txt").unlink()
    found = pt.load(tmp_path / "model")
    assert found.predict([[["a", "Oslo"]], [["a", "fish"]]]) == [["O", "B-C"], ["O", "O"]]
    assert found.settings() == made.settings()


def test_clusters_go_with_the_pipeline(tmp_path):
    (tmp_path / "t.tsv").write_text("in\tO\nRome\tB-C\n\nin\tO\nBonn\tB-C\n\na\tO\ncat\tO\n\na\tO\ndog\tO\n")
    (tmp_path / "brown.txt").write_text("0101 Rome 3\n0101 Bonn 2\n0101 Oslo 1\n11 cat 3\n11 fish 3\n")
    made, _ = sequences.train(tmp_path / "t.tsv", clusters=[tmp_path / "brown.txt"], c1=0.0)
    made.save(tmp_path / "model")
    found = pt.load(tmp_path / "model")
    assert found.predict([[["a", "Oslo"]], [["a", "fish"]]]) == [["O", "B-C"], ["O", "O"]]
    assert found.settings() == made.settings()


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        ([["The", "dog"]], r"sentence 0 must be a list of columns, each with a text per token"),
        (["The dog"], r"sentence 0 must be a list of columns"),
        ([[["a"], ["b"], ["c"], ["d"]]], "sentence 0 has 4 columns, but the model was trained on 3 or"),
        ([[["a", "b"], ["DT"]]], r"the columns of sentence 0 have \[1, 2\] tokens"),
    ],
)  # fmt: skip
def test_sentences_of_another_form_get_a_sentence(sentences, words, tmp_path):
    make_sequences(tmp_path / "train.tsv")
    made, _ = sequences.train(tmp_path / "train.tsv")
    with pytest.raises(pt.PotentiaError, match=words):
        made.predict(sentences)


def test_documents_and_encodings_of_token_files(tmp_path):
    text = "-DOCSTART-\t-X-\tO\n\nthe\tD\tO\ncafé\tN\tB-C\n\n-DOCSTART-\t-X-\tO\n\na\tD\tO\ncat\tN\tB-C\n"
    for encoding in ("utf-8", "utf-16", "latin-1"):
        (tmp_path / f"{encoding}.tsv").write_text(text, encoding=encoding)
    made, facts = sequences.train(tmp_path / "utf-16.tsv")
    assert (facts["sentences"], facts["tokens"]) == (2, 4)
    with pytest.raises(pt.PotentiaError, match=r"latin-1\.tsv: the text is not UTF-8; name its encoding, such as"):
        sequences.train(tmp_path / "latin-1.tsv")
    with pytest.raises(pt.PotentiaError, match="the encoding 'latin-99' is not known"):
        sequences.train(tmp_path / "latin-1.tsv", encoding="latin-99")
    made.predict_files(tmp_path / "latin-1.tsv", tmp_path / "out.tsv", encoding="latin-1")
    lines = (tmp_path / "out.tsv").read_text().split("\n")
    assert [line.rpartition("\t")[0] for line in lines] == text.split("\n")
    assert lines[0] == "-DOCSTART-\t-X-\tO\tO"
    assert made.evaluate_files(tmp_path / "utf-8.tsv")["tokens"] == 4
    (tmp_path / "bare.tsv").write_bytes(text.replace("é", "e").encode("utf-16-le"))
    with pytest.raises(pt.PotentiaError, match=r"bare\.tsv: the text has zero bytes, as UTF-16 has"):
        sequences.train(tmp_path / "bare.tsv")


# -- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "accuracy"), [("O X\nO R\n", 0.75), ("R R\nR R\n", 0.0)])
def test_labels_that_only_validation_has_count_as_wrong(held, accuracy, tmp_path, monkeypatch):
    known = "a\tO\nb\tX\n\n" * 3
    tokens = zip("abab", held.split(), strict=True)
    (tmp_path / "t.tsv").write_text(known + "".join(f"{word}\t{label}\n" for word, label in tokens))
    monkeypatch.setattr(Run, "split", lambda run, n: (np.arange(3), np.arange(3, 4)))
    _, facts = sequences.train(tmp_path / "t.tsv", run=Run(validation=0.25))
    assert facts["validation_accuracy"] == accuracy
    assert (facts["sentences"], facts["tokens"]) == (4, 10)


def test_no_part_of_a_file_loads_as_a_whole_one(tmp_path):
    make_table(tmp_path / "data.csv")
    tables.train(tmp_path / "data.csv", ["a", "b", "c"])[0].save(tmp_path / "model")
    whole = (tmp_path / "model").read_bytes()
    for end in range(0, len(whole), 97):
        (tmp_path / "part").write_bytes(whole[:end])
        with pytest.raises(pt.PotentiaError, match="part"):
            pt.load(tmp_path / "part")


@pytest.mark.parametrize("missing", ["form", "settings", "model"])
def test_a_file_that_lacks_a_field_is_called_damaged(missing, tmp_path):
    content = {"form": "table", "settings": {"learner": "lmsbn", "features": [], "labels": []}, "model": {}}
    del content[missing]
    write_file(tmp_path / "model", "pipeline", content, {})
    with pytest.raises(pt.PotentiaError, match="damaged"):
        pt.load(tmp_path / "model")


def test_staged_files_appear_together_or_not_at_all(tmp_path):
    (tmp_path / "out" / "a").mkdir(parents=True)
    (tmp_path / "out" / "a" / "1").write_text("old")

    def write(fail):
        with Staging(tmp_path / "out") as staging:
            staging.file("a", "1").write_text("new")
            if fail:
                raise OSError(28, "No space left on device")
            staging.file("b", "2").write_text("new")

    with pytest.raises(pt.PotentiaError, match="out cannot be written: No space left"):
        write(True)
    assert (tmp_path / "out" / "a" / "1").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    write(False)
    assert (tmp_path / "out" / "a" / "1").read_text() == (tmp_path / "out" / "b" / "2").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_splits_are_disjoint_whole_and_repeatable():
    own, held = Run(validation=0.25, seed=3).split(10)
    assert sorted([*own, *held]) == list(range(10))
    assert len(held) == 2
    assert np.array_equal(held, Run(validation=0.25, seed=3).split(10)[1])
    for share in (0.0, 1.0, 0.9):
        with pytest.raises(pt.PotentiaError, match="validation"):
            Run(validation=share).split(4)


def test_progress_goes_to_the_error_stream_as_a_bar_or_as_lines(capsys, monkeypatch):
    with Bar(True) as bar:  # too short for a line
        assert list(bar.over([1, 2, 3], "counting")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("potentia.base.progress.LINE_EVERY", 0.01)
    with Bar(True) as bar:
        bar.begin("waiting", 4)
        time.sleep(0.2)  # within the first step
        bar.advance(text="counting")
        time.sleep(0.2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "potentia: waiting: 0 of 4, " in shown.err
    assert re.search(r"potentia: counting: 1 of 4, \d+ s, \d+ s left\n", shown.err)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Bar(True) as bar:
        assert list(bar.over([1, 2, 3], "counting")) == [1, 2, 3]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "counting" in shown.err
    with Bar(False) as bar:
        assert list(bar.over([1], "counting")) == [1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("trained_on", [["a"], None])
def test_a_pipeline_of_an_unknown_form_or_without_a_field_is_damaged(trained_on, tmp_path):
    content = {"form": "numbers" if trained_on else "table", "settings": {}, "model": {}}
    write_file(tmp_path / "model", "pipeline", content | ({"trained_on": trained_on} if trained_on else {}), {})
    wrong = "form is 'numbers', not one of images, table, sequences" if trained_on else "trained_on is missing"
    with pytest.raises(pt.PotentiaError, match=f"the saved pipeline is damaged: {wrong}"):
        pt.load(tmp_path / "model")

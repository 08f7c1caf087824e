"""Images, masks and tables as other programs write them."""

import json

import numpy as np
import pytest

import potentia as pt
from own_data import make_images, make_table
from potentia.app import tables
from potentia.app.cli import main
from potentia.app.image_files import image_files, paired_files, read_image, read_mask
from potentia.app.pixel_values import find_classes
from potentia.app.table_files import learn_feature, learn_labels, read_table
from potentia.app.training import Run

tifffile = pytest.importorskip("tifffile")
Image = pytest.importorskip("PIL.Image")
TRAIN = "train --images photos --masks masks --node linear --iterations 1 --position no --quiet --out m"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path)
    return tmp_path


def run(line, capsys):
    code = main(line.split())
    return code, capsys.readouterr()


# -- images --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", ["YXC", "CYX"])
def test_axes_of_tiff_files_are_named_once(axes, here, capsys):
    rng = np.random.default_rng(0)
    for path in sorted((here / "photos").iterdir()):
        size = np.asarray(Image.open(path)).shape[:2]
        values = rng.integers(0, 99, (*size, 5), dtype=np.uint8)
        tifffile.imwrite(path.with_suffix(".tif"), values if axes == "YXC" else np.moveaxis(values, -1, 0))
        path.unlink()
    code, said = run(TRAIN, capsys)
    assert code == 2
    assert f"is channels, give --axes {axes}." in said.err
    code, said = run(f"{TRAIN} --axes {axes}", capsys)
    assert code == 0, said.err
    assert pt.load("m").intensity.channels == 5
    # the model knows the axes from now on
    code, said = run("predict m --images photos --out p --quiet", capsys)
    assert code == 0, said.err
    assert sorted(path.name for path in (here / "p" / "labels").iterdir()) == ["p0.png", "p1.png", "p2.png"]
    code, said = run(f"{TRAIN} --axes XC", capsys)
    assert (code, said.err.count("\n")) == (2, 1)
    code, said = run(f"{TRAIN} --axes ZCYX", capsys)
    assert "names 4 axes, but the file has the shape" in said.err


def test_names_of_ome_files_have_one_suffix(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    tifffile.imwrite(tmp_path / "images" / "0.ome.tif", np.zeros((5, 8, 6), np.uint16), metadata={"axes": "CYX"})
    Image.fromarray(np.zeros((8, 6), np.uint8)).save(tmp_path / "masks" / "0.png")
    ((image, mask),) = paired_files(tmp_path / "images", tmp_path / "masks")
    assert (image.name, mask.path.name) == ("0", "0.png")
    assert read_image(image).shape == (8, 6, 5)


def test_minus_one_is_void(tmp_path):
    codes = np.array([[0, 1, -1], [1, 1, 0]], dtype=np.int16)
    tifffile.imwrite(tmp_path / "m.tif", codes)
    mask = read_mask(tmp_path / "m.tif")
    for void in (None, "-1"):
        classes = find_classes([mask], None, void, "keep")
        assert classes.codes == [0, 1]
        assert classes.void == []
        assert np.array_equal(classes.labels(mask, tmp_path), codes)
    tifffile.imwrite(tmp_path / "m.tif", codes - 1)
    with pytest.raises(pt.PotentiaError, match="from 0, and -1 for unknown, not int16 from -2"):
        read_mask(tmp_path / "m.tif")


def test_masks_may_be_gif_files_but_not_animations(here, capsys):
    for path in (here / "masks").iterdir():
        Image.open(path).save(path.with_suffix(".gif"))
        path.unlink()
    assert set(np.unique(read_mask(here / "masks" / "p0.gif").codes)) == {0, 7}
    assert run(TRAIN, capsys)[0] == 0
    frames = [Image.fromarray(np.full((6, 9), k, np.uint8)) for k in (0, 200)]
    frames[0].save(here / "masks" / "p0.gif", save_all=True, append_images=frames[1:])
    code, said = run(TRAIN, capsys)
    assert code == 2
    assert said.err == "potentia: masks/p0.gif is an animation; save its frames as pages of a TIFF file.\n"


def test_a_folder_without_images_has_those_of_its_subfolders(here, capsys):
    for folder in ("photos", "masks"):
        for number, path in enumerate(sorted((here / folder).iterdir())):
            part = here / folder / f"part{number % 2}"
            part.mkdir(exist_ok=True)
            path.rename(part / path.name)
    assert [file.name for file in image_files(here / "photos")] == ["part0/p0", "part0/p2", "part1/p1"]
    assert run(TRAIN, capsys)[0] == 0
    code, said = run("predict m --images photos --out p --marginals png --json", capsys)
    assert code == 0, said.err
    labels = {path.relative_to(here / "p" / "labels").as_posix() for path in (here / "p").glob("labels/**/*.png")}
    assert labels == {"part0/p0.png", "part0/p2.png", "part1/p1.png"}
    assert run("predict m --images photos --out p --json", capsys)[0] == 0
    assert not list((here / "p").glob("marginals/**/*.png"))  # of another run
    code, said = run("evaluate m --images photos --masks masks --json", capsys)
    assert json.loads(said.out)["training_files"] == 3


def test_images_and_masks_in_subfolders_of_one_folder(tmp_path):
    for name in ("photos/a", "masks/a"):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / f"{name}.png")
    files = image_files(tmp_path, named=tmp_path / "masks")
    assert [file.name for file in files] == ["photos/a"]


def test_jpeg_masks_are_known_by_their_content(here, capsys):
    path = here / "masks" / "p1.png"
    mask = Image.open(path)
    mask.save(here / "masks" / "p1.jpg", format="PNG")  # lossless, whatever its name
    path.unlink()
    assert run(TRAIN, capsys)[0] == 0
    (here / "masks" / "p1.jpg").unlink()
    mask.save(path, format="JPEG")
    code, said = run(TRAIN, capsys)
    assert code == 2
    assert "masks/p1.png: JPEG (which the file is, despite .png) does not keep the values of classes" in said.err


@pytest.mark.parametrize("n", [3, 4])
def test_slices_that_were_written_as_colours_are_a_volume(n, tmp_path):
    stack = np.random.default_rng(0).integers(0, 2, (n, 8, 6), dtype=np.uint8)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        tifffile.imwrite(tmp_path / folder / "s.tif", stack, photometric="rgb", planarconfig="separate")
    ((image, mask),) = paired_files(tmp_path / "images", tmp_path / "masks", "volumes")
    assert np.array_equal(read_image(image), stack)
    assert np.array_equal(read_mask(mask).codes, stack)


# -- tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1,5", "-2,25", "3"], [1.5, -2.25, 3]),
        (["1.234,5", "2"], [1234.5, 2]),
        (["1,234.5", "2"], [1234.5, 2]),
        (["1,234", "950"], [1234, 950]),
        (["0,125", "0,250"], [0.125, 0.25]),
        (["1 234,5", "1\u202f000"], [1234.5, 1000]),
        (["1'234.50", "10"], [1234.5, 10]),
        (["12 %", "50%", "0.5"], [0.12, 0.5, 0.5]),
        (["$1,200", "$ 15.50", "-$3"], [1200, 15.5, -3]),
        (["12,50 €", "1.000,00 €"], [12.5, 1000]),
        (["USD 5", "7 USD"], [5, 7]),
        (["\u22125", "1,000"], [-5, 1000]),
        (["2024-01-31", "2024-02-01"], [0, 1]),
        (["31.01.2024", "01.02.2024"], [0, 1]),
        (["1/31/2024", "2/1/2024"], [0, 1]),
        (["31/01/24", "01/02/24"], [0, 1]),
        (["2024-01-31T12:00:00Z", "2024-02-01 00:00"], [0, 0.5]),
    ],
)
def test_numbers_as_spreadsheets_write_them(cells, numbers):
    feature = learn_feature("x", cells)
    assert feature.texts is None
    found = feature.matrix(cells)[:, 0] * feature.scale + feature.mean
    if feature.style in ("ymd", "dmy", "mdy"):
        found -= found[0]  # days since the first one
    np.testing.assert_allclose(found, numbers)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["01/02/2024", "03/04/2024"], "column 'x' has dates such as '01/02/2024', whose day and month"),
        (["$5", "5 €"], r"column 'x' mixes the currencies \$ and €"),
    ],
)
def test_numbers_with_two_meanings_are_one_sentence(cells, words):
    with pytest.raises(pt.PotentiaError, match=words):
        learn_feature("x", cells)


def test_new_rows_are_read_as_training_was():
    feature = learn_feature("x", ["1,5", "2,5"])
    assert feature.matrix(["1.500"])[0, 0] == (1500 - 2.0) / 0.5  # a point separates thousands
    with pytest.raises(pt.PotentiaError, match=r"row 1 of column 'x' is '1\.5', which is not a finite number"):
        feature.matrix(["1.5"])
    assert learn_feature("x", ["1,000", "2"]).matrix(["3"]).shape == (1, 1)
    with pytest.raises(pt.PotentiaError, match="is '5', which is not a date"):
        learn_feature("day", ["2024-01-31", "2024-02-01"]).matrix(["5"])


@pytest.mark.parametrize(
    "cells", [["12 kg", "13 kg"], ["v1.2.3", "v1.2.4"], ["1,2,3", "4"], ["2024-13-01", "2024-01-01"]]
)
def test_other_texts_stay_texts(cells):
    assert learn_feature("x", cells).texts == sorted(cells)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('"height, cm";"weight, kg";a\n1,5;2;1\n', {"height, cm": ["1,5"], "weight, kg": ["2"], "a": ["1"]}),
        ("x,a,\n1,2,\n3,4,\n", {"x": ["1", "3"], "a": ["2", "4"]}),
        ("sep=;\nx;a\n1;2\n", {"x": ["1"], "a": ["2"]}),
        ("x,a\n1,2\n,\n,\n", {"x": ["1"], "a": ["2"]}),
        ("x\ta;b\n1\t2\n", {"x": ["1"], "a;b": ["2"]}),
    ],
)
def test_dialects_of_csv(text, table, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    assert read_table(tmp_path / "t.csv") == table


def test_latin_1_is_read_with_a_warning(tmp_path):
    (tmp_path / "t.csv").write_bytes("größe,a\n1,é\n".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"t\.csv: the text is not UTF-8, so it is read as Windows-1252"):
        assert read_table(tmp_path / "t.csv") == {"größe": ["1"], "a": ["é"]}
    (tmp_path / "t.csv").write_bytes(b"x,a\n1,\x81\n")
    with pytest.raises(pt.PotentiaError, match=r"t\.csv: the text is not UTF-8; save the table in UTF-8\."):
        read_table(tmp_path / "t.csv")


def test_empty_columns_are_left_out(tmp_path):
    said = []
    rows = "".join(f"{k},,{k % 2}\n" for k in range(12))
    (tmp_path / "t.csv").write_text("x,notes,a\n" + rows)
    made, _ = tables.train(tmp_path / "t.csv", ["a"], model="independent", run=Run(say=said.append))
    assert said == ["column 'notes' has no values and is left out."]
    assert [feature.name for feature in made.features] == ["x"]


def test_blank_cells_beside_marks_mean_absent():
    (label,) = learn_labels("a", ["x", None, "x", None])
    assert label.encode(["x", None]).tolist() == [1, 0]
    assert label.decode(np.array([1, 0])) == ["x", ""]
    (label,) = learn_labels("a", ["1", None])
    assert label.encode(["1.0", None]).tolist() == [1, 0]
    (label,) = learn_labels("a", ["yes", None, "no", "no"])
    assert label.encode(["no", None, "yes"]).tolist() == [0, -1, 1]
    for column in (["0", None], ["no", None]):
        with pytest.raises(pt.PotentiaError, match="row 2 has no value for the label 'a': fill it in, or leave out"):
            learn_labels("a", column)


@pytest.mark.parametrize("model", ["network", "lmsbn", "lmbm", "independent"])
def test_blank_cells_beside_two_values_are_missing(model, tmp_path):
    rng, said = np.random.default_rng(0), []
    lines = [f"{x},{x > 0:d},{x > 0.5:d}".split(",") for x in rng.normal(size=80).round(3)]
    full = [",".join(cells) for cells in lines]
    blank = [",".join([x, "" if rng.random() < 0.3 else a, b]) for x, a, b in lines]
    for name, rows in {"full.csv": full, "blank.csv": blank}.items():
        (tmp_path / name).write_text("\n".join(["x,a,b", *rows]))
    made, facts = tables.train(
        tmp_path / "blank.csv", ["a", "b"], model=model, run=Run(say=said.append, validation=0.2)
    )
    n = sum(row.split(",")[1] == "" for row in blank)
    assert said == [f"label 'a' has {n} blank cells, which count as missing."]
    assert facts["training_exact_match"] > 0.8
    known, all_labels = (made.evaluate_files(tmp_path / name) for name in ("blank.csv", "full.csv"))
    assert known["exact_match"] >= all_labels["exact_match"] > 0.8


def test_the_default_model_learns_lists_of_tags(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(x, "|".join(tag for tag, has in (("a", x > 0), ("b", x > 0.5)) if has)) for x in rng.normal(size=60)]
    (tmp_path / "t.csv").write_text("x,y,tags\n" + "".join(f"{x},{x**2},{tags}\n" for x, tags in rows))
    _, facts = tables.train(tmp_path / "t.csv", ["tags"])
    assert facts["labels"] == ["tags=a", "tags=b"]
    assert facts["most_useful_columns"][0].startswith("tags=a: x")


def test_lists_of_tags_become_labels_and_lists_again(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    cells = ["|".join(name for name, on in zip("ab", row > 0, strict=True) if on) for row in x]
    lines = [f"{row[0]:.3f},{row[1]:.3f},{cell}\n" for row, cell in zip(x, cells, strict=True)]
    (tmp_path / "t.csv").write_text("x,y,tags\n" + "".join(lines))
    said = []
    made, facts = tables.train(tmp_path / "t.csv", ["tags"], model="independent", run=Run(say=said.append))
    assert said == ["column 'tags' has lists of tags: 2 labels, 'a', 'b'."]
    assert facts["labels"] == ["tags=a", "tags=b"]
    made.save(tmp_path / "m")
    loaded = pt.load(tmp_path / "m")
    facts = loaded.predict_files(tmp_path / "t.csv", tmp_path / "p.csv", probabilities=True)
    assert facts["rows"] == 60
    found = read_table(tmp_path / "p.csv")
    assert list(found) == ["tags", "tags=a_probability", "tags=b_probability"]
    assert np.mean([(cell or "") == truth for cell, truth in zip(found["tags"], cells, strict=True)]) > 0.8
    assert loaded.evaluate_files(tmp_path / "t.csv")["exact_match"] > 0.8
    (tmp_path / "t.csv").write_text("x,y,tags\n1,2,a|z\n")
    with pytest.warns(UserWarning, match="column 'tags' has tags that training had not, such as 'z'"):
        loaded.evaluate_files(tmp_path / "t.csv")
    assert [label.name for label in learn_labels("t", ["a; b", "b;c", "a"])] == ["t=a", "t=b", "t=c"]
    with pytest.raises(pt.PotentiaError, match="label 't' takes 3 values"):
        learn_labels("t", ["red", "green", "blue"])


def test_names_of_labels_may_have_commas(here, capsys):
    make_table(here / "data.csv")
    path = here / "data.csv"
    path.write_text(path.read_text().replace(",a,", ',"big, red",', 1))
    assert main(["train", "--table", "data.csv", "--labels", '"big, red",b', "--out", "t", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["train", "--table", "data.csv", "--labels", "big, red", "--out", "t", "--quiet"]) == 2
    assert """(names with commas need quotes: --labels '"big, red"').""" in capsys.readouterr().err

"""What is written of predictions, label maps of other tools compared with masks, and the report of a model."""

import csv
import json
import re

import numpy as np
import pytest

from own_data import make_images
from potentia.app.cli import main
from potentia.app.image_files import read_image, read_mask
from potentia.app.label_maps import find_instances
from potentia.app.pixel_values import contours, overlaid
from potentia.app.report.figures import kept_image, panels_of

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: photos, masks, a palette, a model and what it predicts."""
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path)
    (tmp_path / "palette.csv").write_text('0,dark,#102030\n7,"bright, big",#f0e442\n')
    options = "--palette palette.csv --node linear --iterations 1 --position no --quiet"
    assert main(f"train --images photos --masks masks --out m {options}".split()) == 0
    assert main(["predict", "m", "--images", "photos", "--out", "p", "--quiet", "--instances"]) == 0
    return tmp_path


def run(line, capsys):
    capsys.readouterr()
    code = main(line.split())
    return code, capsys.readouterr()


def test_overlays_have_contours_and_leave_the_most_frequent_class_clear():
    labels = np.zeros((9, 9), dtype=int)
    labels[2:7, 2:7] = 1
    outline = contours(labels)
    assert not outline[labels == 0].any()
    assert outline[2, 2:7].all()
    assert not outline[3:6, 3:6].any()
    shown = np.full((9, 9, 3), 100, dtype=np.uint8)
    colours = np.full((9, 9, 3), 200, dtype=np.uint8)
    painted = overlaid(shown, labels, colours)
    assert (painted[labels == 0] == 100).all()
    assert (painted[outline] == 200).all()
    assert (painted[3:6, 3:6] == 125).all()


def test_instances_are_numbered_and_measured():
    labels = np.zeros((5, 8), dtype=int)
    labels[0:2, 0:3] = 1
    labels[4, 7] = 1
    labels[3, 0:2] = 2
    numbered, lines = find_instances(labels, [1, 2])
    assert numbered[0, 0] == 1
    assert numbered[4, 7] == 2
    assert numbered[3, 1] == 3
    assert [line["area"] for line in lines] == [6, 1, 2]
    box = {"top": 0, "left": 0, "bottom": 2, "right": 3}
    assert lines[0] == {"class": 1, "instance": 1, "area": 6, "row": 0.5, "column": 1.0} | box


def test_predictions_have_their_classes_and_instances_beside_them(here, capsys):
    assert (here / "p" / "classes.csv").read_text().splitlines() == ["0,dark,#102030", '7,"bright, big",#f0e442']
    with (here / "p" / "instances.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["class"] for line in lines} == {"bright, big"}
    for name in ("p0", "p1", "p2"):
        labels, numbered = (read_mask(here / "p" / part / f"{name}.png").codes for part in ("labels", "instances"))
        own = [line for line in lines if line["image"] == name]
        assert numbered.max() == len(own)
        assert sum(int(line["area"]) for line in own) == np.count_nonzero(labels == 7) == np.count_nonzero(numbered)
        assert read_image(here / "p" / "overlays" / f"{name}.png").shape == (*labels.shape, 3)
    code, said = run("predict m --images photos --out q --json --instances dark", capsys)
    assert json.loads(said.out)["instances"].keys() == {"dark"}
    code, said = run("predict m --images photos --out q --instances cat", capsys)
    assert (code, said.err) == (2, "potentia: --instances: there is no class 'cat'; there are dark, bright, big.\n")


def test_label_maps_of_any_tool_are_compared_with_masks(here, capsys):
    code, said = run("report p", capsys)
    assert code == 2
    assert (
        "p is a folder of predictions, which have no results yet: run `potentia evaluate p --masks MASKS`" in said.err
    )
    code, said = run("evaluate p --masks masks --json", capsys)
    assert code == 0, said.err
    by_folder = json.loads(said.out)
    by_model = json.loads(run("evaluate m --images photos --masks masks --json", capsys)[1].out)
    for key in ("accuracy", "error", "mean_iou", "mean_boundary_f1", "confusion", "classes", "images"):
        assert by_folder[key] == by_model[key]
    assert run("report p", capsys)[0] == 0
    page = (here / "p.runs" / "report.html").read_text()
    assert f"Error on images (masks): {100 * by_folder['error']:.1f} %." in page
    # bare label maps of another tool
    code, said = run("evaluate p/labels --masks masks", capsys)
    assert code == 0
    assert "mean iou" in said.out
    other = here / "other"
    other.mkdir()
    for path in (here / "masks").iterdir():
        Image.fromarray((np.asarray(Image.open(path)) > 0).astype(np.uint8)).save(other / path.name)
    for line, words in (
        (
            "evaluate other --masks masks",
            "other has the values 0, 1, but masks has 0, 7: write them in the same values.",
        ),
        ("evaluate p", "are compared with masks: give --masks"),
        ("evaluate p --masks masks --images photos", "are compared with masks: leave out --images"),
        ("evaluate m", "m is a model: give --images, --table or --sequences"),
    ):
        code, said = run(line, capsys)
        assert code == 2
        assert words in said.err
        assert said.err.count("\n") == 1


def test_the_report_says_on_what_data_errors_were_measured(here, capsys):
    assert run("report m", capsys)[0] == 0
    path = here / "m.runs" / "report.html"
    assert "The model is not evaluated yet: run `potentia evaluate`" in path.read_text()
    scores = json.loads(run("evaluate m --images photos --masks masks --json", capsys)[1].out)
    assert scores["training_files"] == 3
    assert run("report m", capsys)[0] == 0
    page = path.read_text()
    assert f"Error on the training images: {100 * scores['error']:.1f} %. No held-out images were given." in page
    titles = re.findall(r"<caption><span>(.*?)</span>", page)
    assert titles[:2] == ["Training", "Evaluation"]
    assert "All runs" not in titles
    # the model card
    assert "Model card" in page
    assert "--palette palette.csv, --position no, --node linear" in page
    assert "pixels are classified with" in page
    # other images
    for folder in ("photos", "masks"):
        (here / "new" / folder).mkdir(parents=True)
        for number, part in enumerate(sorted((here / folder).iterdir())):
            if number:
                Image.open(part).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(
                    here / "new" / folder / f"{part.stem}.png"
                )
    held = json.loads(run("evaluate m --images new/photos --masks new/masks --json", capsys)[1].out)
    assert run("report m", capsys)[0] == 0
    page = path.read_text()
    assert (
        f"Error on held-out images (new/photos): {100 * held['error']:.1f} %. Error on the training images (photos):"
        in (page.replace(" (photos):", " (photos):"))
    )
    assert "No held-out images" not in page


def test_rows_keep_images_at_full_size_with_a_map_of_errors():
    truth = np.zeros((200, 300), dtype=int)
    truth[50:100, 50:100] = 1
    truth[0] = -1
    prediction = np.where(truth < 0, 0, truth)
    prediction[60, 60] = 0
    kept = kept_image({
        "name": "a", "truth": truth, "prediction": prediction, "colours": np.array([[0, 0, 0], [250, 230, 60]]),
        "input": np.full((200, 300, 3), 90, dtype=np.uint8), "uncertainty": np.full((200, 300), 0.5),
    })  # fmt: skip
    assert list(kept["panels"]) == ["input", "truth", "prediction", "errors", "uncertainty"]
    assert kept["text"] == "1 of 59700 pixels wrong (0.00%)"
    import base64
    import io

    errors = np.asarray(
        Image.open(io.BytesIO(base64.b64decode(kept["panels"]["errors"].partition(",")[2]))).convert("RGB")
    )
    assert errors.shape == (200, 300, 3)
    assert (errors[60, 60] == (255, 64, 64)).all()
    assert (errors[0] == 128).all()
    assert (errors[70, 70] == 30).all()
    assert panels_of(kept) == kept["panels"]
    for bad in ("javascript:alert(1)", 'data:image/png;base64,AA"onload=', "data:text/html;base64,AA"):
        with pytest.raises(ValueError, match="no PNG or JPEG"):
            panels_of({"panels": {"input": bad}})


def test_help_of_train_is_in_groups(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    for title in ("data:", "options of --images:", "options of --table:", "options of --sequences:"):
        assert f"\n{title}\n" in text
    assert "images: function of pixels" not in text

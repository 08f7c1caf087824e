"""Groups of images that cross-validation holds out together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import potentia as pt
from potentia.app.image_files import ImageFile
from potentia.app.image_groups import draw_folds, find_groups
from potentia.app.image_stages import Sample, cross_fit
from potentia.app.training import Run
from potentia.potentials import Linear

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
FILES = [ImageFile(f"s{k // 2}_{k}", Path(f"d{k % 2}/s{k // 2}_{k}.png")) for k in range(6)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("folder", [0, 1, 0, 1, 0, 1]),
        (r"^(s\d)_", [0, 0, 1, 1, 2, 2]),
        (["a", "a", "b", "a", "a", "b"], [0, 0, 1, 0, 0, 1]),
        (np.array([7, 7, 7, 3, 3, 3]), [1, 1, 1, 0, 0, 0]),
    ],
)
def test_groups_are_named_in_any_form(given, expected):
    found = find_groups(given, FILES)
    assert (found if found is None else found.tolist()) == expected


def test_groups_are_read_from_a_file_with_names_of_images_or_of_their_files(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("image,patient\n" + "".join(f"{f.path.name},p{k // 3}\n" for k, f in enumerate(FILES)))
    assert find_groups(path, FILES).tolist() == [0, 0, 0, 1, 1, 1]
    path.write_text("name;tile\n" + "".join(f"{file.name};p{k % 2}\n" for k, file in enumerate(FILES)))
    assert find_groups(str(path), FILES).tolist() == [0, 1, 0, 1, 0, 1]
    pages = [ImageFile(f"stack_{k:03d}", Path("stack.tif"), k) for k in range(2)] + FILES[:1]
    path.write_text("image,group\nstack.tif,a\ns0_0,b\n")
    assert find_groups(path, pages).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing.csv", "a regular expression needs a group in parentheses"),
        ("(", "no file and no regular expression"),
        (r"(x\d)", "gives no group for the image s0_0"),
        ("(s)", "all images are in the group 's'"),
        ([1, 2], "groups has 2 values for 6 images"),
        (3, "groups must be a text or a list"),
    ],
)
def test_wrong_groups_are_one_sentence(given, message):
    with pytest.raises(pt.PotentiaError, match=message.replace("(", r"\(")):
        find_groups(given, FILES)


@pytest.mark.parametrize(
    ("text", "message"),
    [("image\ns0_0\n", "has two columns, image and group, not 1"),
     ("image,group\ns0_0,a\ns0_0,b\n", "s0_0 is in the groups a and b"),
     ("image,group\ns0_0,a\n", "gives no group for the image s0_1")],
)  # fmt: skip
def test_wrong_files_of_groups_are_one_sentence(text, message, tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text(text)
    with pytest.raises(pt.PotentiaError, match=message):
        find_groups(path, FILES)


def test_a_group_is_in_one_fold_and_every_fold_has_something_known():
    rng = np.random.default_rng(0)
    for seed in range(20):
        groups = rng.integers(rng.integers(1, 7), size=12)
        known = rng.random(12) < 0.5
        folds = draw_folds(groups, 4, np.random.default_rng(seed), known)
        assert all(len(set(folds[groups == group])) == 1 for group in groups)
        n_known = len(set(groups[known]))
        assert set(folds[known]) == set(range(max(1, min(4, n_known)))) or n_known == 0


def test_classifiers_have_not_seen_images_of_the_same_group():
    rng = np.random.default_rng(0)
    # labels are random, but images of a group share a feature that tells them
    groups = np.repeat(np.arange(4), 3)
    codes, truth = rng.normal(size=(4, 6)), rng.integers(2, size=4)
    samples = [
        Sample(codes[[g] * 40] + 0.01 * rng.normal(size=(40, 6)), np.full(40, truth[g]), np.zeros((40, 2), np.int32))
        for g in groups
    ]
    samples[0].labels[:] = 1 - truth[0]
    together = cross_fit(Linear, samples, 2, groups=groups, run=Run())
    alone = cross_fit(Linear, samples, 2, run=Run())
    assert [len(set(together.folds[groups == g])) for g in range(4)] == [1, 1, 1, 1]
    assert together.loss > alone.loss


def test_whole_groups_are_held_out():
    groups = np.array([0, 0, 1, 1, 2, 2, 2])
    own, held = Run(validation=0.3).split(7, groups)
    assert sorted([*own, *held]) == list(range(7))
    assert not set(groups[own]) & set(groups[held])
    with pytest.raises(pt.PotentiaError, match="2 groups are too few to hold 2"):
        Run(validation=0.9).split(3, np.array([0, 0, 1]))


def test_groups_go_with_fit_search_and_validation():
    rng = np.random.default_rng(1)
    masks = [np.tile(np.arange(20) > 5 + k % 5, (16, 1)).astype(np.uint8) for k in range(4)]
    images = [(90 * mask + rng.integers(0, 80, (16, 20))).astype(np.uint8) for mask in masks]
    options = {"node": "linear", "iterations": 3, "groups": ["a", "a", "b", "b"]}
    model = pt.ImageSegmenter(**options).fit(images, masks)
    assert model.score(images, masks) > 0.8
    with pytest.raises(pt.PotentiaError, match="leaves one group"):
        pt.ImageSegmenter(**options).fit(images, masks, run=Run(validation=0.5))
    options = {"groups": ["a", "a", "b", "b"], "search": True, "budget": 1e-9}
    assert pt.ImageSegmenter(**options).fit(images, masks).score(images, masks) > 0.8


class Interrupted(Run):
    """A run that Ctrl-C ends after some fits of pixels."""

    left = 3

    def check_time(self):
        type(self).left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_a_checkpoint_of_other_groups_is_refused(tmp_path):
    """Also if they come from a file of the same name."""
    rng = np.random.default_rng(0)
    masks = [np.tile(np.arange(24) > 8 + k, (24, 1)).astype(np.uint8) for k in range(4)]
    images = [(100 * mask + rng.integers(0, 60, (24, 24))).astype(np.uint8) for mask in masks]
    model = pt.ImageSegmenter(node="linear", iterations=2, position="no", regions="no", groups=["a", "a", "b", "b"])
    with pytest.raises(KeyboardInterrupt, match="keeps the progress"):
        model.fit(images, masks, run=Interrupted(checkpoint=tmp_path / "c"))
    model.groups = ["a", "b", "a", "b"]
    with pytest.raises(pt.PotentiaError, match="other options or data"):
        model.fit(images, masks, run=Run(checkpoint=tmp_path / "c"))
    model.groups = ["x", "x", "y", "y"]  # the same ones by other names
    model.fit(images, masks, run=Run(checkpoint=tmp_path / "c"))

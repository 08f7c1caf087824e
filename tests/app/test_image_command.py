"""Training on images from files: formats, cross-fitting, tiles, features and probabilities of the user's own."""

import json
import runpy
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

import potentia as pt
from potentia.app import image_pipeline, image_stages, images, pixels
from potentia.app.cli import main
from potentia.app.image_files import (
    ImageFile,
    Mask,
    image_files,
    n_pages,
    paired_files,
    read_given,
    read_image,
    read_mask,
    read_tiff,
    write_tiff,
)
from potentia.app.image_stages import Sample, cross_fit
from potentia.app.pixel_functions import tried_functions
from potentia.app.pixel_values import find_classes, learn_intensity
from potentia.app.training import Run

Image = pytest.importorskip("PIL.Image")
tifffile = pytest.importorskip("tifffile")
pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")


def blobs(shape, seed=0, noise=0.15):
    """An image of bright and dark blobs with noise, and its mask."""
    rng = np.random.default_rng(seed)
    mask = (ndimage.gaussian_filter(rng.normal(size=shape), 3) > 0).astype(int)
    return mask + noise * rng.normal(size=shape), mask


def write_set(folder, n=4, shape=(24, 30), kind="uint8", suffix="png"):
    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    for k in range(n):
        image, mask = blobs(shape, k)
        if kind == "uint16":
            values = (2000 + 100 * np.clip(image, -1, 2)).astype(np.uint16)
        else:
            values = np.clip(80 + 90 * image, 0, 255).astype(np.uint8)
        if suffix == "tif":
            tifffile.imwrite(folder / "images" / f"a{k}.tif", values, photometric="minisblack")
            tifffile.imwrite(folder / "masks" / f"a{k}.tif", mask.astype(np.uint8), photometric="minisblack")
        else:
            Image.fromarray(values).save(folder / "images" / f"a{k}.png")
            Image.fromarray(mask.astype(np.uint8)).save(folder / "masks" / f"a{k}_mask.png")
    return folder / "images", folder / "masks"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small set and a pipeline trained on it with defaults."""
    folder = tmp_path_factory.mktemp("blobs")
    own = write_set(folder)
    pipeline, facts = images.train(*own, pixels=1500, position="no", run=Run())
    return folder, pipeline, facts


# -- files -------------------------------------------------------------------------------------------------------


def test_sixteen_bits_and_any_channels_are_read_without_loss(tmp_path):
    rng = np.random.default_rng(0)
    deep = rng.integers(0, 65535, (5, 6), dtype=np.uint16)
    tifffile.imwrite(tmp_path / "deep.tif", deep)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    for name in ("deep.tif", "deep.png"):
        assert np.array_equal(read_image(tmp_path / name), deep)
    many = rng.random((5, 6, 7), dtype=np.float32)
    tifffile.imwrite(tmp_path / "many.tif", np.moveaxis(many, 2, 0), metadata={"axes": "CYX"}, photometric="minisblack")
    assert np.array_equal(read_image(tmp_path / "many.tif"), many)
    rgba = rng.integers(0, 255, (5, 6, 4), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "rgba.tif", rgba, photometric="rgb", extrasamples=["unassalpha"])
    assert np.array_equal(read_image(tmp_path / "rgba.tif"), rgba[..., :3])
    (tmp_path / "broken.tif").write_bytes(b"II*\0nothing")
    with pytest.raises(pt.PotentiaError, match=r"broken\.tif: this is not a readable TIFF file"):
        read_image(tmp_path / "broken.tif")


def test_colours_of_sixteen_bits_in_png_are_refused(tmp_path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)
    raw = bytearray(path.read_bytes())
    raw[24] = 16
    assert raw[25] == 2
    path.write_bytes(raw)
    # its checksum no longer fits, so that either sentence names the file
    with pytest.raises(pt.PotentiaError, match=r"deep\.png"):
        read_image(path)


def test_pages_are_images_or_a_volume(tmp_path):
    stack = np.arange(3 * 4 * 5, dtype=np.uint16).reshape(3, 4, 5)
    tifffile.imwrite(tmp_path / "s.tif", stack, photometric="minisblack")
    assert n_pages(tmp_path / "s.tif") == 3
    files = image_files(tmp_path)
    assert [f.name for f in files] == ["s_000", "s_001", "s_002"]
    assert np.array_equal(read_image(files[1]), stack[1])
    (file,) = image_files(tmp_path, "volumes")
    assert np.array_equal(read_image(file), stack)
    write_tiff(tmp_path / "w.tif", stack)
    assert np.array_equal(read_tiff(tmp_path / "w.tif"), stack)
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "flat.png")
    with pytest.raises(pt.PotentiaError, match="is not a TIFF file"):
        image_files(tmp_path, "volumes")


def test_a_page_and_another_image_of_its_name_are_refused(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((3, 4, 5), np.uint8), photometric="minisblack")
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "s_001.png")
    with pytest.raises(pt.PotentiaError, match=r"s_001\.png has the name of an image in .*s\.tif: rename one of them"):
        image_files(tmp_path)


OME = (
    '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0"><Pixels ID="P" '
    'DimensionOrder="XYZCT" Type="uint8" SizeX="5" SizeY="4" SizeZ="1000" SizeC="1" SizeT="1000000000"><TiffData/>'
    "</Pixels></Image></OME>"
)


@pytest.mark.parametrize(("name", "text"), [("s.ome.tif", OME), ("s.tif", '{"shape": [1000000000000, 4, 5]}')])
def test_files_that_claim_more_images_than_they_can_hold_are_refused(name, text, tmp_path):
    """Of a billion pages a list alone would take all memory."""
    tifffile.imwrite(tmp_path / name, np.zeros((4, 5), np.uint8), description=text, metadata=None)
    with pytest.raises(pt.PotentiaError, match="says that it has 1000000000000 images, more than its size allows"):
        image_files(tmp_path)
    with pytest.raises(pt.PotentiaError, match=r"more than its size allows|GB of memory"):
        read_tiff(tmp_path / name)


def test_masks_are_found_by_their_endings_and_beside_their_images(tmp_path):
    for name in ("a.png", "a_mask.png", "b.jpg", "b_labels.png", "c.png", "c-mask.png"):
        Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / name)
    pairs = [(image.path.name, mask.path.name) for image, mask in paired_files(tmp_path, tmp_path)]
    assert pairs == [("a.png", "a_mask.png"), ("b.jpg", "b_labels.png"), ("c.png", "c-mask.png")]
    assert [f.name for f in image_files(tmp_path)] == ["a", "b", "c"]
    (one,) = paired_files(tmp_path / "a.png", tmp_path / "c-mask.png")
    assert one[1].path.name == "c-mask.png"
    with pytest.raises(pt.PotentiaError, match="is one mask"):
        paired_files(tmp_path, tmp_path / "a_mask.png")
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "a_labels.png")
    with pytest.raises(pt.PotentiaError, match="has two masks"):
        paired_files(tmp_path / "a.png", tmp_path)


def test_stacks_of_masks_must_have_as_many_pages(tmp_path):
    own = tmp_path / "images", tmp_path / "masks"
    for folder, n in zip(own, (3, 2), strict=True):
        folder.mkdir()
        tifffile.imwrite(folder / "s.tif", np.zeros((n, 4, 5), np.uint8), photometric="minisblack")
    with pytest.raises(pt.PotentiaError, match="has 2 pages, but its image"):
        paired_files(*own)


def test_rare_values_are_questioned(tmp_path):
    codes = np.zeros((40, 40), dtype=np.int32)
    codes[10:30, 10:30] = 255
    codes[10, 10:30] = 128  # an edge that was smoothed
    mask = Mask(codes, False, None)
    with pytest.raises(pt.PotentiaError, match="have 128 in a few pixels only"):
        find_classes([mask, Mask(np.where(codes == 128, 0, codes).repeat(3, 0), False, None)], None, None)
    several = [mask, Mask(np.where(codes == 128, 0, codes).repeat(3, 0), False, None)]
    assert find_classes(several, None, None, "keep").codes == [0, 128, 255]
    void = find_classes(several, None, None, "void")
    assert (void.codes, void.void) == ([0, 255], [128])
    near = find_classes(several, None, None, "nearest")
    assert near.labels(mask, tmp_path)[10, 15] == 1
    assert near.labels(mask, tmp_path)[20, 20] == 1
    assert find_classes([Mask(np.array([[3, 9], [255, 3]]), False, None)], None, "255").codes == [3, 9]


def test_intensities_are_normalised_by_type_set_or_image():
    deep = [np.random.default_rng(k).integers(2000, 2221, (30, 30), dtype=np.uint16) for k in range(3)]
    by_set = learn_intensity(deep, 2, None)
    assert by_set.how == "set"
    seen = by_set.apply(deep[0])
    assert seen.dtype == np.float32
    assert seen.shape == (30, 30, 1)
    assert len(np.unique(seen)) == len(np.unique(deep[0]))
    assert abs(seen.min()) < 0.05
    assert abs(seen.max() - 1) < 0.05
    small = deep[0].astype(np.uint8)
    assert learn_intensity([small], 2, None).how == "type"
    assert np.allclose(learn_intensity([small], 2, None).apply(small)[..., 0], small / 255)
    own = learn_intensity(deep, 2, "image")
    assert np.allclose(own.apply(deep[0]), own.apply(deep[0] * 3), atol=1e-5)
    mixed = learn_intensity([small, np.repeat(small[..., None], 3, axis=2)], 2, None)
    assert mixed.apply(small).shape == (30, 30, 3)
    with pytest.raises(pt.PotentiaError, match="2, 3 channels"):
        learn_intensity([np.zeros((4, 4, 2)), np.zeros((4, 4, 3))], 2, None)
    with pytest.raises(pt.PotentiaError, match="channels of the image is 2, but the model was trained on 3"):
        mixed.apply(np.zeros((4, 4, 2), np.uint8))


@pytest.mark.parametrize(
    ("trained_on", "given", "taken"),
    [
        ("uint8", "uint8", True),
        ("uint8", "int64", True),
        ("uint8", "int16", True),
        ("uint8", "bool", True),
        ("uint8", "uint16", False),
        ("uint8", "float64", False),
        ("uint8", "int8", False),
        ("uint16", "int32", True),
        ("uint16", "uint8", False),
        ("float32", "float64", True),
        ("float32", "uint8", False),
    ],
)
def test_images_have_the_number_type_of_training(trained_on, given, taken):
    values = np.random.default_rng(0).integers(0, 2 if given == "bool" else 100, (6, 6))
    learned = learn_intensity([np.arange(36).reshape(6, 6).astype(trained_on)], 2, None)
    image = values.astype(given)
    if taken:
        scale = 255 if given == "bool" else 1
        assert np.allclose(learned.apply(image), learned.apply((values * scale).astype(trained_on)))
    else:
        kind = "float" if given == "float64" else given
        with pytest.raises(pt.PotentiaError, match=f"type {kind}, but the model was trained on"):
            learned.apply(image)
    if given == "int64":
        with pytest.raises(pt.PotentiaError, match="type int64"):
            learned.apply(image + 200)
    assert learn_intensity([image], 2, "image").types is None


def test_mixed_number_types_are_refused_unless_comparable():
    small = np.arange(36, dtype=np.uint8).reshape(6, 6)
    deep = small.astype(np.uint16) * 257
    with pytest.raises(pt.PotentiaError, match=r"b\.tif holds numbers of type uint16, but a\.png uint8"):
        learn_intensity([small, deep], 2, None, ["a.png", "b.tif"])
    with pytest.raises(pt.PotentiaError, match="type float"):
        learn_intensity([small, small / 255], 2, "type")
    by_type = learn_intensity([small, deep], 2, "type")
    assert np.allclose(by_type.apply(small), by_type.apply(deep))
    learn_intensity([small, deep, small / 255], 2, "image").apply(deep)
    assert learn_intensity([small, small > 3], 2, None).types == ["uint8"]


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_refused_in_one_sentence(tmp_path):
    huge = np.full((4, 4), 1e308)
    with pytest.raises(pt.PotentiaError, match=r"image 0: an image holds finite real numbers below 3\.4e\+38"):
        learn_intensity([huge], 2, None)
    with pytest.raises(pt.PotentiaError, match="finite numbers below"):
        learn_intensity([np.eye(4)], 2, "image").apply(huge)
    with pytest.raises(pt.PotentiaError, match=r"Give missing pixels a number, and in the mask a void value\."):
        learn_intensity([np.where(np.eye(4), np.nan, 1.0)], 2, None)
    np.save(tmp_path / "a.npy", huge)
    with pytest.raises(pt.PotentiaError, match="too large for float32"):
        read_given(ImageFile("a", tmp_path / "a.npy"), (4, 4))


def test_a_saved_pipeline_refuses_files_of_another_number_type(trained, tmp_path):
    folder, pipeline, _ = trained
    pipeline.save(tmp_path / "model")
    found = pt.load(tmp_path / "model")
    assert found.intensity.types == ["uint8"]
    image = read_image(folder / "images" / "a0.png")
    assert np.array_equal(found.predict(image.astype(int)), pipeline.predict(image))
    (tmp_path / "new").mkdir()
    tifffile.imwrite(tmp_path / "new" / "b.tif", image.astype(np.uint16), photometric="minisblack")
    with pytest.raises(pt.PotentiaError, match=r"b\.tif: the image holds numbers of type uint16"):
        found.predict_files(tmp_path / "new", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- windows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(7, 9), (30, 50), (6, 20, 11)])
def test_tiles_cover_an_image_once_and_blending_keeps_what_is_smooth(size):
    count = np.zeros(size, dtype=int)
    for tile in pixels.tiles(pixels.whole(size), 8):
        count[tile] += 1
        assert max(pixels.window_size(tile)) <= 8
    assert (count == 1).all()
    values = np.random.default_rng(0).random((*size, 2)).astype(np.float32)
    assert np.allclose(pixels.blend(size, 8, 2, lambda window: values[window]), values, atol=1e-6)


def test_drawn_windows_lie_inside_and_hold_something_known():
    rng = np.random.default_rng(0)
    known = np.zeros((40, 50), dtype=bool)
    known[33, 2] = True
    outer = (slice(10, 50), slice(5, 55))
    for _ in range(20):
        window = pixels.draw_window(outer, 100, known, rng)
        assert np.prod(pixels.window_size(window)) <= 150
        place = pixels.inside(window, outer)
        assert known[place].any()
    assert pixels.draw_window(outer, 10**6, known, rng) == outer


def write_deep_png(path, values):
    """A PNG file of 16 bits, rows filtered by turns by nothing and by the pixel to the left."""
    height, width, channels = values.shape
    rows = values.astype(">u2").reshape(height, -1).view(np.uint8)
    lines = []
    for k, row in enumerate(rows):
        left = np.concatenate([np.zeros(2 * channels, np.uint8), row[: -2 * channels]])
        lines.append(bytes([k % 2]) + (row - left * (k % 2)).astype(np.uint8).tobytes())
    kind = {2: 4, 3: 2, 4: 6}[channels]
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(lines))),
        (b"IEND", b""),
    )
    chunks = [
        struct.pack(">I", len(own)) + name + own + struct.pack(">I", zlib.crc32(name + own)) for name, own in parts
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_png_of_sixteen_bits_is_read_without_loss(tmp_path, channels):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7, channels)).astype(np.uint16)
    write_deep_png(tmp_path / "a.png", values)
    found = read_image(tmp_path / "a.png")
    assert found.dtype == np.uint16
    assert np.array_equal(found, values[..., 0] if channels == 2 else values[..., :3])


# -- training ----------------------------------------------------------------------------------------------------


def test_defaults_learn_blobs_and_are_saved_whole(trained, tmp_path):
    folder, pipeline, facts = trained
    assert facts["cross_fitted_accuracy"] > 0.9
    assert pipeline.pixels is not None
    pipeline.save(tmp_path / "model")
    found = pt.load(tmp_path / "model")
    image, mask = blobs((26, 33), 99)
    photo = np.clip(80 + 90 * image, 0, 255).astype(np.uint8)
    assert np.array_equal(found.predict_marginals(photo), pipeline.predict_marginals(photo))
    assert np.mean(found.predict(photo) == mask) > 0.9
    scores = found.evaluate_files(folder / "images", masks=folder / "masks")
    assert scores["mean_iou"] > 0.8
    assert 0 <= scores["calibration_error"] < 0.3
    assert len(scores["images"]) == 4


def test_pairs_are_trained_on_predictions_of_models_that_did_not_see_them():
    rng = np.random.default_rng(0)
    places = np.zeros((200, 2), dtype=np.int32)
    samples = [Sample(rng.normal(size=(200, 5)).astype(np.float32), rng.integers(0, 2, 200), places) for _ in range(5)]
    made = cross_fit(lambda: pt.Boosting(rounds=30, subsample=None), samples, 2)
    assert sorted(np.bincount(made.folds)) == [1, 1, 1, 2]
    own = [made.final.loss(s.x, s.labels) / 200 for s in samples]
    unseen = [made.unseen(k).loss(s.x, s.labels) / 200 for k, s in enumerate(samples)]
    assert np.mean(own) < 0.6 < np.log(2) - 0.05 < np.mean(unseen)
    assert made.stages == 1  # the loss of noise does not fall


def test_position_is_used_where_it_helps():
    rng = np.random.default_rng(0)

    def sample(by_position):
        x = rng.random((300, 4)).astype(np.float32)
        places = np.zeros((300, 2), dtype=np.int32)
        return Sample(x, (x[:, 3 if by_position else 0] > 0.5).astype(int), places)

    for helps in (True, False):
        kinds = np.array(["pixel", "pixel", "position", "position"])
        made = cross_fit(
            lambda: pt.Linear(), [sample(helps) for _ in range(4)], 2, kinds=kinds, optional={"position": None}
        )
        assert made.used["position"] == helps or not helps
        assert (made.tried["position"][True] < made.tried["position"][False] - 0.1) == helps
        assert made.final.n_features_ == (4 if made.used["position"] else 2)


def test_context_is_what_a_classifier_says_around_a_pixel():
    rng = np.random.default_rng(0)
    size = 45, 62
    soft = rng.random((*pixels.coarse_size(size), 2)).astype(np.float32)
    found = pixels.Context(soft)
    places = pixels.places_in((slice(8, 20), slice(40, 44)))
    assert places.tolist() == [[r, c] for r in range(8, 20) for c in range(40, 44)]
    x = found.at(places)
    assert x.shape == (48, found.n_features) == (48, 20)
    # at a pixel of the coarse grid, the average itself; 16 pixels above it, that of row -8: the border's
    smooth = ndimage.gaussian_filter(soft, (2.0, 2.0, 0.0), mode="nearest")
    assert np.allclose(x[0, :2], smooth[2, 10], atol=1e-6)
    assert np.allclose(x[0, 2:4], smooth[0, 10], atol=1e-6)
    assert np.allclose(x[2, :2], (smooth[2, 10] + smooth[2, 11]) / 2, atol=1e-6)
    # every pixel of the coarse grid is in exactly one tile, at its own place
    count = np.zeros(soft.shape[:2], dtype=int)
    rows, columns = np.indices(size)
    for tile in pixels.tiles(pixels.whole(size), 11):
        inner, outer = pixels.coarse_window(tile)
        count[outer] += 1
        assert np.array_equal(rows[tile][inner], 4 * np.indices(soft.shape[:2])[0][outer])
        assert np.array_equal(columns[tile][inner], 4 * np.indices(soft.shape[:2])[1][outer])
    assert (count == 1).all()


@pytest.mark.parametrize(("n", "smooth"), [(1, True), (4, True), (4, False)])
def test_context_is_used_where_it_helps(tmp_path, n, smooth):
    """A given feature says little of a pixel; its surroundings tell more only where labels are smooth."""
    rng = np.random.default_rng(0)
    for part in ("images", "masks", "features"):
        (tmp_path / part).mkdir()
    for k in range(n):
        mask = np.zeros((64, 64), dtype=np.uint8)
        mask[:, 20 + 5 * k :] = 1
        if not smooth:
            mask = rng.permuted(mask.ravel()).reshape(mask.shape)
        Image.fromarray(np.full(mask.shape, 9, dtype=np.uint8)).save(tmp_path / "images" / f"{k}.png")
        Image.fromarray(mask).save(tmp_path / "masks" / f"{k}.png")
        np.save(tmp_path / "features" / f"{k}.npy", mask[..., None] + rng.normal(size=(*mask.shape, 1)))
    options = {"features": tmp_path / "features", "feature_set": "given", "position": "no", "node": "linear"}
    said = []
    pipeline, facts = images.train(
        tmp_path / "images",
        tmp_path / "masks",
        **options,
        iterations=1,
        pixels=4000,
        rare="keep",
        run=Run(say=said.append),
    )
    chosen = "with" if smooth else "without"
    assert any(f"classified {chosen} the predictions around them" in line for line in said), said
    assert facts["pixel_features"] == (21 if smooth else 1)
    pipeline.save(tmp_path / "model")
    photo, beside = read_image(tmp_path / "images" / "0.png"), np.load(tmp_path / "features" / "0.npy")
    found = pipeline.predict_marginals(photo, beside)
    assert np.array_equal(pt.load(tmp_path / "model").predict_marginals(photo, beside), found)


def test_tiled_predictions_equal_whole_ones(trained, monkeypatch):
    _, pipeline, _ = trained
    image, _ = blobs((150, 170), 7)
    photo = np.clip(80 + 90 * image, 0, 255).astype(np.uint8)
    whole = pipeline.predict_marginals(photo)
    monkeypatch.setattr(image_pipeline, "_MOST_ENTRIES", 8 * 100 * 100)
    assert pipeline.tile_side() == 100
    tiled = pipeline.predict_marginals(photo)
    assert np.abs(tiled - whole).mean() < 1e-3
    assert np.mean(tiled.argmax(-1) != whole.argmax(-1)) < 2e-3
    assert np.allclose(tiled.sum(axis=-1), 1.0, atol=1e-5)


def test_sixteen_bit_stacks_and_one_image_are_enough(tmp_path):
    stacks = tmp_path / "a.tif", tmp_path / "m.tif"
    made = [blobs((30, 40), k) for k in range(2)]
    tifffile.imwrite(
        stacks[0], np.stack([2000 + 100 * image for image, _ in made]).astype(np.uint16), photometric="minisblack"
    )
    tifffile.imwrite(stacks[1], np.stack([mask for _, mask in made]).astype(np.uint8), photometric="minisblack")
    pipeline, facts = images.train(*stacks, node="linear", pixels=2000)
    assert facts["n_images"] == 2
    assert pipeline.intensity.how == "set"
    assert facts["cross_fitted_accuracy"] > 0.9
    facts = pipeline.predict_files(stacks[0], tmp_path / "out")
    assert np.mean(read_mask(tmp_path / "out" / "labels" / "a_001.png").codes == made[1][1]) > 0.9


def test_volumes_are_labelled_as_volumes(tmp_path):
    own = write_set(tmp_path, n=2, shape=(8, 16, 18), kind="uint16", suffix="tif")
    pipeline, facts = images.train(*own, stacks="volumes", pixels=2000, node="linear")
    assert facts["cross_fitted_accuracy"] > 0.85
    pipeline.save(tmp_path / "model")
    found = pt.load(tmp_path / "model")
    found.predict_files(own[0], tmp_path / "out", marginals="npz")
    written = read_mask(tmp_path / "out" / "labels" / "a0.tif").codes
    assert written.shape == (8, 16, 18)
    assert np.mean(written == read_mask(own[1] / "a0.tif").codes) > 0.85
    assert found.evaluate_files(own[0], masks=own[1])["mean_iou"] > 0.7
    with pytest.raises(pt.PotentiaError, match="stacks volumes"):
        images.train(*own, stacks="volumes", reduce=0.5)


def test_own_features_and_probabilities(tmp_path, capsys):
    own = write_set(tmp_path)
    for part in ("features", "soft"):
        (tmp_path / part).mkdir()
    rng = np.random.default_rng(0)
    for k in range(4):
        mask = read_mask(own[1] / f"a{k}_mask.png").codes
        np.save(tmp_path / "features" / f"a{k}.npy", mask + 0.01 * rng.normal(size=mask.shape))
        soft = np.clip(0.5 + 0.2 * (2 * mask - 1) + 0.2 * rng.normal(size=mask.shape), 0.01, 0.99)
        np.savez(tmp_path / "soft" / f"a{k}.npz", probabilities=np.stack([1 - soft, soft]))
    line = f"--images {own[0]} --masks {own[1]} --features {tmp_path / 'features'}"
    model = str(tmp_path / "model")
    assert main(f"train {line} --node linear --feature-set given --out {model} --quiet".split()) == 0
    assert pt.load(model).pixels.rows.given == 1
    assert main(f"evaluate {model} --images {own[0]} --masks {own[1]}".split()) == 2
    assert "trained with --features" in capsys.readouterr().err
    assert main(f"evaluate {model} {line} --json".split()) == 0
    assert '"accuracy": 1.0' in capsys.readouterr().out
    line = f"--images {own[0]} --masks {own[1]} --probabilities {tmp_path / 'soft'}"
    assert main(f"train {line} --out {model} --quiet".split()) == 0
    refined = pt.load(model)
    assert refined.pixels is None
    raw, better = [], []
    for k in range(4):
        soft = read_given(ImageFile(f"a{k}", tmp_path / "soft" / f"a{k}.npz"), (24, 30))
        mask = read_mask(own[1] / f"a{k}_mask.png").codes
        image = read_image(own[0] / f"a{k}.png")
        raw.append(np.mean(soft.argmax(-1) == mask))
        better.append(np.mean(refined.predict(image, probabilities=soft) == mask))
    assert np.mean(better) > np.mean(raw) + 0.05
    (tmp_path / "soft" / "a2.npz").unlink()
    assert main(f"train {line} --out {model} --quiet".split()) == 2
    assert "a2.png has no array" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((5, 5, 2)), r"shape \(5, 5, 2\), but its image needs \(4, 5, n\)"),
        (np.full((4, 5), np.nan), "not finite"),
        (np.zeros((4, 5), complex), "complex"),
    ],
)
def test_wrong_arrays_are_one_sentence(values, message, tmp_path):
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(pt.PotentiaError, match=message):
        read_given(ImageFile("a", tmp_path / "a.npy"), (4, 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0"),
        ({"epsilon": 1.0, "learner": "margin"}, "--epsilon cannot be combined with --learner margin"),
        ({"inference": "bp"}, "--inference cannot be combined with --learner ilr"),
        ({"class_weight": "1,2,3"}, "2 numbers above zero"),
        ({"feature_set": "given"}, "--features, which is missing"),
        ({"feature_set": "papers", "features": "x"}, "papers cannot be combined with --features"),
        ({"stacks": "movies"}, "stacks must be one of"),
        ({"feature_set": "raw"}, "feature_set must be one of 'filters', 'papers', 'given' or None, not 'raw'"),
        ({"learner": "svm"}, "learner must be one of"),
        ({"learner": None}, "learner must be one of"),
        ({"position": True}, "position must be one of"),
        ({"normalise": "z"}, "normalise must be one of"),
        ({"rare": "drop"}, "rare must be one of"),
        ({"learner": "marginal", "inference": "gibbs"}, "inference must be one of"),
        ({"iterations": 0}, "iterations must be"),
        ({"superpixels": 2.5}, "superpixels must be"),
        ({"pixels": -1}, "pixels must be"),
        ({"reduce": 0.0}, "reduce must be"),
        ({"reduce": 2.0}, "reduce must be .* at most 1"),
        ({"seed": -1}, "seed must be"),
        ({"search": "yes"}, "search must be"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(options, message, trained):
    folder, _, _ = trained
    with pytest.raises(pt.PotentiaError, match=message):
        images.train(folder / "images", folder / "masks", **options)


def test_class_weights_move_the_balance(trained):
    folder, _, _ = trained
    own = folder / "images", folder / "masks"
    shares = []
    for weight in ("1,8", "8,1"):
        pipeline, _ = images.train(*own, node="constant", edge="constant", pixels=1000, class_weight=weight)
        shares.append(pipeline.predict_marginals(read_image(own[0] / "a0.png"))[..., 1].mean())
    assert shares[0] > shares[1] + 0.01


def test_marginal_learner_trains_pairs_with_any_inference(trained):
    folder, _, _ = trained
    pipeline, facts = images.train(
        folder / "images", folder / "masks", learner="marginal", inference="mean-field", node="linear",
        pixels=800, iterations=3,
    )  # fmt: skip
    assert isinstance(pipeline.model.inference_, pt.MeanField)
    assert facts["cross_fitted_accuracy"] > 0.8


def test_the_estimate_is_said_before_work_starts(trained):
    folder, _, _ = trained
    said = []
    images.train(folder / "images", folder / "masks", node="constant", pixels=500, reduce=0.8, run=Run(say=said.append))
    assert "4 images of up to 24 x 19, 2 classes: about" in said[0]
    assert "GB of memory" in said[0]
    assert "--reduce 0.56 on half-size images" in said[0]
    assert "position" in said[1]
    assert image_stages.n_drawn(500, 2) == (500, 500)


def test_the_estimate_is_near_the_memory_that_potts_pairs_of_many_classes_take(tmp_path, trained):
    shape, n_states, rng = (48, 48), 24, np.random.default_rng(0)
    own = write_set(tmp_path, shape=shape)
    (tmp_path / "soft").mkdir()
    for k in range(4):
        classes = np.kron(rng.integers(0, n_states, (6, 6)), np.ones((8, 8), dtype=int)).astype(np.uint8)
        Image.fromarray(classes).save(own[1] / f"a{k}_mask.png")
        np.save(tmp_path / "soft" / f"a{k}.npy", rng.dirichlet(np.ones(n_states), shape))
    options = {"probabilities": tmp_path / "soft", "edge": "potts", "pixels": 9216, "iterations": 1}
    tracemalloc.start()
    try:
        images.train(*own, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    paired = image_stages.estimate_bytes([shape] * 4, None, 0, [48 * 48] * 4, n_states, by_weight=True) - 3e8
    assert 0.9 * peak < paired < 1.8 * peak


def test_the_estimate_counts_tables_of_one_part_at_a_time():
    one, many = (image_stages.estimate_bytes([(64, 64)], None, 0, [4096] * n, 60) for n in (10, 20))
    assert many < 1.2 * one
    assert image_stages.estimate_bytes([(64, 64)], None, 0, [40960], 60) > 5 * one


def test_a_report_shows_the_run_of_training_and_of_evaluation(trained, tmp_path, monkeypatch, capsys):
    folder, _, _ = trained
    monkeypatch.chdir(tmp_path)
    line = f"--images {folder / 'images'} --masks {folder / 'masks'}"
    assert main(f"train {line} --node linear --pixels 800 --out model --quiet".split()) == 0
    assert main(f"evaluate model {line} --json".split()) == 0
    scores = json.loads(capsys.readouterr().out)
    assert "shown" not in scores
    assert {"mean_iou", "mean_f1", "mean_boundary_f1", "calibration_error", "reliability"} <= set(scores)
    assert main(f"evaluate model {line}".split()) == 0
    assert f"{scores['reliability'][0]['confidence']:.4f}  " in capsys.readouterr().out.replace("│", " ")
    assert main(["report", "model", "--json"]) == 0
    page = (tmp_path / "model.runs" / "report.html").read_text()
    assert f"numpy {np.__version__}" in page
    for part in ("Learning curves", "Classes", "Confusion", "Calibration", "Images", "boundary F1", "overlay"):
        assert part in page
    worst = max(scores["images"], key=lambda image: image["error"])
    assert f'"name": "{worst["name"]}"' in page
    assert f"pixels wrong ({worst['error']:.2%})" in page
    assert main(f"train {line} --node linear --pixels 800 --out model --quiet".split()) == 0
    assert len((tmp_path / "model.runs" / "rows.jsonl").read_text().splitlines()) == 1


def test_search_says_what_it_chose_within_its_budget(trained):
    folder, _, _ = trained
    own, said = (folder / "images", folder / "masks"), []
    pipeline, facts = images.train(*own, pixels=600, search=True, budget=1e-6, run=Run(say=said.append))
    assert facts["chosen"] == "--learner ilr, --edge potts, --epsilon 1.0"
    assert "others did not fit in the budget" in said[-1]
    assert sum("--node" in line for line in said) == len(tried_functions())
    assert 0 <= facts["search_error"] < 0.2
    assert pipeline.predict(read_image(own[0] / "a0.png")).shape == (24, 30)
    with pytest.raises(pt.PotentiaError, match="--search chooses functions itself"):
        images.train(*own, search=True, node="linear")


def test_a_first_model_is_kept_where_there_is_no_time_for_another(trained, tmp_path, capsys):
    folder, _, _ = trained
    own, said, kept = (folder / "images", folder / "masks"), [], []
    pipeline, facts = images.train(*own, minutes=1e-6, run=Run(say=said.append, keep=kept.append))
    assert kept == [pipeline]
    assert facts["cross_fitted_accuracy"] > 0.9
    assert said[-1] == "the time is over, so the first model is kept."
    line = f"train --images {own[0]} --masks {own[1]} --minutes 1 --node linear --out {tmp_path / 'model'}"
    assert main(line.split()) == 0
    assert "a first model is in" in capsys.readouterr().err
    with pytest.raises(pt.PotentiaError, match="minutes must be"):
        images.train(*own, minutes=0.0)


def test_the_microscopy_example_runs(tmp_path, capsys):
    path = Path(__file__).parents[2] / "examples" / "segment_microscopy.py"
    example = runpy.run_path(str(path))
    example["make_cells"](tmp_path / "cells", n=5, side=48)
    line = f"--images {tmp_path / 'cells' / 'images'} --masks {tmp_path / 'cells' / 'masks'} --pixels 3000"
    assert example["main"]([*line.split(), "--out", str(tmp_path / "results")]) > 0.6
    assert (tmp_path / "results" / "predicted" / "overlays" / "04.png").exists()
    assert "mean iou" in capsys.readouterr().out

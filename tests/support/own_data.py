"""Small files such as users have: images with masks, a table with labels, tokens in columns."""

import csv

import numpy as np


def make_images(folder, n=3, palette=None, values=(0, 7), void=None):
    """photos/ and masks/: a bright part and a dark one, of different sizes, PNG and JPEG in turn."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "photos").mkdir()
    (folder / "masks").mkdir()
    for i in range(n):
        bright = np.add.outer(np.arange(6 + i), np.arange(9 - i)) > 6
        photo = np.clip(rng.normal(60 + 130 * bright[..., None], 20, size=(*bright.shape, 3)), 0, 255)
        Image.fromarray(photo.astype(np.uint8)).save(folder / "photos" / f"p{i}.{('png', 'jpg')[i % 2]}")
        mask = np.where(bright, values[1], values[0]).astype(np.uint8)
        if void is not None:
            mask[0, 0] = void
        loaded = Image.fromarray(mask)
        if palette is not None:
            loaded.putpalette(palette)
        loaded.save(folder / "masks" / f"p{i}.png")


def make_table(path, n=40):
    """Columns size (one value missing) and colour, and the labels a, b (yes or no) and c that follow from them."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "colour", "a", "b", "c"])
        for i in range(n):
            size, colour = rng.normal(), rng.choice(["red", "green"])
            a, b = size > 0, colour == "red"
            writer.writerow(["" if i == 5 else f"{size:.3f}", colour, int(a), "yes" if b else "no", int(a and b)])


def make_sequences(path, n=8):
    """Words, tags and chunk labels."""
    rng = np.random.default_rng(0)
    words = {"DT": ["the", "a"], "NN": ["cat", "dog", "Paris"], "VB": ["runs", "sees"]}
    labels = {"DT": "B-NP", "NN": "I-NP", "VB": "O"}
    sentences = [
        "".join(f"{rng.choice(words[tag])}\t{tag}\t{labels[tag]}\n" for tag in ("DT", "NN", "VB", "DT", "NN"))
        for _ in range(n)
    ]
    path.write_text("\n".join(sentences))

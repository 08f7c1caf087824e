"""`potentia train | predict | evaluate` as a user meets them."""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import potentia as pt
from cli_examples import cli_examples
from own_data import make_images, make_sequences, make_table
from potentia.app.cli import _parser, main
from potentia.learn.checkpoint import Checkpoint

Image = pytest.importorskip("PIL.Image")
CHAIN = "MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 2 3 4\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the files that the printed examples name."""
    make_images(tmp_path)
    make_table(tmp_path / "data.csv")
    make_sequences(tmp_path / "train.tsv")
    make_sequences(tmp_path / "test.tsv", n=3)
    (tmp_path / "model.uai").write_text(CHAIN)
    (tmp_path / "model.uai.evid").write_text("1 0 0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(folder):
    """A table's model, which takes no time to train."""
    assert main(["train", "--table", "data.csv", "--labels", "a,b,c", "--out", "model", "--quiet"]) == 0
    return folder / "model"


def test_every_commands_help_has_an_example_that_its_parser_takes():
    for name, lines in cli_examples().items():
        assert lines, f"potentia {name} --help has no example"
        for line in lines:
            assert _parser().parse_args(shlex.split(line)[1:]).command


def test_an_option_that_is_a_flag_of_tables_and_a_folder_of_images(trained, capsys):
    line = ["predict", "model", "--table", "data.csv", "--out", "found.csv", "--quiet"]
    assert main([*line, "--probabilities", "--scores"]) == 0, capsys.readouterr().err
    names = (trained.parent / "found.csv").read_text().splitlines()[0].split(",")
    assert names[3:6] == ["a_probability", "b=yes_probability", "c_probability"]
    assert main([*line, "--probabilities", "yes"]) != 0
    assert "--probabilities takes no value with --table, but is followed by 'yes'." in capsys.readouterr().err
    assert main(["predict", "model", "--images", "photos", "--out", "found", "--probabilities"]) != 0
    assert "--probabilities needs a value with --images: folder of another" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["--images", "--table", "--sequences"])
def test_printed_examples_on_own_data_work_in_order(form, folder, capsys):
    examples = cli_examples()
    lines = [line for name in ("train", "predict", "evaluate") for line in examples[name] if form in line]
    assert len(lines) == 3
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    wanted = {
        "--images": ["accuracy", "recall", "IoU", "truth and"],
        "--table": ["exact match", "hamming loss", "f micro", "f macro", "f samples"],
        "--sequences": ["accuracy", "span f1"],
    }[form]
    assert all(word in shown for word in wanted)
    assert not list(folder.glob("*.checkpoint"))
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def test_printed_example_of_infer_works(folder):
    (line,) = cli_examples()["infer"]
    assert main(shlex.split(line)[1:]) == 0


def test_json_is_all_that_is_printed_and_quiet_prints_nothing(trained, capsys):
    assert main(["evaluate", "model", "--table", "data.csv", "--json"]) == 0
    shown = capsys.readouterr()
    assert set(json.loads(shown.out)) >= {"exact_match", "f_samples"}
    assert shown.err == ""
    assert main(["predict", "model", "--table", "data.csv", "--out", "p.csv", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


def test_equal_seeds_give_equal_models_whatever_the_threads(folder, capsys):
    found = []
    for threads, seed in (("1", "3"), ("2", "3"), ("2", "4")):
        line = "train --images photos --masks masks --node mlp --iterations 2 --validation 0.3 --out m --json"
        assert main([*line.split(), "--threads", threads, "--seed", seed]) == 0
        found.append(json.loads(capsys.readouterr().out)["objective"])
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0] != pytest.approx(found[2], rel=1e-9)
    assert "POTENTIA_THREADS" not in os.environ


def test_palette_names_classes(folder, capsys):
    (folder / "palette.csv").write_text("0,dark\n7,bright\n")
    line = "train --images photos --masks masks --palette palette.csv --node linear --iterations 1 --out m"
    assert main([*line.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["dark", "bright"]
    assert main(["evaluate", "m", "--images", "photos", "--masks", "masks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["class"] for row in found["classes"]] == ["dark", "bright"]
    assert np.sum(found["confusion"]) == sum(row["pixels"] for row in found["classes"])


# -- errors ----------------------------------------------------------------------------------------------------

IMAGES = "train --images photos --masks masks --iterations 1 --node linear --out m"


def remove_mask(folder):
    (folder / "masks" / "p1.png").unlink()


def wrong_size(folder):
    Image.fromarray(np.zeros((2, 3), dtype=np.uint8)).save(folder / "masks" / "p1.png")


def break_image(folder):
    path = folder / "photos" / "p1.jpg"
    path.write_bytes(path.read_bytes()[:200])


def text_as_image(folder):
    (folder / "photos" / "p1.jpg").write_text("no image")


def lossy_mask(folder):
    path = folder / "masks" / "p1.png"
    Image.open(path).save(folder / "masks" / "p1.jpg")
    path.unlink()


def same_name(folder):
    shutil.copy(folder / "photos" / "p0.png", folder / "photos" / "p1.png")


def empty_folder(folder):
    shutil.rmtree(folder / "photos")
    (folder / "photos").mkdir()


def all_void(folder):
    Image.fromarray(np.full((7, 8), 9, dtype=np.uint8)).save(folder / "masks" / "p1.png")


def no_change(folder):
    pass


def one_label(folder):
    (folder / "train.tsv").write_text("a\tx\tN\nb\tx\tN\n")


def lone_words(folder):
    (folder / "train.tsv").write_text("a\tx\tN\n\nb\tx\tM\n")


def huge_numbers(folder):
    (folder / "data.csv").write_text("size,a\n1e308,1\n-1e308,0\n1e308,1\n")


def empty_palette(folder):
    (folder / "palette.csv").write_text("")


def damaged_checkpoint(folder):
    (folder / "m.checkpoint").write_text("x")


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (remove_mask, IMAGES, "photos/p1.jpg has no mask masks/p1.png"),
        (wrong_size, IMAGES, "masks/p1.png: the mask is 3 x 2, but its image is 8 x 7"),
        (break_image, IMAGES, "photos/p1.jpg: this is not a readable image"),
        (text_as_image, IMAGES, "photos/p1.jpg: this is not a readable image"),
        (lossy_mask, IMAGES, "masks/p1.jpg: JPEG does not keep"),
        (same_name, IMAGES, "names must differ"),
        (empty_folder, IMAGES, "photos has no images"),
        (no_change, IMAGES.replace("photos", "nowhere"), "nowhere: there is no such folder"),
        (no_change, IMAGES.replace(" --masks masks", ""), "--images needs --masks"),
        (no_change, IMAGES + " --labels a", "--labels cannot be combined with --images"),
        (no_change, IMAGES + " --model lmsbn", "--model cannot be combined with --images"),
        (all_void, IMAGES + " --void 9", "masks/p1.png: every pixel is void"),
        (no_change, IMAGES + " --void 7", "1 class,"),
        (no_change, IMAGES + " --void x", "--void: 'x' is not a whole number"),
        (no_change, IMAGES + " --reduce 2", "reduce"),
        (no_change, IMAGES + " --reduce 0.5 --superpixels 9", "--superpixels or --reduce"),
        (no_change, IMAGES + " --validation 1.5", "between 0 and 1"),
        (no_change, IMAGES + " --palette nowhere.csv", "nowhere.csv"),
        (no_change, IMAGES + " --learner marginal --edge boosting", "cannot train --edge boosting"),
        (no_change, IMAGES.replace("--out m", "--out nowhere/m"), "nowhere/m cannot be written"),
        (no_change, IMAGES.replace("--out m", "--out photos"), "photos is"),
        (no_change, "train --table data.csv --out m", "--table needs --labels"),
        (no_change, "train --table data.csv --labels a,z --out m", "data.csv: there is no column 'z'"),
        (no_change, "train --table data.csv --labels size --out m", "data.csv: label 'size' takes 39 values"),
        (no_change, "train --table data.csv --labels a --out data.csv", "data.csv is the data itself"),
        (no_change, "train --table nowhere.csv --labels a --out m", "nowhere.csv: there is no such file"),
        (no_change, "train --table data.csv --labels a,b,a --out m", "--labels names 'a' twice"),
        (huge_numbers, "train --table data.csv --labels a --out m", "data.csv: column 'size' has numbers too large"),
        (no_change, "train --sequences nowhere.tsv --out m", "nowhere.tsv: there is no such file"),
        (one_label, "train --sequences train.tsv --out m", "train.tsv: the last column, which holds the labels, has"),
        (lone_words, "train --sequences train.tsv --out m", "each stands alone"),
        (no_change, IMAGES + " --reduce 0", "reduce must be a finite number above 0"),
        (no_change, IMAGES + " --reduce 0.01", "each stands alone"),
        (empty_palette, IMAGES + " --palette palette.csv", "palette.csv lists 0 classes"),
        (damaged_checkpoint, IMAGES, "delete it to start again"),
        (no_change, "train --sequences train.tsv --alpha 1 --out m", "--alpha cannot be combined with --sequences"),
        (no_change, "predict nowhere --table data.csv --out p.csv", "nowhere does not exist"),
        (no_change, "predict data.csv --table data.csv --out p.csv", "data.csv is damaged or not a potentia"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_nothing(change, line, words, folder, capsys):
    change(folder)
    before = sorted(folder.rglob("*"))
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("potentia: ")
    assert words in error
    assert error.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("seed", ["-1", "4294967296", "x"])
@pytest.mark.parametrize("command", ["train --table data.csv --labels a --out m", "demo --out m"])
def test_a_seed_is_a_whole_number(command, seed, folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*command.split(), "--seed", seed])
    assert "is not a whole number from 0 to 4294967295" in capsys.readouterr().err


def test_brackets_in_names_are_shown_as_they_are(folder, capsys):
    (folder / "[v2].tsv").write_text("a\t[/x]\nb\t[O]\n\na\t[/x]\nb\t[O]\n")
    assert main(["train", "--sequences", "[v2].tsv", "--out", "[b]m", "--iterations", "3"]) == 0
    shown = capsys.readouterr().out
    assert "trained on [v2].tsv" in shown
    assert "[/x], [O]" in shown
    assert "[b]m" in shown


def test_links_are_followed_and_devices_left_alone(trained, capsys):
    folder = trained.parent
    (folder / "real.csv").write_text("old")
    (folder / "link.csv").symlink_to("real.csv")
    (folder / "out").symlink_to("pipe")
    assert main(["predict", "model", "--table", "data.csv", "--out", "link.csv", "--quiet"]) == 0
    assert (folder / "link.csv").is_symlink()
    assert (folder / "real.csv").read_text().startswith("a,b,c\n")
    os.mkfifo(folder / "pipe")
    for name in ("out", "pipe"):
        assert main(f"predict model --table data.csv --out {name}".split()) == 2
        assert "no regular file" in capsys.readouterr().err
    assert (folder / "pipe").is_fifo()


def test_a_model_is_not_written_over(trained, capsys):
    before = trained.read_bytes()
    assert main(["predict", "model", "--table", "data.csv", "--out", "model"]) == 2
    assert "model is the model itself" in capsys.readouterr().err
    assert trained.read_bytes() == before


def test_masks_may_have_a_void_that_training_did_not(folder, capsys):
    from PIL import Image

    assert main(IMAGES.split()) == 0
    mask = np.array(Image.open(folder / "masks" / "p0.png"))
    mask[0, 0] = 99
    Image.fromarray(mask).save(folder / "masks" / "p0.png")
    line = "evaluate m --images photos --masks masks --json"
    capsys.readouterr()
    assert main(line.split()) == 2
    assert "the value 99 is not a class" in capsys.readouterr().err
    assert main([*line.split(), "--void", "99"]) == 0
    pixels = sum(row["pixels"] for row in json.loads(capsys.readouterr().out)["classes"])
    assert pixels == sum(np.array(Image.open(p)).size for p in (folder / "masks").iterdir()) - 1


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    code = "import sys; from potentia.app.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "infer", "model.uai", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as made:
        made.stdout.close()
        assert made.wait() == 141
        assert made.stderr.read() == b""


def test_wrong_data_for_a_model_is_one_sentence(folder, capsys):
    assert main(IMAGES.split()) == 0
    assert main(["train", "--sequences", "train.tsv", "--iterations", "2", "--out", "s"]) == 0
    assert main(["train", "--table", "data.csv", "--labels", "a,b,c", "--out", "t"]) == 0
    make_images(folder / "photos", values=(0, 8))  # photos/masks with a value that is not a class
    (folder / "odd.tsv").write_text((folder / "test.tsv").read_text().replace("O\n", "B-VP\n"))
    (folder / "narrow.tsv").write_text("word\n")
    (folder / "odd.csv").write_text((folder / "data.csv").read_text().replace(",no,", ",never,"))
    (folder / "less.csv").write_text("size\n1\n")
    capsys.readouterr()
    for line, words in [
        ("evaluate m --images photos --masks photos/masks", "photos/masks/p0.png: the value 8 is not a class"),
        ("evaluate m --images photos", "--masks"),
        ("evaluate m --table data.csv", "m was trained on --images, not on --table"),
        ("evaluate s --sequences odd.tsv", "odd.tsv: the label 'B-VP' did not occur"),
        ("predict s --sequences narrow.tsv --out p", "narrow.tsv has 1 columns"),
        ("evaluate t --table odd.csv", "odd.csv: label 'b' has the value 'never'"),
        ("predict t --table less.csv --out p", "less.csv: there is no column 'colour'"),
        ("predict t --table data.csv --out p --marginals npz", "--marginals cannot be combined with --table"),
    ]:
        assert main(line.split()) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert not (folder / "p").exists()
    assert main(["evaluate", "s", "--sequences", "odd.tsv", "--count-unknown", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] <= 0.8


def test_a_missing_extra_is_named(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    assert main([*IMAGES.split(), "--superpixels", "4"]) == 2
    assert "pip install potentia[images]" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (folder / "data.parquet").write_text("")
    assert main(["train", "--table", "data.parquet", "--labels", "a", "--out", "m"]) == 2
    assert "pip install potentia[parquet]" in capsys.readouterr().err


def test_a_truncated_model_is_one_sentence(trained, capsys):
    trained.write_bytes(trained.read_bytes()[:-50])
    assert main(["predict", "model", "--table", "data.csv", "--out", "p.csv"]) == 2
    assert "model is damaged" in capsys.readouterr().err
    assert not (trained.parent / "p.csv").exists()


@pytest.fixture
def full_disk():
    """No file may grow beyond so many bytes: writing more fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "line",
    [
        IMAGES,
        "train --table data.csv --labels a,b,c --out m",
        "predict images --images photos --out p --marginals npz",
        "predict table --table data.csv --out p",
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(line, folder, full_disk, capsys):
    # also so that no compiled kernel has to be written to its cache later
    assert main(IMAGES.replace("--out m", "--out images").split()) == 0
    assert main(["train", "--table", "data.csv", "--labels", "a,b,c", "--out", "table"]) == 0
    capsys.readouterr()
    before = sorted(folder.rglob("*"))
    full_disk(100)
    code = main([*line.split(), "--quiet"])
    full_disk(resource.RLIM_INFINITY)
    error = capsys.readouterr().err
    assert code == 2, error
    assert "cannot be written" in error
    assert error.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


# -- interruptions ---------------------------------------------------------------------------------------------

LONG = "train --images photos --masks masks --node mlp --edge linear --out m --json"


def interrupt_after(monkeypatch, n, iterations=True, pixels=False):
    """Ctrl-C right after the n-th iteration's checkpoint, or that of the n-th classifier of pixels."""
    count = iter(range(1, 1000))

    def interrupting(method):
        def call(self, state, *options):
            method(self, state, *options)
            if pixels == (self.path.suffix == ".pixels") and next(count) == n:
                raise KeyboardInterrupt

        return call

    # fits hand their state over by `keep` after every iteration, label by label ones write it by `save`
    name = "keep" if iterations else "save"
    monkeypatch.setattr(Checkpoint, name, interrupting(getattr(Checkpoint, name)))


def test_an_interrupted_run_goes_on_to_the_same_model(folder, monkeypatch, capsys):
    assert main([*LONG.split(), "--iterations", "4"]) == 0
    whole = json.loads(capsys.readouterr().out)
    marginals = pt.load("m").predict_marginals(np.asarray(Image.open("photos/p0.png")))
    (folder / "m").unlink()
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert main([*LONG.split(), "--iterations", "4"]) == 130
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert "m.checkpoint keeps the progress" in shown.err.splitlines()[-1]
    assert (folder / "m.checkpoint").exists()
    assert not (folder / "m").exists()
    # another run does not take it up by mistake, whatever differs
    for other in ("--seed 1", "--reduce 0.5", "--edge constant"):
        assert main([*LONG.split(), "--iterations", "4", *other.split()]) == 2
        assert "m.checkpoint belongs to a run with other options or data" in capsys.readouterr().err
    assert main([*LONG.split(), "--iterations", "4"]) == 0
    shown = capsys.readouterr()
    assert "resuming after iteration 2" in shown.err
    assert json.loads(shown.out)["objective"] == whole["objective"]
    assert np.array_equal(pt.load("m").predict_marginals(np.asarray(Image.open("photos/p0.png"))), marginals)
    assert not (folder / "m.checkpoint").exists()


def test_a_run_interrupted_among_classifiers_of_pixels_says_what_is_kept(folder, monkeypatch, capsys):
    assert main([*LONG.split(), "--iterations", "2"]) == 0
    whole = json.loads(capsys.readouterr().out)
    (folder / "m").unlink()
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2, pixels=True)
        assert main([*LONG.split(), "--iterations", "2"]) == 130
    assert "m.checkpoint.pixels keeps the progress" in capsys.readouterr().err.splitlines()[-1]
    assert main([*LONG.split(), "--iterations", "2"]) == 0
    shown = capsys.readouterr()
    assert "resuming after 2 fits of pixels" in shown.err
    assert json.loads(shown.out)["objective"] == whole["objective"]
    assert not list(folder.glob("m.checkpoint*"))


@pytest.mark.parametrize("learner", ["network", "lmsbn", "independent", "lmbm"])
def test_an_interrupted_table_goes_on_to_the_same_model(learner, folder, monkeypatch, capsys):
    line = f"train --table data.csv --labels a,b,c --model {learner} --out m --json".split()
    monkeypatch.setattr("potentia.models.multilabel.base._EVERY", -1.0)
    monkeypatch.setattr("potentia.models.multilabel.machine._BLOCK", 1)
    monkeypatch.setattr("potentia.models.multilabel.machine.MachineProblem.leap", lambda *_: None)
    assert main(line) == 0
    capsys.readouterr()
    whole = pt.load("m").model
    (folder / "m").unlink()
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2, iterations=False)
        assert main(line) == 130
    assert "m.checkpoint keeps the progress" in capsys.readouterr().err
    assert main([*line, "--seed", "1"]) == 2
    assert "m.checkpoint belongs to a run with other options or data" in capsys.readouterr().err
    assert main(line) == 0
    assert "resuming from m.checkpoint" in capsys.readouterr().err
    resumed = pt.load("m").model
    arrays = [model.state()[1] for model in (resumed, whole)]
    assert arrays[0].keys() == arrays[1].keys()
    assert all(np.array_equal(arrays[0][name], array) for name, array in arrays[1].items())
    assert not (folder / "m.checkpoint").exists()


def test_an_interruption_before_the_first_iteration_says_so(folder, monkeypatch, capsys):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(pt.CRF, "_check", stop)
    assert main(LONG.split()) == 130
    assert "nothing is kept" in capsys.readouterr().err
    assert not (folder / "m.checkpoint").exists()


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_a_real_blow_to_a_running_process_leaves_a_checkpoint(blow, folder, capsys):
    line = "train --sequences train.tsv --validation 0.2 --out m"
    run = subprocess.Popen(
        [sys.executable, "-c", SLOW, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (folder / "m.checkpoint").exists() and run.poll() is None:
        time.sleep(0.02)
    run.send_signal(blow)
    _, errors = run.communicate()
    if blow == signal.SIGINT:
        assert run.returncode == 130, errors
        assert "potentia: interrupted; m.checkpoint keeps the progress" in errors
    assert not (folder / "m").exists()
    assert main([*line.split(), "--json"]) == 0
    assert "resuming after iteration" in capsys.readouterr().err
    assert not (folder / "m.checkpoint").exists()


#: The command, with iterations slow enough to be interrupted.
SLOW = """
import signal, sys, time
from potentia.app.cli import main
from potentia.learn.checkpoint import Checkpoint
save = Checkpoint.save
Checkpoint.save = lambda self, state: (save(self, state), time.sleep(0.3))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.exit(main(sys.argv[1:]))
"""


def test_training_leaves_nothing_but_the_model_and_its_runs(tmp_path, monkeypatch):
    make_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    options = ["--masks", "masks", "--node", "linear", "--edge", "linear", "--iterations", "2", "--json"]
    assert main(["train", "--images", "photos", "--out", "model", *options]) == 0
    assert {path.name for path in tmp_path.iterdir()} - before == {"model", "model.runs"}


def test_evaluating_on_the_training_files_is_said_once(trained, capsys):
    line = ["evaluate", "model", "--table"]
    assert main([*line, "data.csv"]) == 0
    assert capsys.readouterr().err.count("the model was trained on 1 of the files") == 1
    assert main([*line, "data.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training_files"] == 1
    text = (trained.parent / "data.csv").read_text().splitlines()
    (trained.parent / "new.csv").write_text("\n".join(text[:-1]) + "\n")
    assert main([*line, "new.csv"]) == 0
    assert "trained on" not in capsys.readouterr().err

"""What the command line says without a command, to misspelt names, and to shells that complete."""

import shutil
import subprocess

import pytest

from potentia.app import image_files, own_data, pixel_functions, pixel_values, training
from potentia.app.cli import main
from potentia_studies.commands import NAMES


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: potentia")
    for command in ("demo", "train", "completion"):
        assert command in shown


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("trian", "potentia: unknown command 'trian', did you mean train? See `potentia --help`."),
        ("train --imges x", "potentia train: unknown option --imges, did you mean --images?"),
        ("train --imges=x", "potentia train: unknown option --imges, did you mean --images?"),
        ("reproduce denoisng", "unknown value 'denoisng', did you mean denoising?"),
        ("infer m.uai --method trv", "unknown value 'trv', did you mean trw?"),
        ("infer m.uai --method zzz", "unknown value 'zzz', expected one of exact, gibbs"),
        ("demo --seed x", "argument --seed: 'x' is not a whole number"),
        ("zzz", "unknown command 'zzz', expected one of demo, train"),
        ("infer", "the following arguments are required: model. See `potentia infer --help`."),
        ("report a b", "unrecognized arguments: b"),
    ],
)
def test_errors_are_one_line_with_a_suggestion(line, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_options_may_be_shortened(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--ou", "x"]) == 2
    assert "holds no rows.jsonl" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tr"], ["train"]),
        (["reproduce", "hor"], [name for name in NAMES if name.startswith("hor")]),
        (["infer", "m.uai", "--method", "t"], ["trw"]),
        (["infer", "--ev"], ["--evidence"]),
        (["train", "--im"], ["--images"]),
    ],
)
def test_bash_completes(words, found, capsys):
    asked = f"COMP_WORDS=(potentia {' '.join(words)}); COMP_CWORD={len(words)}; _potentia; echo ${{COMPREPLY[@]}}"
    assert main(["completion", "bash"]) == 0
    line = capsys.readouterr().out + asked
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.split() == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_commands_options_and_values(shell, capsys):
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    for word in ("evaluate", "evidence", "loopy_bp", "denoising-berkeley"):
        assert word in shown
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", shown], check=True)


def test_choices_are_those_of_the_modules_that_take_them():
    options = {name: parsed for name, _, _, parsed in own_data._OPTIONS["train"]}
    known = {"rare": pixel_values.RARE, "normalise": pixel_values.NORMALISATIONS, "stacks": image_files.STACKS,
             "node": pixel_functions.PIXEL_FUNCTIONS, "edge": training.TRAINABLE["ilr"],
             "learner": tuple(training.TRAINABLE), "inference": tuple(training.INFERENCE)}  # fmt: skip
    assert {name: options[name]["choices"] for name in known} == known

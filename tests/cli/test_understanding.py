"""The understanding tasks on the command line, as a new user meets them: what is said, shown and refused."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest

from weft.cli.main import run

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SMALL = ["--model", "bert", "--size", "1x64", "--set", "tokenizer.size=300", "--steps", "2"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind that is shown differently, in windows of 24 tokens where that matters."""
    folder = tmp_path_factory.mktemp("made")
    pairs = "sentence1,sentence2,label\n" + "".join(f"a cat {n},a dog {n},{n % 2}\n" for n in range(8))
    (folder / "pairs.csv").write_text(pairs)
    for task, file, more in (
        ("classify", EXAMPLES / "reviews.csv", ["--length", "24"]),
        ("pair", folder / "pairs.csv", []),
        ("answer", EXAMPLES / "questions.jsonl", []),
    ):
        assert run(["finetune", "--task", task, "--data", str(file), *SMALL, *more, "--out", str(folder / task)]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text("text,label\n" + "".join(f"some text {n},{'ab'[n % 2]}\n" for n in range(8)))
    (tmp_path / "odd.csv").write_text("body text,label\n" + "".join(f"some text {n},{'ab'[n % 2]}\n" for n in range(8)))
    (tmp_path / "story.txt").write_text("The mill was\nbuilt in 1743.")
    return tmp_path


def test_info_shows_what_was_learned(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(made / "classify")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^task +classify$", said, re.M) and re.search(r"^labels +2: negative, positive$", said, re.M)
    assert re.search(r"^window +24 tokens; a longer text is read in windows, each 21 after the one before$", said, re.M)
    assert re.search(r"^scores +accuracy 0\.\d{4} \(0\.\d{4} to \d\.\d{4}\), macro_f1", said, re.M)
    assert "{'data'" not in said
    assert run(["info", str(made / "answer")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^thresholds +no answer -?\d", said, re.M) and re.search(r"^temperature +\d", said, re.M)
    assert run(["info", str(made / "answer"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["card"]["metrics"][0]["name"] == "exact"


def test_models_says_what_a_family_can_learn(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--json"]) == 0
    can = {row["family"]: row["finetune"] for row in json.loads(capsys.readouterr().out)}
    assert can["bert"] == ["classify", "multilabel", "regress", "pair", "spans", "tag", "answer", "choose"]
    assert set(can["bert"]) - set(can["gpt2"]) == {"answer"}  # it looks back only
    assert set(can["bert"]) - set(can["openai-gpt"]) == {"answer", "tag"}  # it has no head
    words = "openai-gpt: classify, multilabel, regress, pair, spans, choose\n"
    assert run(["models"]) == 0 and words in capsys.readouterr().out


def test_notes_about_long_texts(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "the soup was cold " * 20
    assert run(["predict", str(made / "classify"), long]) == 0
    assert re.search(r"\[1 text in \d+ windows of at most 24 tokens; none truncated\]", capsys.readouterr().err)
    given = ["finetune", "--task", "classify", "--data", "good.csv", *SMALL, "--length", "4"]
    assert run([*given, "--long", "truncate", "--out", "cut"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"\([1-9] of them truncated at 4 tokens\)", said) and "so few give wide intervals" in said
    assert re.search(r"best model: held-out accuracy \d\.\d{4} at step", said)
    assert run(["predict", "cut", "text one two three"]) == 0
    assert "1 of the texts truncated" in capsys.readouterr().err
    assert run(["info", "cut"]) == 0 and "4 tokens; a longer text is truncated" in capsys.readouterr().out


def test_an_answer_stands_on_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["answer", str(made / "answer"), "When?", "Who?", "--context", "story.txt", "--top", "5"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 * 6 and said.err.count("tokens in 1 window; nothing was truncated") == 2


def test_columns_of_the_training_data_need_not_be_there(
    made: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", "odd.csv", "--column", "text=body text", *SMALL, "--out", "odd"]
    assert run(["finetune", "--task", "classify", *given]) == 0
    capsys.readouterr()
    assert run(["predict", "odd", "--data", "odd.csv"]) == 0 and len(capsys.readouterr().out.splitlines()) == 8
    assert run(["predict", "odd", "--data", "good.csv", "odd.csv"]) == 2  # a second file is no text
    capsys.readouterr()
    assert run(["predict", "odd", "--data", "good.csv", "--data", "odd.csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 16
    (here / "bare.csv").write_text("x,one\ny,two\n")
    assert run(["predict", "odd", "--data", "bare.csv", "--names", "number,text"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["one", "two"]


MISTAKES = {
    "half a pair": ("predict {}/pair one", "texts two by two; 1 was given, where it wants one, then the other"),
    "a question alone": ("predict {}/answer When?", "two by two; 1 was given, where it wants a question, then its"),
    "a line without a tab": ("predict {}/pair", "standard input line 1: no tab between two texts"),
    "texts and rows": ("predict {}/classify one --data good.csv", "give texts or --data, not both"),
    "no question": ("answer {}/answer --context story.txt", "no question"),
    "an empty question": ("answer {}/answer '' --context story.txt", "no question"),
    "no context": ("answer {}/answer When?", r"no text to search: give --context FILE"),
    "a context that is not there": ("answer {}/answer When? --context stori.txt", "stori.txt: cannot be read"),
    "not for answers": ("answer {}/classify When? --context story.txt", "has no head for answer: it has classify"),
    "a slip in the task": ("finetune --task clasify --out r", "--task 'clasify' is not one of .*did you mean 'class"),
    "a slip in our name of a column": ("finetune --task classify --data good.csv --model bert --column lable=label "
                                       "--out r", "column 'lable' is not one of .*did you mean 'label'"),
    "a column of another name": ("finetune --task regress --data odd.csv --column value=body --model bert --out r",
                                 "no column 'body'; it has body text, label"),
    "one label of two": ("finetune --task classify --data good.csv --model bert --labels a --out r",
                         "good.csv line 3: label 'b' is not one of a"),
    "no such head": ("finetune --task tag --model openai-gpt --data good.csv --out r",
                     "openai-gpt has no head for tag; it learns classify, multilabel, regress, pair, spans, choose$"),
    "weights of nothing": ("finetune --task tag --model bert --class-weights balanced --data good.csv --out r",
                           "class_weights does not apply to tag"),
    "labels of numbers": ("finetune --task regress --model bert --labels a,b --data good.csv --out r",
                          "labels does not apply to regress"),
    "no model": ("finetune --task pair --data good.csv --out r", "give --base FOLDER .*or --model FAMILY"),
    "rows for a recipe": ("finetune good.csv --task classify --model bert --out r", "rows are named by --data"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(
    mistake: str, made: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"no tab here\n")))
    command, message = MISTAKES[mistake]
    before = sorted(path.name for path in here.iterdir())
    assert run(shlex.split(command.format(made))) == 2
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert (len(lines) == 1 or "rows are wrong" in lines[0]) and re.search(message, said.err.strip()), lines
    assert not said.out and sorted(path.name for path in here.iterdir()) == before


@pytest.mark.parametrize("verb", ["finetune", "predict", "answer", "evaluate"])
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert f"Examples:\n  weft {verb} " in capsys.readouterr().out


def test_models_that_answer_together(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(made / "classify")
    assert run(["predict", model, "a gripping film"]) == 0
    alone = capsys.readouterr().out
    assert run(["predict", model, model, model, "a gripping film"]) == 0
    assert capsys.readouterr().out == alone, "three of a kind say what one says"
    assert run(["predict", model, str(made / "pair"), "a gripping film"]) == 2
    assert "model 2 is made for pair, the first for classify" in capsys.readouterr().err

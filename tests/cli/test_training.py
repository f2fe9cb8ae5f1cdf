"""Training on the command line, as a new user would try it: what works, and what goes wrong."""

from __future__ import annotations

import json
import re
import runpy
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.children import start_child
from tests.training.small import stories
from weft.checkpoint.families import FAMILIES
from weft.cli.main import run
from weft.config import read_toml
from weft.data.masking import sentinel
from weft.distillation.recipe import DistillRecipe
from weft.errors import UserError
from weft.runs.recipes import Recipe, TaskRecipe, find_recipe, read_recipe, shipped
from weft.tasks.answers import Label, Reply, Text, Translation
from weft.text.tokenizers.tokenizer import Roles
from weft.text.tokenizers.training import learn

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TINY = ["--length", "32", "--vocabulary", "300", "--steps", "6", "--batch", "4"]
GPT = ["pretrain", "--model", "gpt2", "--size", "1x64", *TINY]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(stories(40))
    return tmp_path


def test_from_text_to_words(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*GPT, "--set", "model.layers=2", "--text", "corpus.txt", "--out", "runs/gpt"]) == 0
    said = capsys.readouterr().err
    for word in ("vocabulary: bpe", "2 x 64", "held out", "plan: 6 steps", "tokens/s", "left"):
        assert word in said, word
    assert "% of peak" not in said and "padding" not in said, "the peak of a CPU is not known, and full rows have none"
    bert = ["pretrain", "--model", "bert", "--size", "1x64", "--objective", "mlm+nsp", *TINY]
    assert run([*bert, "--text", "corpus.txt", "--out", "runs/bert"]) == 0
    assert run(["curves", "runs/gpt", "runs/bert", "--out", "curves.html"]) == 0
    page = (here / "curves.html").read_text()
    assert "runs/gpt" in page and "runs/bert" in page and page.count("<figcaption>Loss by step") == 2, (
        "each objective has its own"
    )
    assert run(["generate", "runs/gpt", "The weaver", "--max-tokens", "5"]) == 0
    assert run(["fill", "runs/bert", "the [MASK] of the loom"]) == 0
    assert run(["pretrain", "--base", "runs/bert", "--text", "corpus.txt", "--steps", "3", "--out", "runs/more"]) == 0
    more = weft.load("runs/more")
    assert more.card.base == "bert" and set(more.opened.heads) == {"words", "next"}
    assert run(["resume", "runs/gpt"]) == 0 and "finished already" in capsys.readouterr().err
    assert run(["cache", "list"]) == 0 and "corpus.txt" in capsys.readouterr().out
    assert run(["cache", "clear"]) == 0 and "freed" in capsys.readouterr().out


MISTAKES = {
    "a wrong path": ([*GPT, "--text", "corpse.txt", "--out", "r"], "no such file; did you mean 'corpus.txt'"),
    "an empty file": ([*GPT, "--text", "empty.txt", "--out", "r"], "empty.txt: there is no text"),
    "one letter": ([*GPT, "--text", "word.txt", "--out", "r"], "word.txt: there is no text to learn a vocabulary"),
    "one word": ([*GPT[:5], "--tokenizer", "tok", "--text", "word.txt", "--out", "r"], "the text has only 1 tokens"),
    "no text": ([*GPT, "--out", "r"], "no text: give --text"),
    "no model": (["pretrain", "--text", "corpus.txt", "--out", "r"], "which model"),
    "no folder": ([*GPT, "--text", "corpus.txt"], "no folder for the run"),
    "a slip in the model": (["pretrain", "--model", "gtp2", "--text", "corpus.txt", "--out", "r"], "mean 'gpt2'"),
    "a slip in a key": ([*GPT, "--text", "corpus.txt", "--out", "r", "--set", "model.layer=2"],
                        r"\[model\]: unknown key 'layer'; did you mean 'layers'"),
    "a slip in a recipe": (["pretrain", "bad.toml"], r"bad.toml \[training\]: unknown key 'stepz'; did you mean"),
    "a recipe that is not there": (["pretrain", "shakespear-gpt"], "did you mean 'shakespeare-gpt"),
    "not TOML": (["pretrain", "broken.toml"], "broken.toml: not TOML"),
    "a folder that is full": ([*GPT, "--text", "corpus.txt", "--out", "full"], "full: already there and not empty"),
    "a file for a folder": ([*GPT, "--text", "corpus.txt", "--out", "word.txt"], "word.txt: is a file, not a folder"),
    "a wrong column": ([*GPT, "--text", "table.csv", "--column", "txt", "--out", "r"], r"pretrain: \S*table.csv: no"),
    "two beginnings": ([*GPT, "--base", "x", "--text", "corpus.txt", "--out", "r"], "give one of them"),
    "an unfit objective": ([*GPT, "--objective", "mlm", "--text", "corpus.txt", "--out", "r"], "does not fit gpt2"),
    "pairs for a family without": (["pretrain", "--model", "roberta", "--objective", "mlm+sop", "--text", "corpus.txt",
                                    "--out", "r"], "mlm\\+sop does not fit roberta, which learns by mlm, tlm, "),
    "short rows that are long": ([*GPT, "--text", "corpus.txt", "--out", "r", "--set", "objective.short=32"],
                                 "short must be at least 2 and below the length of a row, not 32"),
    "an unknown objective": ([*GPT, "--objective", "mlm+np", "--text", "corpus.txt", "--out", "r"], "is not one of"),
    "rows longer than the context": ([*GPT, "--text", "corpus.txt", "--out", "r", "--set", "model.context=16"],
                                     "rows of 32 tokens are longer"),
    "a base that is none": (["pretrain", "--base", "nowhere", "--text", "corpus.txt", "--out", "r"], "nowhere"),
    "text or held out": ([*GPT, "--text", "corpus.txt", "--dev", "word.txt", "empty.txt", "--out", "r"], "held-out"),
    "text and held out": ([*GPT, "--text", "corpus.txt", "--dev", "corpus.txt", "--out", "r"], "both text and held"),
    "patience for nothing": ([*GPT, "--text", "corpus.txt", "--patience", "2", "--set", "text.holdout=0", "--out", "r"],
                             "patience needs held-out text"),
    "too large": ([*GPT, "--text", "corpus.txt", "--batch", "100000000", "--out", "r"], "batch must be between 1 and"),
    "not a run": (["resume", "full"], "'full' is not a run folder"),
    "no record": (["curves", "full"], "'full' is not a run folder"),
    "no such device": ([*GPT, "--text", "corpus.txt", "--out", "r", "--device", "gpu"], "device 'gpu' is not"),
    "a rate of no use": ([*GPT, "--text", "corpus.txt", "--out", "r", "--lr", "2147483648"], "at most 100, not 2.1"),
    "a rate of nothing": ([*GPT, "--text", "corpus.txt", "--out", "r", "--lr", "0"], "learning_rate must be above 0"),
}  # fmt: skip


@pytest.mark.parametrize("holdout", ["0.05", "0"])
def test_a_run_whose_weights_are_lost_is_not_done(
    holdout: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last update may spoil a model whose training losses were all sound."""
    monkeypatch.setattr("weft.training.plan.RATE", 1e39)
    call = [*GPT, "--steps", "1", "--set", f"text.holdout={holdout}", "--text", "corpus.txt", "--out", "r"]
    learning_rate = "2147483648" if holdout != "0" else "1e39"  # which makes NaN, or infinite weights
    assert run([*call, "--lr", learning_rate]) == 2
    printed = capsys.readouterr().err
    lost = "weights are no longer finite" if holdout == "0" else "the held-out loss of step 1 is"
    assert lost in printed and "try a lower training.learning_rate" in printed and "done" not in printed
    assert not Path("r/model.safetensors").exists()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what is wrong, exit status 2, and nothing left behind."""
    (here / "empty.txt").write_text("\n\n")
    (here / "word.txt").write_text("x\n")
    (here / "table.csv").write_text("text\nThe weaver sang.\n")
    if mistake == "one word":
        learn(stories(5).splitlines(), "bpe", 300, specials=Roles()).save(here / "tok")
    (here / "bad.toml").write_text('out = "r"\n[training]\nstepz = 3\n')
    (here / "broken.toml").write_text("out = = 3\n")
    (here / "full").mkdir()
    (here / "full" / "mine.txt").write_text("mine")
    before = sorted(path.name for path in here.iterdir())
    command, message = MISTAKES[mistake]
    assert run(command) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert re.search(message, said[-1]), said
    assert said[-1].startswith(f"weft {command[0]}: ") and "Traceback" not in "".join(said)
    assert sorted(path.name for path in here.iterdir() if path.name != "cache") == before
    assert (here / "full" / "mine.txt").read_text() == "mine"


def test_a_glob_that_the_shell_has_spelled_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "more.txt").write_text(stories(10))
    assert run([*GPT, "--text", "corpus.txt", "more.txt", "--out", "r"]) == 0
    assert "in 47 documents" in capsys.readouterr().err  # 50, of which three are held out
    assert run(["pretrain", "one.toml", "two.toml"]) == 2
    assert "only one recipe can be given" in capsys.readouterr().err


def test_a_vocabulary_larger_than_the_text_allows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*GPT, "--vocabulary", "50000", "--text", "corpus.txt", "--out", "r"]) == 0
    assert re.search(
        r"vocabulary: bpe, [\d,]+ tokens \(of 50000 requested; the text has no more\)", capsys.readouterr().err
    )


def test_a_wrapped_book_fills_its_rows(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "book.txt").write_text("\n\n".join(textwrap.fill(line, 60) for line in stories(16).splitlines()))
    bert = ["pretrain", "--model", "bert", "--size", "1x64", "--text", "book.txt", "--vocabulary", "300"]
    bert += ["--steps", "1", "--batch", "2", "--length", "128", "--set", "text.holdout=0"]
    assert run([*bert, "--out", "a"]) == 0
    said = capsys.readouterr().err
    assert "documents: blocks between blank lines (detected; --documents overrides)" in said
    assert "rows of about 128 tokens" in said and "under half" not in said
    recipe = read_toml(Recipe, here / "a" / "run/recipe.toml")
    assert recipe.text.documents == "block" and recipe.objective.rows == "stream"
    assert run([*bert, "--objective", "mlm+sop", "--out", "b"]) == 0
    assert "under half" not in capsys.readouterr().err
    assert run([*bert, "--documents", "line", "--rows", "documents", "--out", "c"]) == 0
    said = capsys.readouterr().err
    assert "rows are under half of --length 128: each is one document, of" in said and "--rows stream" in said
    assert "detected" not in said
    assert run(["resume", "a"]) == 0 and "finished already" in capsys.readouterr().err


def test_lines_that_are_parts_of_something_longer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = stories(60).split()
    (here / "wrapped.txt").write_text("\n".join(" ".join(words[n : n + 2]) for n in range(0, len(words), 2)))
    assert run([*GPT, "--text", "wrapped.txt", "--out", "r"]) == 0
    assert "--documents block" in capsys.readouterr().err
    assert run([*GPT, "--text", "wrapped.txt", "--documents", "file", "--out", "s"]) == 0
    said = capsys.readouterr().err
    assert "in 1 documents" in said and "--documents" not in said


def test_flags_stand_above_the_recipe(here: Path) -> None:
    (here / "mine.toml").write_text(
        '[model]\nfamily = "gpt2"\nlayers = 3\n[training]\nsteps = 7\nlearning_rate = 0.1\n'
    )
    found = read_recipe("mine.toml", {"training": {"epochs": 2.0}, "model": {"width": 64}}, Recipe)
    assert found.training.epochs == 2.0 and found.training.steps is None and found.training.learning_rate == 0.1
    assert found.model == {"family": "gpt2", "layers": 3, "width": 64}


def kind_of(text: str) -> Any:
    return TaskRecipe if "[task]" in text else DistillRecipe if "[distill]" in text else Recipe


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line is commented, every key is known, and it can be named as a path or printed."""
    text, _ = find_recipe(f"recipes/{name}.toml")
    for line in text.splitlines():
        assert not line or line.startswith("[") or "#" in line, line
    kind = kind_of(text)
    assert isinstance(read_recipe(name, {}, kind), kind)
    for other in {Recipe, TaskRecipe, DistillRecipe} - {kind}:
        wanted = rf"^{name}.toml: .* and is for weft {kind.verb}, not for weft {other.verb}$"
        with pytest.raises(UserError, match=wanted):
            read_recipe(name, {}, other)
    assert run(["recipes", name]) == 0 and capsys.readouterr().out == text
    assert run(["recipes"]) == 0 and name in capsys.readouterr().out


def test_recipes_of_the_other_kind(capsys: pytest.CaptureFixture[str]) -> None:
    for command, wanted in (
        (["finetune", "demo-bert"], "is for weft pretrain"),
        (["finetune", "demo-bert", "--task", "classify", "--data", "x.csv", "--model", "bert"], "is for weft pretrain"),
        (["pretrain", "reviews"], "is for weft finetune"),
        (["pretrain", "squad", "--text", "corpus.txt"], "is for weft finetune"),
        (["pretrain", "distill-base"], "has a [teacher] and is for weft distill, not for weft pretrain"),
        (["finetune", "distill-reviews", "--task", "classify"], "is for weft distill, not for weft finetune"),
        (["distill", "reviews", "--out", "r"], "has a [task] and is for weft finetune, not for weft distill"),
        (["distill", "demo-gpt", "--out", "r"], "has no [teacher] and is for weft pretrain, not for weft distill"),
        (["distill", "corpus.txt", "--out", "r"], "corpus.txt: is not a recipe; rows are named by --data"),
        (["finetune", "corpus.txt", "--task", "classify"], "corpus.txt: is not a recipe; rows are named by --data"),
    ):
        assert run(command) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1 and wanted in said[0], said


@pytest.mark.parametrize("name", [name for name, text in shipped().items() if "[task]" in text])
def test_shipped_recipes_finetune(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them on the rows of examples/, with a model that is small: two steps, and a model that answers."""
    rows = EXAMPLES / ("questions.jsonl" if name == "squad" else "reviews.csv")
    small = ["--model", "bert", "--size", "1x64", "--set", "tokenizer.size=300"]
    if name == "dates":
        rows, small = here / "dates.tsv", ["--set", "model.width=16"]
        pairs = runpy.run_path(str(EXAMPLES / "dates.py"))["pairs"](60)
        rows.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    elif name == "captions":
        rows, small = here / "captions.jsonl", ["--set", "model.width=16"]
        made = runpy.run_path(str(EXAMPLES / "captions.py"))["rows"](60)
        rows.write_text("".join(json.dumps(row) + "\n" for row in made))
    assert run(["finetune", name, "--data", str(rows), *small, "--steps", "2", "--out", "r"]) == 0
    said = capsys.readouterr()
    model, recipe = weft.load("r"), read_recipe("r/run/recipe.toml", {}, TaskRecipe)
    assert model.task == recipe.task.name and f"best model by {recipe.task.metric}" in said.err
    window = model.card.window
    if name == "squad":
        assert (
            window is not None
            and (window.length, window.stride) == (384, 128)
            and recipe.training.learning_rate == 3e-5
        )
        assert isinstance(model(("When?", "It was built in 1743.")), Reply)
    elif name == "dates":
        assert isinstance(model("3 May 2019"), Translation) and recipe.task.metric == "exact"
    elif name == "captions":
        assert isinstance(model(made[0]["vector"]), Text) and recipe.task.metric == "exact"
    else:
        assert isinstance(model("Excellent!"), Label) and recipe.task.metric == "macro_f1"


@pytest.mark.parametrize("name", [name for name, text in shipped().items() if kind_of(text) is Recipe])
def test_shipped_recipes_train(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them as it is but for its size and its text: two steps, and a model that answers."""
    small = ["model.layers=1", "model.width=64", "model.heads=1", "model.inner=64", "objective.length=40"]
    small += ["tokenizer.size=350", "training.batch=2", "training.evaluate_every=2", "training.compile=false"]
    flags = [part for setting in small for part in ("--set", setting)]
    if read_recipe(name, {}, Recipe).objective.short is not None:
        flags += ["--set", "objective.short=10", "--set", "objective.short_share=0.5"]
    given = ["--text", "corpus.txt", "--steps", "2", "--device", "cpu", "--out", "r"]
    assert run(["pretrain", name, *given, *flags]) == 0, capsys.readouterr().err
    model = weft.load("r")
    assert model.tokenizer is not None
    gap = model.tokenizer.roles.mask or (sentinel(0) if model.tokenizer.id(sentinel(0)) else None)
    answer = model("The weaver" if gap is None else f"The {gap} sang.", **({"max_tokens": 2} if gap is None else {}))
    assert answer.text.endswith(" sang.") or gap is None
    recipe = read_recipe("r/run/recipe.toml", {}, Recipe)
    if name == "bert-whole-words":
        assert recipe.objective.whole_words and recipe.objective.short == 10
        assert "the first 1 of them 8 rows of about 10 tokens" in capsys.readouterr().err
    if name == "albert":
        assert "AlbertForPreTraining" in Path("r/config.json").read_text() and recipe.objective.name == "mlm+sop"


def test_the_special_tokens_of_each_family(here: Path) -> None:
    """As published: the ids, and what stands around a text and between two."""
    from transformers import AutoTokenizer

    known = {
        "roberta": ("<s> <pad> </s> <unk> <mask>", "<s> A </s> </s> B </s>"),
        "xlm-roberta": ("<s> <pad> </s> <unk> <mask>", "<s> A </s> </s> B </s>"),
        "albert": ("<pad> <unk> [CLS] [SEP] [MASK]", "[CLS] A [SEP] B [SEP]"),
        "distilbert": ("[PAD] [UNK] [CLS] [SEP] [MASK]", "[CLS] A [SEP] B [SEP]"),
    }
    (here / "short.txt").write_text(stories(12))
    for family, (first, pair) in known.items():
        model = weft.pretrain(
            model={"family": family, "size": "1x64"},
            text={"files": ["short.txt"], "holdout": 0},
            tokenizer={"size": 300},
            objective={"length": 24},
            training={"steps": 1, "batch": 2},
            out=family,
            log=lambda _: None,
        )
        tokenizer = model.tokenizer
        assert tokenizer is not None and tokenizer.kind == FAMILIES[family].tokenizer
        assert [tokenizer.token(number) for number in range(5)] == first.split()
        found = tokenizer.encode("was", "was")
        sides = {0: "A", 1: "B", None: ""}
        words = [sides[side] or token for token, side in zip(found.tokens, found.sequences, strict=True)]
        assert runs(words) == pair.split()
        rows = read_toml(Recipe, Path(family) / "run/recipe.toml").objective.rows
        assert rows == "stream"
        gap = tokenizer.roles.mask
        peer = AutoTokenizer.from_pretrained(family)
        for text in (f"The {gap} was here", f"{gap} was", "The weaver sang."):
            assert peer(text, "was").input_ids == tokenizer.encode(text, "was").ids
        # The space before a mask is part of it, as it is part of the token that it stands for.
        assert tokenizer.encode(f"was {gap}", specials=False).ids == [
            *tokenizer.encode("was", specials=False).ids,
            tokenizer.id_of("mask"),
        ]
        assert model(f"was  {gap}, was", top=1).text.startswith("was  ")
        if model.config.has("padding"):
            assert model.config.padding == tokenizer.id_of("padding") == 1


def runs(words: list[str]) -> list[str]:
    """The sides of a pair, each named once however many tokens it has."""
    return [word for place, word in enumerate(words) if word not in ("A", "B") or words[place - 1] != word]


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.0, 1.5, 2.5])
def test_an_interrupt_at_any_moment(delay: float, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While Python imports, learns, tokenizes or trains: one line, status 130, and the run can be gone on with."""
    # What comes before our first line is Python's own, and takes as long as the machine is busy.
    begin = "import weft.cli; print('begun', flush=True); weft.cli.main()"
    command = [sys.executable, "-c", begin, *GPT, "--steps", "4000", "--text", "corpus.txt", "--out", "r"]
    process = start_child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(0.05 + delay)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    # Where the signal meets an exec of Python's own, Python ends by the signal itself: a shell sees 130 either way.
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in said, said
    if not (here / "r").exists():
        assert run([*GPT, "--text", "corpus.txt", "--out", "r"]) == 0
        return
    assert "weft resume r" in said
    recipe = here / "r/run/recipe.toml"
    recipe.write_text(re.sub(r"steps = 4000", f"steps = {_done(here) + 20}", recipe.read_text()))
    status = run(["resume", "r"])
    assert status == 0, capsys.readouterr().err
    assert weft.load("r").network is not None


def _done(here: Path) -> int:
    steps = [int(path.name[5:]) for path in (here / "r/run/checkpoints").glob("step-*")]
    return max(steps, default=0)


def test_python(here: Path) -> None:
    model = weft.pretrain(
        model={"family": "gpt2", "size": "1x64"},
        text={"files": ["corpus.txt"]},
        tokenizer={"size": 300},
        objective={"length": 16},
        training={"steps": 2, "batch": 2},
        out="r",
    )
    assert model.card.made is not None and json.loads(Path("r/run/run.json").read_text())["text"]["tokens"] > 100
    assert weft.resume("r").config == model.config

"""Students of language models: they foresee words as the teacher does, or read what it has written."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.once import once
from tests.tasks.small import quiet
from weft.cli.main import run
from weft.data.rows import Framed
from weft.data.shards import TextFiles, tokenized
from weft.distillation.dataset import Teacher
from weft.distillation.distill import distill
from weft.distillation.language import PlacedRows, TokenOutputs, TokenRequest, shortened, token_outputs
from weft.nn.rows import Ragged
from weft.objectives.losses import LOGPROBS, REST, TOKENS, NextToken, SoftTargets, kept_divergence
from weft.runs.driver import resume
from weft.runs.preparation import next_frame
from weft.tasks.model import Model
from weft.tasks.perplexity import perplexity
from weft.text.tokenizers.training import learn
from weft.training.step import Passes

WHO, DOES, WHAT = ("the cat", "a dog", "my cow"), ("sees", "likes", "eats"), ("grass", "milk", "the moon", "a stone")


def lines(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choice(some) for some in (WHO, DOES, WHAT)) + " today" for _ in range(count)]


TEXTS = lines(60)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


def speaking(family: str = "gpt2", seed: int = 1, kind: str = "bpe", **more: Any) -> Model:
    settings = {"context": 16, **({"width": 64} if family == "mlp" else {}), **more}
    size = None if family == "mlp" else "1x64"
    made = weft.new(family, learn(TEXTS, kind, 290), size=size, settings=settings, seed=seed)
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return made


def asked_of(*models: Model, temperature: float = 1.0, top: int = 8) -> TokenRequest:
    tokenizer: Any = models[0].tokenizer
    framed = Framed(tokenized(TextFiles(("text.txt",)), tokenizer), next_frame(tokenizer, True))
    digests = [str(float(next(model.network.parameters()).detach().sum())) for model in models]
    teachers = [Teacher(model.opened, Path("t"), digest) for model, digest in zip(models, digests, strict=True)]
    return TokenRequest(teachers, framed, tokenizer.vocabulary, temperature, top)


# ------------------------------------------------------------------------------------------------------------ the loss


def test_with_all_words_it_is_the_whole_divergence() -> None:
    """In float64, against the formula written out."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (3 * torch.randn(7, 11, dtype=torch.float64, generator=generator) for _ in range(2))
    words, chances, rest = shortened(theirs.log_softmax(-1), 11)
    whole = (theirs.softmax(-1) * (theirs.log_softmax(-1) - ours.log_softmax(-1))).sum(-1)
    torch.testing.assert_close(kept_divergence(ours, words, chances, rest), whole, rtol=0, atol=1e-9)
    assert not rest.any()


def test_with_some_words_the_others_count_as_one() -> None:
    """Never more than the whole divergence, the nearer to it the more words are kept, and none where both agree."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (2 * torch.randn(50, 20, dtype=torch.float64, generator=generator) for _ in range(2))
    whole = (theirs.softmax(-1) * (theirs.log_softmax(-1) - ours.log_softmax(-1))).sum(-1)
    before = torch.zeros(50, dtype=torch.float64)
    for k in (1, 4, 12, 19, 20):
        words, chances, rest = shortened(theirs.log_softmax(-1), k)
        assert torch.allclose(chances.exp().sum(-1) + rest, torch.ones(50, dtype=torch.float64))
        found = kept_divergence(ours, words, chances, rest)
        assert bool((found <= whole + 1e-9).all()) and bool((found >= before - 1e-9).all())
        written = torch.zeros(50, dtype=torch.float64)  # the same by groups of words, written out
        for row in range(50):
            inside = words[row].tolist()
            p, q = theirs[row].softmax(-1), ours[row].softmax(-1)
            groups = [[word] for word in inside] + [[word for word in range(20) if word not in inside]]
            for group in groups:
                if group:
                    written[row] += p[group].sum() * (p[group].sum() / q[group].sum()).log()
        torch.testing.assert_close(found, written, rtol=0, atol=1e-9)
        assert kept_divergence(theirs, words, chances, rest).abs().max() < 1e-9
        before = found


def test_terms_count_as_the_recipe_says() -> None:
    model = speaking()
    asked = asked_of(model, temperature=2.0)
    table = PlacedRows(asked.framed, 8, 1, False, 0)
    batch = token_outputs(asked).batch(table.draw(np.zeros(3, dtype=np.int64), np.arange(3)))
    network = speaking(seed=2).network.requires_grad_(False)
    plain = float(NextToken().sums(network, batch)["words"])
    for hard in (0.0, 0.25, 1.0):
        objective = NextToken(soft=SoftTargets(2.0, hard))
        sums, counts = objective.sums(network, batch), objective.counts(batch)
        assert list(sums) == list(counts) == list(objective.terms) and set(counts.values()) == {24}
        assert float(sums["words"]) == pytest.approx(hard * plain)
        scores: Any = network.words(network(batch.tokens, batch.rows))  # type: ignore[operator]
        said = kept_divergence(scores / 2.0, batch.targets[TOKENS], batch.targets[LOGPROBS], batch.targets[REST]).sum()
        assert float(sums["teacher"]) == pytest.approx(4 * (1 - hard) * float(said))


# ----------------------------------------------------------------------------------------------------------- forecasts


@pytest.mark.parametrize("family", ["gpt2", "lstm", "mlp"])
def test_forecasts_are_the_teacher_s(family: str) -> None:
    """At every place what the network says there after as much of the text as a window has."""
    model = speaking(family, **({} if family == "gpt2" else {"context": 1 << 16}))
    asked = asked_of(model)
    found = token_outputs(asked)
    assert found.forwards == asked.framed.size
    tokens = asked.framed.read(np.arange(asked.framed.size))[0]
    for place in (0, 3, 9, 15, 16, 40, asked.framed.size - 1):
        said = found.take(np.array([place]))[0]
        begin = 0
        if family == "gpt2":  # windows of 16 begin every 8 places, each with 8 before what it is asked
            begin = max(0, place // 8 * 8 - 8)
        ragged = Ragged.of([tokens[begin : place + 1].tolist()])
        network: Any = model.network
        with torch.no_grad():
            logs = network.words(network(ragged.tokens, ragged.rows)[-1:]).log_softmax(-1)[0]
        best = logs.topk(8)
        assert said["tokens"].tolist() == best.indices.tolist()
        np.testing.assert_allclose(said["logprobs"].astype(np.float32), best.values.numpy(), atol=5e-3)
        assert said["rest"] == pytest.approx(1 - float(best.values.exp().sum()), abs=1e-5)


def test_several_teachers_are_their_mean() -> None:
    one, two = speaking(seed=1), speaking(seed=2)
    both = token_outputs(asked_of(one, two, top=290)).take(np.arange(16))
    alone = [token_outputs(asked_of(each, top=290)).take(np.arange(16)) for each in (one, two)]

    def chances(found: Any) -> Any:
        whole = np.zeros((16, 290))
        np.put_along_axis(whole, found["tokens"].astype(np.int64), np.exp(found["logprobs"].astype(np.float64)), 1)
        return whole

    np.testing.assert_allclose(chances(both), sum(map(chances, alone)) / 2, atol=2e-3)


def test_a_second_time_nothing_is_read(here: Path) -> None:
    model = speaking()
    first = token_outputs(asked_of(model))
    again = token_outputs(asked_of(model))
    assert first.forwards > 0 and again.forwards == 0
    assert all((one == two).all() for one, two in zip(first.shards, again.shards, strict=True))
    assert token_outputs(asked_of(model, temperature=2.0)).forwards > 0  # another question
    Path("text.txt").write_text("another text\n")
    assert token_outputs(asked_of(model)).forwards > 0


def test_whoever_is_stopped_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.distillation.language.TOKEN_SHARD", 64)
    model = speaking()
    whole = asked_of(model).framed.size

    class Stopped(Exception):
        pass

    done = 0

    def told(more: int) -> None:
        nonlocal done
        done += more
        if done > 150:
            raise Stopped

    with pytest.raises(Stopped):
        token_outputs(asked_of(model), told)
    rest = token_outputs(asked_of(model))
    assert 0 < rest.forwards <= whole - 128
    monkeypatch.setattr("weft.distillation.language.TOKEN_FORMAT", 3)
    assert all((one == two).all() for one, two in zip(token_outputs(asked_of(model)).shards, rest.shards, strict=True))


def test_rows_find_their_forecasts_in_every_epoch() -> None:
    """Rows are cut anew in each epoch; what is foreseen goes with the place, not with the row."""
    asked = asked_of(speaking())
    marked = np.zeros(asked.framed.size, dtype=asked.dtype)
    marked["tokens"] = np.arange(asked.framed.size)[:, None]
    marked["rest"] = 0.5
    table = PlacedRows(asked.framed, 8, 1, False, 5)
    tokens = asked.framed.read(np.arange(asked.framed.size))[0]
    cuts = set()
    for epoch in range(3):
        batch = TokenOutputs([marked], 0).batch(table.draw(np.full(2, epoch), np.array([0, table.count - 1])))
        places = batch.targets[TOKENS][:, 0].numpy()
        assert (tokens[places] == batch.tokens.numpy()).all()
        assert (tokens[(places + 1) % len(tokens)] == batch.targets["words"].numpy()).all()
        cuts.add(int(places[0]))
    assert len(cuts) > 1


# ------------------------------------------------------------------------------------------------- the whole command


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned the text well enough to be worth listening to."""

    def make(folder: Path) -> None:
        (folder / "text.txt").write_text("\n".join(TEXTS) + "\n")
        weft.pretrain(
            model={"family": "gpt2", "size": "1x64", "context": 16, "dropout": 0.0},
            text={"files": [str(folder / "text.txt")]},
            tokenizer={"size": 290},
            training={"steps": 40, "batch": 16, "learning_rate": 5e-3},
            out=str(folder / "run"),
            log=quiet,
        )

    return once(tmp_path_factory, "speaker", make) / "run"


def distilled(teacher: Path, out: str, *more: str, steps: int = 10) -> int:
    plan = [f"training.steps={steps}", f"training.evaluate_every={steps}", "training.batch=8"]
    sets = [part for each in plan for part in ("--set", each)]
    return run(["distill", str(teacher), "--text", "text.txt", "--out", out, *sets, *more])


def test_one_vocabulary_and_no_second_reading(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Epochs after the first, and later runs, cost no teacher; and what it has kept is told."""
    assert distilled(teacher, "one", "--student", "mlp", "--set", "student.settings.width=64") == 0
    said = capsys.readouterr().err
    assert "probabilities of the next token" in said and "% kept" in said
    about, kept = (json.loads(Path("one/run", name).read_text()) for name in ("run.json", "kept.json"))
    size = int(re.search(r"teacher: ([\d,]+) places, ([\d,]+) read anew", said)[1].replace(",", ""))  # type: ignore[index]
    assert about["teacher_forwards"] == size and float(re.search(r"([\d.]+) epochs", said)[1]) > 1  # type: ignore[index]
    bits = kept["bits_per_byte"]
    assert kept["kept"] == pytest.approx(bits["teacher"]["value"] / bits["student"]["value"])
    model = weft.load("one")
    held = TEXTS[-3:]
    assert bits["student"]["value"] == pytest.approx(perplexity(model.opened, held).bits_per_byte.value)
    assert {metric.name for metric in model.card.metrics} == {"loss", "bits_per_byte"} and model.task == "complete"
    assert distilled(teacher, "two", "--student", "mlp", "--set", "student.settings.width=64") == 0
    assert ", 0 read anew, all from the cache" in capsys.readouterr().err
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()


def test_another_vocabulary_reads_what_the_teacher_writes(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--student", "lstm:1x64", "--tokenizer", "learned", "--set", "student.vocabulary=270")
    assert distilled(teacher, "one", *words, "--hard", "0") == 0
    said = capsys.readouterr().err
    assert "another vocabulary than the teacher's" in said and "57 read anew" in said and "alone" in said
    written = Path("one/run/teacher_texts.txt").read_text().splitlines()
    begun = [" ".join(text.split()[:4]) for text in TEXTS[:57]]
    assert all(line.startswith(head) for line, head in zip(written, begun, strict=True))  # what it goes on from
    assert written != TEXTS[:57] and sum(line in lines(500, 3) for line in written) > 5  # its own, some of them right
    assert distilled(teacher, "two", *words) == 0
    assert "0 read anew" in capsys.readouterr().err  # whatever else is read beside it
    assert Path("two/run/teacher_texts.txt").read_text().splitlines() == [*written, *TEXTS[:57]]


def test_going_on_ends_as_the_whole_run(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    student = ("--student", "1x64", "--set", "training.save_every=5")
    assert distilled(teacher, "whole", *student) == 0
    real, steps = Passes.step, 0

    def killed(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 8:
            raise KeyboardInterrupt
        return real(*arguments)

    plan = {"steps": 10, "evaluate_every": 10, "batch": 8, "save_every": 5}
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Passes, "step", killed)
        distill(teacher, text="text.txt", student="1x64", out="broken", log=quiet, training=plan)
    resume("broken", log=quiet)
    assert Path("broken/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_student_comes_near_its_teacher(teacher: Path) -> None:
    student = ("--student", "gpt2:1x64", "--start", "scratch", "--hard", "0", "--temperature", "1")
    learning_rate = ("--set", "training.learning_rate=5e-3", "--set", "student.settings.dropout=0.0")
    assert distilled(teacher, "out", *student, *learning_rate, steps=150) == 0
    assert json.loads(Path("out/run/kept.json").read_text())["kept"] > 0.8


def test_mistakes_are_one_line(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.txt").write_text("\n")
    for given, words in (
        (("--text", "text.txt", "--student", "bert:1x64"), "bert does not continue a text"),
        (("--text", "empty.txt", "--student", "1x64"), "there is no text in it"),
        (("--text", "text.txt", "--student", "ngram"), "cannot be a student"),
        (("--text", "text.txt", "--student", "1x64", "--augment", "2"), "leave out --augment"),
        (("--text", "text.txt", "--student", "1x64", "--curve", "3"), "--curve is for students of a task"),
        (("--source", "text.txt", "--student", "1x64"), "give --text FILE"),
    ):
        assert run(["distill", str(teacher), "--out", "out", *given]) == 2, given
        found = capsys.readouterr().err.strip()
        assert re.search(words, found) and "\n" not in found, found
    assert not Path("out").exists()

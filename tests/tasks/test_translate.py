"""Text to text: pairs are learned by heart, long texts go through in pieces, several models write as one."""

from __future__ import annotations

import math
import os
import shutil
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.tasks.small import kinds, model_for, prices, quiet, several, write_rows
from tests.tasks.written import PLAN, SIZES, learned, worded, write_sides, write_table
from tests.training.test_resume import contents, same
from weft.errors import UserError
from weft.runs import finetune
from weft.runs.finetune import with_seeds
from weft.runs.recipes import TaskRecipe, read_recipe
from weft.tasks.complete import parts_of, translate
from weft.tasks.seq2seq import SequenceTask
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.step import Stepper

PAIRS = worded(20)
MULTI30K = Path(os.environ.get("WEFT_DATA", ".")) / "multi30k"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned 20 pairs, with a vocabulary for each side."""
    folder = tmp_path_factory.mktemp("made")
    learned(folder, folder / "run", tokenizer={"kind": "word", "separate": True})
    return folder / "run"


def texts_of(answers: list[Any]) -> list[str]:
    return [answer.text for answer in answers]


# ------------------------------------------------------------------------------------------------------------ learning


def test_pairs_are_learned_by_heart(made: Path) -> None:
    model = weft.load(made)
    assert model.task == "translate" and (made / "target_tokenizer/tokenizer.json").exists()
    assert model.config.source_vocabulary == model.tokenizer.vocabulary and model.config.tied == "decoder"  # type: ignore[union-attr]
    scores = {metric.name: metric.value for metric in model.card.metrics}
    assert scores["bleu"] == scores["chrf"] == 100 and scores["exact"] == 1
    for beam in (1, 5):
        answers: list[Any] = model([source for source, _ in PAIRS], beam_size=beam)
        assert texts_of(answers) == [target for _, target in PAIRS]
        assert all(answer.finish_reason == "end" and not answer.truncated for answer in answers)
    found = model.evaluate(data := write_table(made.parent / "test.tsv", PAIRS))
    assert found.scores["bleu"].value == 100 and found.signature and "tok:13a" in found.signature and not found.worst
    assert found.data == data.name and found.examples == 20


def test_one_vocabulary_for_both(here: Path) -> None:
    model = learned(here, tokenizer={"kind": "unigram", "size": 90}, task={"name": "translate", "metric": "loss"})
    assert model.opened.target_tokenizer is None and model.config.source_vocabulary is None
    assert [metric.name for metric in model.card.metrics] == ["loss"]
    answers: list[Any] = model([source for source, _ in PAIRS])
    assert sum(a.text == target for a, (_, target) in zip(answers, PAIRS, strict=True)) >= 18


def test_going_on_ends_as_the_whole_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of a step's work, and gone on with: bit for bit the same weights, state and record."""
    plan = {
        "steps": 9,
        "batch": 6,
        "learning_rate": 1e-3,
        "evaluate_every": 4,
        "save_every": 2,
        "log_every": 3,
        "keep": 1,
    }
    given: dict[str, Any] = {"training": {**plan, "ema": 0.9, "threads": 1, "pass_tokens": 60}}
    given |= {"pairs": worded(10), "model": {**SIZES, "dropout": 0.1}, "tokenizer": {"kind": "word", "separate": True}}
    learned(here, here / "whole", **given)
    real, calls = Stepper.update, []

    def killed(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(Stepper, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        learned(here, here / "parts", **given)
    monkeypatch.undo()
    monkeypatch.chdir("/")
    weft.resume(here / "parts", log=quiet)
    whole, parts = contents(here / "whole"), contents(here / "parts")
    assert whole["state"]["finished"] and len(whole["metrics"]) >= 5
    for name in whole:
        assert same(whole[name], parts[name]), name


def test_a_base_keeps_its_vocabularies(made: Path, here: Path) -> None:
    data = write_table(here / "t.tsv", worded(8, seed=3))
    model = weft.finetune(
        data, base=made, task={"name": "rewrite", "prefix": "one "}, training={"steps": 1, "batch": 4}, log=quiet
    )
    before = weft.load(made)
    assert model.task == "rewrite" and model.card.prefix == "one " and model.card.base == "run"
    model.save(here / "taught")
    short: dict[str, Any] = {"training": {"steps": 1, "batch": 4}, "log": quiet}
    for given, kept in ((None, "one "), ("", "")):
        task = {"name": "translate", "metric": "loss", **({} if given is None else {"prefix": given})}
        again = weft.finetune(data, base=here / "taught", task=task, **short)
        assert again.card.prefix == kept, "what it was taught to read stays, unless it is taken off"
    for now, then in ((model.tokenizer, before.tokenizer), (model.target_tokenizer, before.target_tokenizer)):
        assert now is not None and then is not None and now.library.to_str() == then.library.to_str()
    with pytest.raises(UserError, match="translate needs a model that reads one text and writes another .*, not bert"):
        weft.finetune(data, task="translate", model={"family": "bert", "size": "1x64"}, log=quiet)
    with pytest.raises(UserError, match="transformer has no head for classify; it learns translate"):
        weft.finetune(data, task="classify", model={"family": "transformer", "size": "1x64"}, log=quiet)
    with pytest.raises(UserError, match=r"task.scheduled_sampling needs a recurrent encoder-decoder"):
        weft.finetune(data, base=made, task={"name": "translate", "scheduled_sampling": 0.2}, log=quiet)
    recurrent = {"family": "seq2seq", "size": "1x16"}
    task = {"name": "translate", "scheduled_sampling": 0.2, "metric": "loss"}
    weft.finetune(data, model=recurrent, task=task, **short)


def test_what_is_chosen_where_nothing_is_said(here: Path) -> None:
    lines: list[str] = []
    data = write_table(here / "t.tsv", worded(80))
    weft.finetune(
        data, task={"name": "translate", "metric": "loss"}, model={"family": "transformer"}, out=here / "r",
        training={"steps": 1}, tokenizer={"kind": "word"}, log=lines.append,
    )  # fmt: skip
    assert "size: 3x256 with a dropout of 0.3, for 72 pairs (--size overrides)" in lines
    recipe = (here / "r/run/recipe.toml").read_text()
    for line in ('size = "3x256"', "dropout = 0.3", 'schedule = "cosine"', "ema = 0.999", "batch = 9", "steps = 1"):
        assert f"\n{line}\n" in recipe, line


def test_what_is_said_stands_above_what_is_usual() -> None:
    said: dict[str, Any] = {"task": {"name": "translate"}, "training": {"warmup": 0.3, "steps": 5}}
    plan = read_recipe(None, said, TaskRecipe).training
    assert (plan.warmup, plan.schedule, plan.ema) == (0.3, "cosine", 0.999)
    based = read_recipe(None, {**said, "model": {"base": "there"}}, TaskRecipe).training
    assert (based.warmup, based.schedule, based.ema) == (0.3, "linear", None), "a base is fine-tuned as ever"


def test_without_sacrebleu_the_loss_decides(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "find_spec", lambda name: None)
    lines: list[str] = []
    short: dict[str, Any] = {"training": {**PLAN, "steps": 1}, "log": lines.append}
    model = learned(here, **short)
    assert "weft: note: without the package sacrebleu the best model is chosen by its loss alone" in lines
    assert [metric.name for metric in model.card.metrics] == ["loss"] and any(
        "best model by loss" in line for line in lines
    )
    with pytest.raises(UserError, match="chrf needs the package sacrebleu"):
        learned(here, task={"name": "translate", "metric": "chrf"}, **short)


def test_few_are_written_out_to_judge_by(here: Path) -> None:
    task = SequenceTask("translate", max_evaluated=7)
    rows: list[Any] = list(range(100))
    assert task.sample(rows) == [0, 14, 28, 42, 57, 71, 85] and task.sample(rows[:7]) == rows[:7]
    lines: list[str] = []
    learned(here, task={"name": "translate", "max_evaluated": 3}, training={**PLAN, "steps": 1}, log=lines.append)
    assert any("20 held out, 3 of which are generated" in line for line in lines)


def test_seeds_with_two_vocabularies(here: Path) -> None:
    data = write_table(here / "t.tsv", PAIRS)
    settings = {"data": {"files": [str(data)]}, "task": {"name": "translate", "metric": "loss"}, "out": str(here / "s")}
    settings |= {"model": SIZES, "tokenizer": {"kind": "word", "separate": True}, "training": {"steps": 2, "batch": 6}}
    found = with_seeds(None, settings, 2, log=quiet)
    assert found.scores["loss"][found.best] == min(found.scores["loss"])
    assert weft.load(here / "s").target_tokenizer is not None


# -------------------------------------------------------------------------------------------------------- long texts


def test_long_texts_go_through_in_pieces(made: Path) -> None:
    model = weft.load(made)
    assert model.card.window is not None and model.card.window.length == 7
    sentences = [source for source, target in PAIRS if len(source.split()) == 6][:3]
    known = dict(PAIRS)
    text = ". ".join(sentences) + "."
    answer: Any = model(text)
    assert answer.n_windows == 3 and not answer.truncated and answer.finish_reason == "end"
    lines: Any = model("\n".join(sentences))
    assert lines.text.split("\n") == [known[sentence] for sentence in sentences] and lines.n_windows == 3
    parts = parts_of(model.opened, [text], "")
    end = model.tokenizer.id_of("end")  # type: ignore[union-attr]
    assert [token for part in parts for token in part.tokens[:-1]] == model.tokenizer.ids([text], specials=False)[0]  # type: ignore[union-attr]
    assert all(part.tokens[-1] == end and len(part.tokens) <= 8 for part in parts)


def test_one_sentence_that_is_too_long_is_cut_between_tokens(made: Path) -> None:
    model = weft.load(made)
    words = " ".join(["one two three four five"] * 20)
    parts = parts_of(model.opened, ["cat dog", words, "", "   "], "")
    assert [part.text for part in parts] == [0, 1, 1, 1] and max(len(part.tokens) for part in parts) == 48
    whole = [token for part in parts[1:] for token in part.tokens[:-1]]
    assert whole == model.tokenizer.ids([words], specials=False)[0]  # type: ignore[union-attr]
    answers: list[Any] = model(["cat dog", words, "", "   "], beam_size=1)
    assert [answer.n_windows for answer in answers] == [1, 3, 0, 0] and answers[2].text == "" == answers[3].text
    assert answers[1].n_tokens == 103
    whole_one = [part.tokens for part in parts_of(model.opened, ["one " * 20], "")]
    assert [len(tokens) for tokens in whole_one] == [21], "a sentence that the model can read at once is not cut"


def test_a_prefix_stands_before_each_piece(made: Path) -> None:
    model = weft.load(made)
    parts = parts_of(model.opened, ["one two three. four five six seven."], "cat dog ")
    ahead = model.tokenizer.ids(["cat dog "], specials=False)[0]  # type: ignore[union-attr]
    assert len(parts) == 2 and all(part.tokens[: len(ahead)] == ahead for part in parts)
    with pytest.raises(UserError, match="the prefix has 60 tokens, which leaves no room"):
        parts_of(model.opened, ["one"], "cat " * 60)


# --------------------------------------------------------------------------------------------------- ways to write it


def test_batch_is_single_and_order_is_kept(made: Path) -> None:
    model = weft.load(made)
    texts = [source for source, _ in worded(12, seed=9)] + ["", "one. two three four five six. seven eight nine"]
    together: list[Any] = model(texts, n=3, alignments=True)
    for text, answer in zip(texts, together, strict=True):
        alone: Any = model(text, n=3, alignments=True)
        assert [way.text for way in alone.best] == [way.text for way in answer.best]
        assert alone.score == pytest.approx(answer.score, abs=1e-4)
        if text:
            matrix = torch.tensor(answer.alignments)
            assert matrix.shape == (len(answer.target_tokens), len(answer.source_tokens))
            assert torch.allclose(matrix.sum(1), torch.ones(len(matrix)), atol=1e-4)


def test_n_best_and_their_scores(made: Path) -> None:
    model = weft.load(made)
    answer: Any = model(PAIRS[0][0], beam_size=4, n=3)
    scores = [way.score for way in answer.best]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True) and answer.best[0].text == answer.text
    assert answer.logprob / len(answer.target_tokens) == pytest.approx(answer.score, abs=1e-6)
    short: Any = model(PAIRS[0][0], max_tokens=2)
    assert short.finish_reason == "length" and len(short.target_tokens) == 2
    for wrong, match in (
        ({"beam_size": 0}, "beam_size must be at least 1"),
        ({"beam_size": 1000}, "a beam of 1000 is wider than the vocabulary of"),
        ({"n": 9}, "a beam of 5 gives 1 to 5 texts"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
    ):
        with pytest.raises(UserError, match=match):
            model("one", **wrong)


def test_the_ways_of_a_text_in_pieces_are_in_order(made: Path) -> None:
    """The better way of every piece makes the better whole, whatever their lengths; one piece scores as it is."""
    model = weft.load(made)
    texts = [" ".join(f"{source}." for source, _ in worded(6, seed=seed)) for seed in range(12)]
    for penalty in (0.0, 1.0, 2.0):
        answers: list[Any] = model(texts, beam_size=8, n=8, length_penalty=penalty)
        assert all(answer.n_windows > 1 for answer in answers)
        scores = [[way.score for way in answer.best] for answer in answers]
        assert scores == [sorted(some, reverse=True) for some in scores]


def test_an_encoder_decoder_streams_but_embeds_nothing(made: Path) -> None:
    stream = weft.load(made).stream(PAIRS[0][0])
    assert "".join(stream) == PAIRS[0][1] == stream.answer.text
    with pytest.raises(UserError, match="transformer reads one text to write another, and makes no vectors"):
        weft.load(made, task="embed")("one")
    with pytest.raises(UserError, match="input 2: a text is expected, not 2"):
        weft.load(made)(["one", 2])
    with pytest.raises(UserError, match="a beam of 1000 is wider than the vocabulary of"):
        weft.load(made, task="complete")("one", beam_size=1000)


def test_a_second_vocabulary_that_is_missing(made: Path, here: Path) -> None:
    shutil.copytree(made, here / "copy", ignore=shutil.ignore_patterns("run", "target_tokenizer"))
    with pytest.raises(UserError, match="another vocabulary than it reads with, and target_tokenizer/ is missing"):
        weft.load(here / "copy")
    sizes = {"width": 16, "embedding_width": 8}
    alone = weft.new("seq2seq-bahdanau", weft.load(made).tokenizer, settings=sizes)
    assert alone.config.source_vocabulary is None, "one vocabulary for both, whatever the paper had"


def test_texts_of_the_other_side_are_noted(made: Path) -> None:
    model = weft.load(made)
    with pytest.warns(UserWarning, match="looks like what the model has learned to write"):
        model([target for _, target in PAIRS])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model([source for source, _ in worded(20, seed=4)])


# ------------------------------------------------------------------------------------------------------------ together


def test_models_write_together(made: Path, here: Path) -> None:
    model, text = weft.load(made), PAIRS[0][0]
    alone: Any = model(text, beam_size=1)
    twice: Any = model(text, beam_size=1, others=[weft.load(made)])
    assert twice.text == alone.text and twice.logprob == pytest.approx(alone.logprob, abs=1e-4)
    other = weft.load(made)
    with torch.no_grad():
        for parameter in other.network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    mixed: Any = translate(model.opened, [text], others=[other.opened], beam_size=1)[0]
    chances = [math.exp(each(text, beam_size=1, max_tokens=1).logprob) for each in (model, other)]
    first: Any = translate(model.opened, [text], others=[other.opened], beam_size=1, max_tokens=1)[0]
    assert mixed.logprob != alone.logprob and math.exp(first.logprob) <= max(chances) + 1e-6
    stranger = learned(here, training={**PLAN, "steps": 1}, task={"name": "translate", "metric": "loss"})
    with pytest.raises(UserError, match="model 2 has another vocabulary than the first .*: they cannot write together"):
        model(text, others=[stranger])


@pytest.mark.parametrize(("task", "outputs"), [("classify", 3), ("multilabel", 3), ("regress", 1)])
def test_models_classify_together(task: str, outputs: int, wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    """The mean of the chances, whatever vocabulary each model reads by."""
    labels = None if outputs == 1 else ("a", "b", "c")
    models = [
        model_for(task, outputs, wordpiece, labels),
        model_for(task, outputs, bpe, labels, family="gpt2"),
    ]
    texts = [row["text"] for row in (kinds(4) + prices(2) + several(3))]
    single: list[Any] = [each(texts) for each in models]
    both: list[Any] = models[0](texts, others=models[1:])
    for one, two, answer in zip(*single, both, strict=True):
        if task == "regress":
            assert answer.value == pytest.approx((one.value + two.value) / 2, abs=1e-6)
            continue
        mean = {label: (one.scores[label] + two.scores[label]) / 2 for label in one.scores}
        assert answer.scores == pytest.approx(mean, abs=1e-9)
        if task == "classify":
            assert answer.label == max(mean, key=mean.__getitem__)
    if labels:
        stranger = model_for(task, 3, wordpiece, ("a", "b", "d"))
        with pytest.raises(UserError, match="model 2 has the labels a, b, d, not a, b, c as the first"):
            models[0](texts, others=[stranger])
    tagger = model_for("tag", 2, wordpiece, ("O", "B-X"))
    with pytest.raises(UserError, match="models for tag cannot answer together"):
        tagger("a text", others=[tagger])


# ----------------------------------------------------------------------------------------------------------- summaries


def test_summaries_are_judged_beside_their_first_sentences(here: Path) -> None:
    rows = [
        {"article": f"{one}. Nothing new. Nothing red. Some cat. Nothing at all.", "summary": one}
        for one, _ in worded(16)
    ]
    data = write_rows(here / "s.jsonl", rows)
    model = weft.finetune(
        data, task="summarize", model=SIZES, tokenizer={"kind": "word"}, training={"steps": 1, "batch": 8}, log=quiet
    )
    assert [metric.name for metric in model.card.metrics] == ["rouge1", "rouge2", "rougeL"]
    found = model.evaluate(data, beam_size=1)
    assert list(found.scores) == [f"{lead}{name}" for lead in ("", "lead3_") for name in ("rouge1", "rouge2", "rougeL")]
    assert 0.5 < found.scores["lead3_rouge1"].value < 1 > found.scores["rouge1"].value and found.worst
    assert "near" in found.worst[0] and found.signature is None


def test_judging_in_two_files(made: Path, here: Path) -> None:
    model = weft.load(made)
    longer = [(f"{a}. {c}", f"{d} {b}") for (a, b), (c, d) in pairwise(PAIRS)]
    source, target = write_sides(here, [*PAIRS, *longer])
    found = model.evaluate(source=source, target=target, beam_size=2)
    assert found.data == "t.en, t.de" and found.examples == 39 and 50 < found.scores["bleu"].value < 100
    assert [row["words"] for row in found.by_length] == ["0 to 9", "10 to 19"]
    assert sum(row["sentences"] for row in found.by_length) == 39
    assert found.values()["signature"] == found.signature and found.worst[0]["near"] <= found.worst[1]["near"]
    with pytest.warns(UserWarning, match="t.de, t.en: source and target look as if they were swapped"):
        model.evaluate(source=target, target=source, beam_size=1)
    with pytest.raises(UserError, match="give --data, or --source and --target"):
        model.evaluate(source, source=source, target=target)
    page = here / "page.html"
    found.write(page)
    assert found.signature is not None and found.signature.split("|")[0] in page.read_text()


def test_a_folder_that_does_not_write(here: Path, wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    weft.new("gpt2", bpe, size="1x64", settings={"context": 16}).save(here / "gpt")
    with pytest.raises(UserError, match="translate needs a model that reads one text and writes another, not gpt2"):
        weft.load(here / "gpt", task="translate")
    with pytest.raises(UserError, match="a model for classify generates no text"):
        model_for("classify", 2, wordpiece, ("a", "b")).evaluate(source="a", target="b")


# ------------------------------------------------------------------------------------------------------------ real data


@pytest.mark.slow
@pytest.mark.skipif(not (MULTI30K / "train.en.gz").exists(), reason="needs Multi30k where $WEFT_DATA says data lies")
def test_multi30k(here: Path) -> None:
    """Real captions, less than once: what is written begins to be German."""
    sides = {"source": MULTI30K / "train.en.gz", "target": MULTI30K / "train.de.gz"}
    sides |= {"dev_source": MULTI30K / "val.en.gz", "dev_target": MULTI30K / "val.de.gz"}
    model = weft.finetune(
        {key: str(path) for key, path in sides.items()}, task={"name": "translate", "max_evaluated": 30},
        model={"family": "transformer", "size": "2x128"}, tokenizer={"size": 4000},
        training={"steps": 300, "batch": 64, "evaluate_every": 300}, log=quiet,
    )  # fmt: skip
    assert {metric.name: metric.value for metric in model.card.metrics}["chrf"] > 15


def test_without_sentencepiece_another_vocabulary_is_learned_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.tsv").write_text("source\ttarget\n" + "".join(f"cat {n}\tKatze {n}\n" for n in range(40)))
    monkeypatch.setattr("weft.runs.preparation.find_spec", lambda name: None)
    said: list[str] = []
    model = weft.finetune(
        str(tmp_path / "t.tsv"),
        task={"name": "translate", "metric": "loss"},
        model={"family": "transformer", "size": "1x64"},
        tokenizer={"size": 300},
        training={"steps": 1},
        out=tmp_path / "r",
        log=said.append,
    )
    assert model.tokenizer is not None and model.tokenizer.kind == "bpe"
    assert any("pip install 'weft[data]'" in line for line in said)

"""Pre-training in several languages and on sentence pairs, and models that are told the language of a text."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import weft
from weft.cli.main import run as command
from weft.errors import UserError
from weft.nn.rows import Ragged, Rows
from weft.training.log import read_metrics

WORDS = [*("tom", "mary", "likes", "sees", "hears", "the", "a", "small", "big", "old", "red"), *("dog", "cat", "house")]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two languages word for word: in the second every word is written backwards and ends in x."""
    folder, chance = tmp_path_factory.mktemp("texts"), random.Random(0)
    lines = [" ".join(chance.choices(WORDS, k=chance.randint(3, 7))) for _ in range(300)]
    others = [" ".join(word[::-1] + "x" for word in line.split()) for line in lines]
    (folder / "en.txt").write_text("\n".join(lines) + "\n")
    (folder / "xx.txt").write_text("\n".join(others[:100]) + "\n")
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(lines, others, strict=True)))
    return folder


def settings(texts: Path, out: Path, family: str = "xlm", **sections: Any) -> dict[str, Any]:
    text = {"files": [f"en={texts / 'en.txt'}", f"xx={texts / 'xx.txt'}"], "pairs": [f"en-xx={texts / 'pairs.tsv'}"]}
    usual: dict[str, Any] = {
        "model": {"family": family, "size": "1x64"},
        "text": {**text, "documents": "line"},
        "tokenizer": {"kind": "word"} if family != "xlm-roberta" else {"kind": "bpe", "size": 400},
        "objective": {"length": 32},
        "training": {"steps": 12, "batch": 16, "evaluate_every": 6, "save_every": 4, "keep": 9, "threads": 1},
        "out": str(out),
    }
    return {
        key: {**value, **sections.get(key, {})} if isinstance(value, dict) else value for key, value in usual.items()
    }


@pytest.fixture(scope="module")
def trained(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "xlm"
    weft.pretrain(**settings(texts, out))
    return out


def test_losses_by_language_and_of_pairs(trained: Path) -> None:
    recipe = (trained / "run" / "recipe.toml").read_text()
    assert 'name = "mlm+tlm"' in recipe and "alpha = 0.7" in recipe
    lines = [line for line in read_metrics(trained / "run" / "metrics.jsonl") if "validation_loss" in line]
    last = lines[-1]
    parts = [last[f"validation_{name}"] for name in ("en", "xx", "en-xx")]
    assert min(parts) < last["validation_loss"] < max(parts), "the mean over all masks"
    assert last["validation_loss"] < lines[0]["validation_loss"]
    assert {metric.name for metric in weft.load(trained).card.metrics} == {"loss", "en", "xx", "en-xx"}


def test_the_folder_knows_its_languages_and_transformers_reads_it(trained: Path) -> None:
    model = weft.load(trained)
    assert model.config.languages == ("en", "xx") and model.config.language == 0
    config = json.loads((trained / "config.json").read_text())
    assert config["lang2id"] == {"en": 0, "xx": 1} and config["n_langs"] == 2
    peer = transformers.AutoModelForMaskedLM.from_pretrained(trained).double().eval()
    assert model.opened.tokenizer is not None
    ids = model.opened.tokenizer.encode("tom likes the dog").ids
    for language in ("en", "xx"):
        network = weft.load(trained, language=language).network.double()
        langs = torch.full((1, len(ids)), ("en", "xx").index(language))
        with torch.inference_mode():
            expected = peer(torch.tensor([ids]), langs=langs).logits[0]
            hidden = network(torch.tensor(ids), Rows.of([len(ids)]))
            assert (network.words(hidden) - expected).abs().max() < 1e-5  # its softmax is in float32


def test_pairs_as_the_peer_reads_them_with_positions_and_languages(trained: Path) -> None:
    """Both texts in one row, each counted from 0: what `langs` and `position_ids` say to transformers."""
    peer = transformers.AutoModel.from_pretrained(trained).eval()
    tokens, positions, langs = [0, 9, 8, 1, 0, 7, 9, 6, 1], [0, 1, 2, 3, 0, 1, 2, 3, 4], [0] * 4 + [1] * 5
    batch = Ragged.of([tokens])
    network = weft.load(trained).network
    with torch.inference_mode():
        expected = peer(
            torch.tensor([tokens]), langs=torch.tensor([langs]), position_ids=torch.tensor([positions])
        ).last_hidden_state[0]
        found = network(batch.tokens, batch.rows, torch.tensor(langs), positions=torch.tensor(positions))
        assert (found - expected).abs().max() < 1e-5
        assert (network(batch.tokens, batch.rows, torch.tensor(langs)) - expected).abs().max() > 1e-3


def test_a_run_that_is_resumed_ends_as_the_unbroken_one(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "again")
    for step in (8, 12):
        shutil.rmtree(tmp_path / "again" / "run" / "checkpoints" / f"step-{step}")
    weft.resume(tmp_path / "again")
    both = [
        load_file(path / "run" / "checkpoints" / "step-12" / "model.safetensors")
        for path in (trained, tmp_path / "again")
    ]
    assert both[0].keys() == both[1].keys() and all(tensor.equal(both[1][name]) for name, tensor in both[0].items())


def test_a_base_goes_on_in_its_own_languages_only(trained: Path, texts: Path, tmp_path: Path) -> None:
    given = settings(texts, tmp_path / "more", text={"pairs": []}, training={"steps": 2})
    given |= {"model": {"base": str(trained)}, "tokenizer": {}}
    assert weft.pretrain(**given).config.languages == ("en", "xx")
    given = {**given, "text": {"files": [f"fr={texts / 'en.txt'}"]}, "out": str(tmp_path / "other")}
    with pytest.raises(UserError, match="fr is not a language of the model; it has en, xx"):
        weft.pretrain(**given)


@pytest.mark.parametrize("family", ["xlm-roberta", "bert"])
def test_encoders_without_language_embeddings_learn_so_too(family: str, texts: Path, tmp_path: Path) -> None:
    model = weft.pretrain(**settings(texts, tmp_path / "m", family, training={"steps": 3, "evaluate_every": 3}))
    assert {metric.name for metric in model.card.metrics} == {"loss", "en", "xx", "en-xx"}
    with pytest.raises(UserError, match=f"language 'en': {family} has no languages to choose from"):
        weft.load(tmp_path / "m", language="en")


def test_a_causal_model_of_several_languages_generates(texts: Path, tmp_path: Path) -> None:
    given = settings(texts, tmp_path / "m", text={"pairs": []}, objective={"name": "next"}, training={"steps": 40})
    model = weft.pretrain(**given)
    assert model.opened.family.name == "xlm-clm" and model.config.causal and model.config.languages == ("en", "xx")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "xlm"
    tokenizer, foreign = model.opened.tokenizer, list[float]()
    assert tokenizer is not None and model("the", min_tokens=4, max_tokens=4).text != "the"
    ends = [number for number in range(tokenizer.vocabulary) if (tokenizer.token(number) or "").endswith("x")]
    for name in ("en", "xx"):
        logits = weft.load(tmp_path / "m", language=name).logits("red")[0][-1]
        foreign.append(float(logits.softmax(-1)[ends].sum()))
    assert foreign[1] > foreign[0], "the language decides which words come next"


def test_fine_tuning_keeps_its_language(trained: Path, tmp_path: Path) -> None:
    rows = [{"text": "mot sekilx ehtx godx", "label": "a"}, {"text": "yramx seesx taxc", "label": "b"}] * 8
    options = {"training": {"epochs": 1, "batch": 8, "threads": 1}, "out": str(tmp_path / "m")}
    task = {"name": "classify", "language": "xx", "baseline": False}
    model = weft.finetune(rows, task=task, base=str(trained), **options)
    assert model.config.language == 1 and weft.load(tmp_path / "m").config.language == 1
    assert json.loads((tmp_path / "m" / "config.json").read_text())["lang_id"] == 1
    with pytest.raises(UserError, match="language 'fr' is not one of the model's: en, xx"):
        weft.finetune(
            rows, task={**task, "language": "fr"}, base=str(trained), **{**options, "out": str(tmp_path / "n")}
        )


MISTAKES = [
    ((), "objective mlm+tlm does not fit gpt2", "gpt2"),
    (("--objective", "mlm"), "--pairs is for objectives tlm and mlm+tlm, not mlm", "xlm"),
    (("--objective", "tlm"), "objective tlm reads no --text; for both, --objective mlm+tlm", "xlm"),
    (("--text", "{0}/xx.txt"), "xx.txt: which language is it? give every text as LANGUAGE=FILE", "xlm"),
    (("--text", "en-us={0}/xx.txt"), "--text en-us=FILE: the name of a language is letters", "xlm"),
    (("--pairs", "{0}/pairs.tsv"), "pairs.tsv: which languages are they? give en-de=FILE", "xlm"),
    (("--pairs", "en={0}/pairs.tsv"), "--pairs en=FILE: name the two languages of its columns", "xlm"),
    (("--pairs", "en-fr={0}/en.txt"), "en.txt line 1: one column; a pair is two texts with a tab between them", "xlm"),
    (("--pairs", "en-fr={0}/none.tsv"), "none.tsv: no such file", "xlm"),
    (("--dev", "fr={0}/xx.txt"), "--dev: fr has no text to learn from; it has en", "xlm"),
    (("--alpha", "1.5"), "alpha must be between 0 and 1", "xlm"),
    (("--rows", "carried"), "rows carried", "xlm"),
]


@pytest.mark.parametrize("flags, message, family", MISTAKES, ids=lambda value: str(value)[:30])
def test_mistakes_get_one_line(
    flags: tuple[str, ...], message: str, family: str, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["--text", f"en={texts}/en.txt", "--pairs", f"en-xx={texts}/pairs.tsv", "--out", str(tmp_path / "m")]
    more = [flag.format(texts) for flag in flags]
    assert command(["pretrain", "--model", family, "--size", "1x64", "--steps", "1", *usual, *more]) == 2
    errors = capsys.readouterr().err
    assert message in errors and "Traceback" not in errors, errors
    assert not (tmp_path / "m").exists()


def test_no_pairs_and_empty_pairs(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.tsv").write_text("")
    usual = ["pretrain", "--model", "xlm", "--size", "1x64", "--out", str(tmp_path / "m")]
    assert command([*usual, "--pairs", f"en-xx={tmp_path / 'empty.tsv'}"]) == 2
    assert "empty.tsv: there is no text to learn" in capsys.readouterr().err
    assert command([*usual, "--text", f"en={texts}/en.txt", "--objective", "tlm"]) == 2
    assert "objective tlm learns from sentence pairs: give --pairs en-de=FILE" in capsys.readouterr().err
    assert command(["fill", "nowhere", "--language", "en"]) == 2

"""Folders of encoder-decoders: every way to tie and two vocabularies, saved bit by bit; what published ones hold."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import weft
from tests.parity.test_sequences import APART, PEERS, ours, peer_of, said
from tests.text.bilingual import bilingual, german, numbers_of
from tests.text.samples import lines
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import open_folder, save_folder
from weft.cli.main import run
from weft.errors import UserError
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

SMALL = {"context": 40, "width": 32, "layers": 2, "heads": 2, "inner": 48}
SPECIALS = FAMILIES["transformer"].specials


def vocabulary(texts: list[str], size: int) -> Tokenizer:
    return learn(texts, "unigram", size, specials=SPECIALS, around="t5")


@pytest.fixture(scope="module")
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    return vocabulary(lines(100), 120), vocabulary(german(100), 90)


def equal(first: Any, second: Any) -> None:
    state = second.network.state_dict()
    assert first.config == second.config and [*first.network.state_dict()] == [*state]
    assert all(torch.equal(tensor, state[name]) for name, tensor in first.network.state_dict().items())


@pytest.mark.parametrize("norm_place", ["after", "before"])
@pytest.mark.parametrize("apart", [False, True], ids=["joint", "apart"])
@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_every_way_to_tie(tied: str, apart: bool, norm_place: str, tokenizers: Any, tmp_path: Path) -> None:
    source, target = tokenizers
    settings = {**SMALL, "tied": tied, "norm_place": norm_place}
    if apart and tied == "all":
        with pytest.raises(UserError, match="tied=all.*needs one vocabulary"):
            weft.new("transformer", source, target_tokenizer=target, settings=settings)
        return
    model = weft.new("transformer", source, target_tokenizer=target if apart else None, settings=settings)
    assert model.config.vocabulary == (target if apart else source).vocabulary
    assert model.config.source_vocabulary == (source.vocabulary if apart else None)
    assert model.config.begin == (target if apart else source).id_of("start") == 3
    model.save(tmp_path / "m")
    assert (tmp_path / "m" / "target_tokenizer" / "tokenizer.json").exists() == apart
    found = weft.load(tmp_path / "m")
    equal(model.opened, found.opened)
    assert found.task == "translate" and found.tokenizer is not None
    assert found.tokenizer.ids(["The looms"]) == source.ids(["The looms"])
    if apart:
        assert found.target_tokenizer is not None
        assert found.target_tokenizer.ids(["Die Weber"]) == target.ids(["Die Weber"])
        assert found.target_tokenizer.vocabulary != found.tokenizer.vocabulary
    else:
        assert found.target_tokenizer is None and found.opened.writer is found.tokenizer
    found.save(tmp_path / "again")
    for name in ("config.json", "model.safetensors", "weft.json"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_two_vocabularies_part_the_tables(tokenizers: Any) -> None:
    source, target = tokenizers
    for family in ("transformer", "marian"):
        model = weft.new(family, source, target_tokenizer=target, settings=SMALL)
        assert model.config.tied == "decoder" and model.network.source_tokens.weight.shape[0] == source.vocabulary
    assert weft.new("transformer", source, target_tokenizer=source, settings=SMALL).config.tied == "all"
    with pytest.raises(UserError, match="a second tokenizer is for encoder-decoders"):
        weft.new("gpt2", source, target_tokenizer=target, size="1x64")


def test_the_token_that_writing_begins_from(tokenizers: Any, tmp_path: Path) -> None:
    """And those that it ends with and never writes: transformers has to be told all three."""
    source, _ = tokenizers
    model = weft.new("marian", source, settings=SMALL)
    assert model.config.begin == source.id_of("padding") == 0 and model.opened.never == (0,)
    with torch.no_grad():
        model.network.heads["words"].bias[0] += 100  # would write padding if it could
    model.save(tmp_path / "m")
    back = transformers.MarianMTModel.from_pretrained(tmp_path / "m")
    written = back.generate(torch.tensor([[5, 6, 1]]), max_length=5)[0].tolist()
    assert written[0] == 0 and 0 not in written[1:] and written.index(1) == len(written) - 1
    assert weft.new("transformer", source, settings=SMALL).opened.never == ()
    bare = learn(lines(50), "unigram", 80, specials={"unknown": "<unk>", "end": "</s>"})
    with pytest.raises(UserError, match="marian begins to write from its padding token, and this vocabulary has none"):
        weft.new("marian", bare, settings=SMALL)
    assert weft.new("marian", bare, settings={**SMALL, "begin": 7}).config.begin == 7
    assert weft.new("opus-mt", source, settings=SMALL).config.vocabulary == source.vocabulary  # its own begin is 58100


@pytest.mark.parametrize("apart", [False, True], ids=["joint", "apart"])
def test_a_marian_folder_with_its_vocabularies(apart: bool, tmp_path: Path) -> None:
    """Theirs to ours and back: transformers opens model and vocabularies again, and writes the same."""
    peer = PEERS["marian"]
    folder = bilingual(tmp_path / "a", apart)
    size = len(numbers_of(folder))
    written = len(json.loads((folder / "target_vocab.json").read_text())) if apart else size
    begin = written - 1
    settings = {"vocab_size": size, "decoder_start_token_id": begin, "pad_token_id": begin, "eos_token_id": 0}
    settings |= {"forced_eos_token_id": 0, **({**APART, "decoder_vocab_size": written} if apart else {})}
    made = peer_of(peer, peer.full, settings, 0.3, torch.float32)
    made.generation_config.bad_words_ids = [[begin]]
    made.generation_config.num_beams = 2
    made.generation_config.max_length = 11
    made.save_pretrained(folder)
    opened = open_folder(folder)
    assert opened.tokenizer is not None and opened.target_tokenizer is not None
    assert opened.never == (begin,) and opened.token_of("end") == 0
    save_folder(tmp_path / "b", opened)
    assert not (tmp_path / "b" / "target_tokenizer").exists()
    equal(opened, open_folder(tmp_path / "b"))
    back = transformers.MarianMTModel.from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    inputs = tokenizer(["The looms weave", "rivers"], return_tensors="pt", padding=True)
    ids = [row[mask.bool()].tolist() for row, mask in zip(inputs.input_ids, inputs.attention_mask, strict=True)]
    assert opened.tokenizer.ids(["The looms weave", "rivers"]) == ids
    assert torch.equal(back.generate(**inputs), made.generate(**inputs))
    assert back.generation_config.num_beams == 2 and back.generation_config.max_length == 11
    fresh = weft.new("marian", folder, settings=SMALL)
    assert fresh.config.tied == ("decoder" if apart else "all") and fresh.config.begin == begin
    fresh.save(tmp_path / "c")
    assert (tmp_path / "c" / "vocab.json").read_bytes() == (folder / "vocab.json").read_bytes()
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "c", attn_implementation="eager").eval()
    found = again.generate(**inputs, max_length=6)
    assert found[0, 0] == begin and not (found[:, 1:5] == begin).all()


OPUS = {  # what opus-mt-en-de says beside its sizes
    "_num_labels": 3, "activation_dropout": 0.0, "add_bias_logits": False, "add_final_layer_norm": False,
    "bad_words_ids": [[0]], "classif_dropout": 0.0, "classifier_dropout": 0.0, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0, "extra_pos_embeddings": 101, "force_bos_token_to_be_generated": False,
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "is_encoder_decoder": True, "max_length": 512,
    "normalize_before": False, "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 2,
    "static_position_embeddings": True, "use_cache": True, "gradient_checkpointing": False,
}  # fmt: skip


def test_an_old_folder_with_copies_and_sinusoids(tmp_path: Path) -> None:
    peer = PEERS["marian"]
    made = peer_of(peer, peer.full, {}, 0.3, torch.float32)
    made.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **OPUS}))
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors["model.shared.weight"].clone()
    tensors["model.encoder.embed_positions.weight"] = torch.zeros(40, 48)
    save_file(tensors, tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = open_folder(tmp_path)
    with torch.inference_mode():
        assert (ours(opened) - said(made)).abs().max() < 1e-4
    save_folder(tmp_path / "b", opened)
    assert json.loads((tmp_path / "b" / "config.json").read_text())["num_beams"] == 6
    for name in ("model.encoder.embed_tokens.weight", "lm_head.weight"):
        broken = {**tensors, name: tensors[name] + 1}
        save_file(broken, tmp_path / "model.safetensors")
        with pytest.raises(UserError, match="stored a second time and not equal to tokens.weight"):
            open_folder(tmp_path)
    del tensors["model.shared.weight"]  # under its other names alone
    save_file(tensors, tmp_path / "model.safetensors")
    equal(opened, open_folder(tmp_path))
    tensors["final_logits_bias"] = tensors["final_logits_bias"][0]
    save_file(tensors, tmp_path / "model.safetensors")
    open_folder(tmp_path)
    tensors["final_logits_bias"] = torch.zeros(2, 101)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"heads.words.bias: checkpoint \(2, 101\), model \(101,\)"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"decoder_vocab_size": 60}, "needs one vocabulary, not 101 and 60"),
        ({"decoder_vocab_size": "x" * 500}, "needs one vocabulary"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"normalize_before": True}, "normalize_before is True; only False is supported"),
        ({"static_position_embeddings": False}, "only True is supported"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False; only True is supported"),
        ({"decoder_attention_heads": 5}, "width 48 cannot be cut into 5 equal heads of a decoder"),
        ({"decoder_attention_heads": 0}, "decoder_heads must be between 1 and"),
        ({"decoder_layers": "six"}, "decoder_layers must be"),
        ({"decoder_start_token_id": 101}, "must be a token of the vocabulary of 101, not 101"),
        ({"activation_function": "quick_gelu"}, "activation_function is 'quick_gelu'; supported are"),
        ({"encoder_ffn_dim": 1 << 40}, "inner must be between 1 and"),
        ({"dropout": None}, "dropout must be a number"),
    ],
)
def test_configs_that_no_model_here_has(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    PEERS["marian"].config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["MarianMTModel"], **change}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=message) as caught:
        open_folder(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_vocabulary_that_is_too_large(tokenizers: Any, tmp_path: Path) -> None:
    source, target = tokenizers
    with pytest.raises(UserError, match="target tokenizer has 90 tokens, the model only 50 for it"):
        weft.new("transformer", source, target_tokenizer=target, settings={**SMALL, "vocabulary": 50})
    settings = {**SMALL, "source_vocabulary": 60, "tied": "none"}
    with pytest.raises(UserError, match="source tokenizer has 120 tokens, the model only 60 for it"):
        weft.new("transformer", source, target_tokenizer=target, settings=settings)
    with pytest.raises(UserError, match="the tokenizer has 120 tokens, the model only 50"):
        weft.new("transformer", source, settings={**SMALL, "vocabulary": 50})
    weft.new("transformer", source, target_tokenizer=target, settings=SMALL).save(tmp_path / "m")
    target.save(tmp_path / "m")
    source.save(tmp_path / "m" / "target_tokenizer")
    with pytest.raises(UserError, match="m: the target tokenizer has 120 tokens, the model only 90 for it"):
        open_folder(tmp_path / "m")


def test_a_swapped_block_keeps_its_vocabularies(tmp_path: Path) -> None:
    folder = bilingual(tmp_path / "a")
    weft.new("marian", folder, settings={**SMALL, "norm_place": "before"}).save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "weft-marian"
    opened = open_folder(tmp_path / "m")
    assert opened.target_tokenizer is not None and opened.never == (opened.config.begin,)


SIZES = ("transformer-base", "transformer-big", "opus-mt")


def test_on_the_command_line(tokenizers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tokenizers
    source.save(tmp_path / "en")
    target.save(tmp_path / "de")

    def told(*words: str) -> str:
        status = run([*words])
        heard = capsys.readouterr()
        assert status == 0, heard.err
        return heard.out

    sizes = {name: json.loads(told("info", name, "--json"))["parameters"] for name in SIZES}
    assert sizes["opus-mt"] == pytest.approx(74e6, rel=0.01)  # as published
    assert sizes["transformer-base"] == pytest.approx(65e6, rel=0.05)  # Table 3 of the paper
    assert sizes["transformer-big"] == pytest.approx(213e6, rel=0.05)
    both = ("--tokenizer", str(tmp_path / "en"), "--target-tokenizer", str(tmp_path / "de"))
    small = [word for key, value in SMALL.items() for word in ("--set", f"model.{key}={value}")]
    for family in ("transformer", "marian"):
        out = str(tmp_path / family)
        assert "fresh weights" in told("new", "--model", family, *both, *small, "--out", out)
        found = json.loads(told("info", out, "--json"))
        assert found["task"] == "translate" and found["sizes"]["source_vocabulary"] == 120
        assert found["tokenizer"]["vocabulary"] == 120 and found["target tokenizer"]["vocabulary"] == 90
        assert "target tokenizer" in told("info", out)


def test_a_new_word_head(tmp_path: Path) -> None:
    """On a network saved without one; of its own where nothing is tied."""
    for tied in ("decoder", "none"):
        settings = {**SMALL, "vocabulary": 101, "tied": tied}
        for family in ("transformer", "marian"):
            out = tmp_path / f"{family}-{tied}"
            weft.new(family, settings=settings, heads={}).save(out)
            opened = open_folder(out, new_heads={"words": 101})
            decoder = opened.network.heads["words"].decoder
            assert (decoder is None) == (tied == "decoder")
            if decoder is not None:
                scale = 0.02 if family == "marian" else 32**-0.5
                assert decoder.weight.std().item() == pytest.approx(scale, rel=0.1)
            weft.new(family, settings=settings).save(tmp_path / f"{family}-{tied}-words")
            again = open_folder(tmp_path / f"{family}-{tied}-words", new_heads={"words": 101})
            assert dict(again.heads) == {"words": 101}

"""Published folders go in and come out: bit-equal tensors, the same config, opened by transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import weft
from tests.parity.test_heads import TEXTS, outputs_of, peer_of
from tests.table import CASES, PEERED
from weft.checkpoint import tensors
from weft.checkpoint.card import read_card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import open_folder, save_folder
from weft.errors import UserError

AUTO = {
    "words": "AutoModelForMaskedLM",
    "next": "AutoModelForNextSentencePrediction",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "choose": "AutoModelForMultipleChoice",
}


def auto_class(family: str, architecture: str, heads: tuple[str, ...]) -> Any:
    """The Auto class that a user would open this folder with."""
    if not heads:
        return transformers.AutoModel
    speaks = FAMILIES[family].generates
    if len(heads) > 1 or (speaks and heads == ("choose",)):
        return getattr(transformers, architecture)
    if speaks and heads == ("words",):
        return transformers.AutoModelForCausalLM
    return getattr(transformers, AUTO[heads[0]])


@pytest.mark.parametrize("family, architecture", [(name, head) for name, case in CASES.items() for head in case.heads])
def test_in_and_out_is_bit_equal(family: str, architecture: str, tmp_path: Path) -> None:
    case = CASES[family]
    peer = peer_of(case, architecture, "usual", 0.3, torch.float32)
    peer.save_pretrained(tmp_path / "peer")
    weft.load(tmp_path / "peer").save(tmp_path / "copy")
    kind = auto_class(family, architecture, case.heads[architecture])
    back, report = kind.from_pretrained(tmp_path / "copy", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert type(back).__name__ == architecture
    state = peer.state_dict()
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    for key, value in peer.config.to_dict().items():
        if key not in ("_name_or_path", "dtype", "transformers_version", "architectures"):
            assert back.config.to_dict()[key] == value, key
    stored = load_file(tmp_path / "peer" / "model.safetensors")
    copied = load_file(tmp_path / "copy" / "model.safetensors")
    tied = {"lm_head.weight", "transformer.tokens_embed.weight"}
    assert {*stored} - tied == {*copied} - tied


def test_all_the_ways_to_spell_a_name(tmp_path: Path) -> None:
    """With and without prefix, with the old gamma and beta, with tied copies and buffers, in shards."""
    peer = peer_of(CASES["bert"], "BertForPreTraining", "usual", 0.3, torch.float32)
    peer.save_pretrained(tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    old = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    old["embeddings.position_ids"] = torch.arange(40)[None]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text((tmp_path / "a" / "config.json").read_text())
    save_file(old, tmp_path / "b" / "model.safetensors")
    first, second = open_folder(tmp_path / "a"), open_folder(tmp_path / "b")
    state = first.network.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in second.network.state_dict().items())
    save_folder(tmp_path / "shards", first, shard=20_000)
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 3
    third = open_folder(tmp_path / "shards")
    assert all(torch.equal(state[name], tensor) for name, tensor in third.network.state_dict().items())
    back = transformers.BertForPreTraining.from_pretrained(tmp_path / "shards")
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in peer.state_dict().items())
    # A tied copy that is not equal is a fault, not a choice.
    old["cls.predictions.decoder.weight"][0, 0] += 1
    save_file(old, tmp_path / "b" / "model.safetensors")
    with pytest.raises(UserError, match="stored a second time and not equal"):
        open_folder(tmp_path / "b")


def test_untied_words(tmp_path: Path) -> None:
    words = {name: next(kind for kind, heads in CASES[name].heads.items() if heads == ("words",)) for name in PEERED}
    for family, architecture in words.items():
        if family == "openai-gpt":
            continue  # always tied
        case = CASES[family]
        config = case.peer(vocabulary=101, context=40, width=48, layers=1, heads=3, inner=192)
        config.tie_word_embeddings = False
        peer = getattr(transformers, architecture)(config).eval()
        with torch.no_grad():
            for name, parameter in peer.named_parameters():  # an untied word head has two biases, and uses one
                if name.startswith(("cls.predictions", "lm_head", "predictions", "vocab_")):
                    parameter.normal_(0.0, 0.3)
        peer.save_pretrained(tmp_path / family)
        opened = open_folder(tmp_path / family)
        assert opened.config.tied is False
        from weft.nn.rows import Ragged

        batch, rows = Ragged.of(TEXTS), [torch.tensor([text]) for text in TEXTS]
        more = [{case.channel: torch.zeros_like(row)} if case.channel == "langs" else {} for row in rows]
        with torch.inference_mode():
            found = opened.network.words(opened.network(batch.tokens, batch.rows))
            expected = torch.cat([peer(row, **each).logits[0] for row, each in zip(rows, more, strict=True)])
        assert (found - expected).abs().max() < 1e-4
        save_folder(tmp_path / f"{family}-copy", opened)
        back = getattr(transformers, architecture).from_pretrained(tmp_path / f"{family}-copy")
        assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in peer.state_dict().items())


def test_labels_go_through(tmp_path: Path) -> None:
    config = CASES["bert"].peer(vocabulary=101, context=40, width=48, layers=1, heads=3, inner=192)
    config.id2label = {0: "good", 1: "bad", 2: "so-so"}
    config.label2id = {"good": 0, "bad": 1, "so-so": 2}
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "a")
    model = weft.load(tmp_path / "a")
    assert model.card.labels == ("good", "bad", "so-so") and model.task == "classify"
    model.save(tmp_path / "b")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "b").id2label == config.id2label
    assert weft.load(tmp_path / "b").card.labels == model.card.labels
    card = json.loads((tmp_path / "b" / "weft.json").read_text())
    card["labels"] = ["good", "so-so", "bad"]
    (tmp_path / "b" / "weft.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match="labels of weft.json and config.json differ: 'so-so' against 'bad'"):
        weft.load(tmp_path / "b")


def test_a_new_head_is_the_only_thing_that_may_be_missing(tmp_path: Path) -> None:
    peer = peer_of(CASES["bert"], "BertModel", "usual", 0.3, torch.float32)
    peer.save_pretrained(tmp_path / "a")
    opened = open_folder(tmp_path / "a", new_heads={"classify": 4})
    assert opened.network.heads["classify"].output.weight.shape == (4, 48)
    assert opened.network.heads["classify"].output.weight.abs().max() > 0
    assert opened.network.heads["classify"].output.bias.abs().max() == 0
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    del tensors["encoder.layer.1.output.LayerNorm.bias"], tensors["encoder.layer.0.attention.self.key.weight"]
    tensors["surprise"] = torch.zeros(1)
    tensors["embeddings.word_embeddings.weight"] = torch.zeros(100, 48)
    save_file(tensors, tmp_path / "a" / "model.safetensors")
    with pytest.raises(UserError) as caught:
        open_folder(tmp_path / "a", new_heads={"classify": 4})
    message = str(caught.value)
    assert "missing: encoder.layer.0.attention.self.key.weight, encoder.layer.1.output.LayerNorm.bias" in message
    assert "extra: surprise" in message
    assert "tokens.weight: checkpoint (100, 48), model (101, 48)" in message


def test_more_heads_than_the_architecture_says(tmp_path: Path) -> None:
    """bert-base-uncased is published as a masked language model but holds the other pre-training head too."""
    peer = peer_of(CASES["bert"], "BertForPreTraining", "usual", 0.3, torch.float32)
    peer.save_pretrained(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["architectures"] = ["BertForMaskedLM"]
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    opened = open_folder(tmp_path / "a")
    assert set(opened.heads) == {"words", "next"}


def test_a_swapped_block_is_not_passed_off_as_published(tmp_path: Path) -> None:
    model = weft.new("gpt2", size="1x64", settings={"vocabulary": 50, "positions": "rotary"})
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "weft-gpt2"
    with pytest.raises(ValueError):
        transformers.AutoConfig.from_pretrained(tmp_path / "m")
    assert weft.load(tmp_path / "m").config.positions == "rotary"
    plain = weft.new("gpt2", size="1x64", settings={"vocabulary": 50})
    plain.save(tmp_path / "p")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "p") is not None
    with pytest.raises(UserError, match="already there and not empty"):
        plain.save(tmp_path / "p")


def test_outputs_survive_the_journey(tmp_path: Path) -> None:
    peer = peer_of(CASES["gpt2"], "GPT2LMHeadModel", "usual", 0.3, torch.float32)
    peer.save_pretrained(tmp_path / "a")
    weft.load(tmp_path / "a").save(tmp_path / "b")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    with torch.inference_mode():
        before, after = (outputs_of(CASES["gpt2"], model, ("words",))["words"] for model in (peer, back))
    assert torch.equal(before, after)


def test_a_pooling_that_the_choose_head_does_not_have(tmp_path: Path) -> None:
    config = CASES["gpt2"].peer(vocabulary=101, context=40, width=48, layers=1, heads=3, inner=192)
    config.summary_type = "mean"
    transformers.GPT2DoubleHeadsModel(config).save_pretrained(tmp_path / "a")
    with pytest.raises(UserError, match="summary_type is mean; only cls_index or last is supported"):
        open_folder(tmp_path / "a")


def test_a_bert_without_its_pooler(tmp_path: Path) -> None:
    weft.new("bert", size="1x64", settings={"vocabulary": 50, "pooler": False}).save(tmp_path / "m")
    assert dict(open_folder(tmp_path / "m").heads) == {"words": 50}


HEADS = ("classify", "choose", "tag", "answer", "words")


@pytest.mark.parametrize(
    "family, head", [(name, head) for name in CASES for head in FAMILIES[name].names.heads if head in HEADS]
)
def test_a_new_head_saved_and_opened_again(family: str, head: str, tmp_path: Path) -> None:
    """From a pre-trained folder with its own heads to one with the new head alone, which transformers opens too."""
    weft.new(family, size=CASES[family].size, settings={"vocabulary": 50}).save(tmp_path / "base")
    outputs = {"words": 50, "answer": 2, "choose": 1}.get(head, 3)
    opened = open_folder(tmp_path / "base", new_heads={head: outputs}, seed=5)
    assert dict(opened.heads) == {head: outputs}
    module = opened.network.heads[head]
    again = open_folder(tmp_path / "base", new_heads={head: outputs}, seed=5).network.heads[head]
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
    if head == "words" and "norm" in dict(module.named_children()):
        assert module.bias.abs().max() == 0
        assert torch.equal(module.norm.weight, torch.ones_like(module.norm.bias))
    save_folder(tmp_path / "m", opened)
    loaded = open_folder(tmp_path / "m")
    assert dict(loaded.heads) == {head: outputs}
    state = opened.network.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.network.state_dict().items())
    architecture = json.loads((tmp_path / "m" / "config.json").read_text())["architectures"][0]
    if architecture in FAMILIES[family].architectures:
        kind = getattr(transformers, architecture)
        _, report = kind.from_pretrained(tmp_path / "m", output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"]
    else:
        assert architecture == f"Weft-{family}"  # no published class has this head alone


def test_a_new_head_replaces_one_of_the_same_name(tmp_path: Path) -> None:
    config = CASES["bert"].peer(vocabulary=101, context=40, width=48, layers=1, heads=3, inner=192)
    config.id2label = {0: "a", 1: "b"}
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "a")
    before = open_folder(tmp_path / "a").network.heads["classify"].output.weight
    for outputs in (2, 5):
        opened = open_folder(tmp_path / "a", new_heads={"classify": outputs})
        assert opened.card.labels is None and opened.network.heads["classify"].output.weight.shape == (outputs, 48)
        assert not torch.equal(opened.network.heads["classify"].output.weight[:2], before)
        save_folder(tmp_path / str(outputs), opened)
        assert "id2label" not in json.loads((tmp_path / str(outputs) / "config.json").read_text())


def test_heads_that_no_published_class_has_together(tmp_path: Path) -> None:
    weft.new("gpt2", size="1x64", settings={"vocabulary": 50}).save(tmp_path / "base")
    opened = open_folder(tmp_path / "base", new_heads={"classify": 3, "tag": 4}, keep=["words"])
    save_folder(tmp_path / "m", opened)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "weft-gpt2"
    loaded = open_folder(tmp_path / "m")
    assert dict(loaded.heads) == {"words": 50, "classify": 3, "tag": 4}


def test_a_word_head_without_an_architecture(tmp_path: Path) -> None:
    for tied in (True, False):
        peer = transformers.GPT2LMHeadModel(
            CASES["gpt2"].peer(vocabulary=101, context=40, width=48, layers=1, heads=3, inner=192)
        )
        peer.save_pretrained(tmp_path / str(tied))
        path = tmp_path / str(tied)
        config = json.loads((path / "config.json").read_text())
        del config["architectures"]
        (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
        tensors = load_file(path / "model.safetensors")
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone() + (0 if tied else 1)
        save_file(tensors, path / "model.safetensors")
        opened = open_folder(path)
        assert dict(opened.heads) == {"words": 101} and opened.config.tied is tied


def test_a_base_whose_table_is_stored_under_the_heads_name(tmp_path: Path) -> None:
    """OpenAIGPTDoubleHeadsModel stores its tied table as the word head alone; without that head it is a table still."""
    peer = peer_of(CASES["openai-gpt"], "OpenAIGPTDoubleHeadsModel", "usual", 0.3, torch.float32)
    peer.save_pretrained(tmp_path / "a")
    assert "transformer.tokens_embed.weight" not in load_file(tmp_path / "a" / "model.safetensors")
    opened = open_folder(tmp_path / "a", new_heads={"classify": 3})
    assert torch.equal(opened.network.tokens.weight, peer.state_dict()["lm_head.weight"])


def test_mixed_precisions_lose_nothing(tmp_path: Path) -> None:
    peer = peer_of(CASES["gpt2"], "GPT2Model", "usual", 0.3, torch.float16)
    peer.ln_f.double()
    peer.save_pretrained(tmp_path / "a")
    opened = open_folder(tmp_path / "a")
    assert opened.network.final_norm.weight.dtype == torch.float64
    assert torch.equal(opened.network.final_norm.weight, peer.ln_f.weight)


def test_a_full_disk_is_named_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensors, "save_tensors", full)
    with pytest.raises(UserError, match=f"{tmp_path}/model.safetensors: cannot be written: no space left"):
        tensors.write_tensors(tmp_path, {"a": torch.zeros(1)}, 1 << 20)


def test_equal_tensors_give_equal_files_that_the_library_reads(tmp_path: Path) -> None:
    """Whatever process writes them: the library's own writer orders metadata by chance."""
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int16, torch.uint8)
    stored = {f"b.{n}": torch.arange(6).reshape(2, 3).to(kind) for n, kind in enumerate(kinds)}
    stored |= {"bool": torch.tensor([True, False]), "none": torch.empty(0, 4), "number": torch.tensor(1.5)}
    stored["cut"] = torch.arange(12.0).reshape(3, 4).t()  # not contiguous
    metadata = {"format": "pt", "one": "1", "two": "2", "three": "é"}
    code = (
        "import sys, torch; from weft.checkpoint.tensors import save_tensors, read_file; from pathlib import Path\n"
        f"save_tensors(Path(sys.argv[2]), read_file(Path(sys.argv[1])), {metadata!r})"
    )
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    tensors.save_tensors(one, dict(reversed(stored.items())), metadata)
    subprocess.run([sys.executable, "-c", code, str(one), str(two)], check=True)
    assert one.read_bytes() == two.read_bytes()
    again = load_file(one)
    assert again.keys() == stored.keys()
    assert all(again[name].dtype == x.dtype and torch.equal(again[name], x) for name, x in stored.items())
    with safe_open(one, "pt") as file:
        assert file.metadata() == metadata
    assert (8 + int.from_bytes(one.read_bytes()[:8], "little")) % tensors.ALIGNED == 0


def test_a_card_of_format_1_is_read(tmp_path: Path) -> None:
    old = {"format": 1, "weft": "0.1.0", "task": "summarise", "normalise": True, "pooling": "mean"}
    old["window"] = {"length": 8, "stride": 4, "long": "cut"}
    (tmp_path / "weft.json").write_text(json.dumps(old))
    card = read_card(tmp_path)
    assert card is not None and (card.format, card.task, card.normalize) == (2, "summarize", True)
    assert card.window is not None and card.window.long == "truncate"
    (tmp_path / "weft.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(UserError, match="format is 3; this version of Weft reads 2"):
        read_card(tmp_path)

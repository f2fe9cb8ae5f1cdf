"""What RoBERTa, ALBERT and DistilBERT have of their own: where each could be read wrongly without an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import weft
from tests.parity.test_heads import SIZES, TEXTS, peer_of
from tests.table import CASES, PEERED
from tests.training.small import batch_of
from weft.checkpoint.families import FAMILIES, measure, usual_heads
from weft.checkpoint.families import SIZES as PUBLISHED
from weft.checkpoint.folder import open_folder
from weft.checkpoint.formats import read_config, write_config
from weft.cli.main import run
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.training.loop import Operations

# As the published folders count them, word head and, where there is one, pooler and second pre-training head included.
PARAMETERS = {
    "roberta-base": 124_697_433,
    "xlm-roberta-base": 278_295_186,
    "distilbert-base": 66_985_530,
    "albert-base-v2": 11_813_810,
}


# All but those that it has given up: transfo-xl.
KNOWN = [name for name in CASES if FAMILIES[name].model_type in transformers.CONFIG_MAPPING]


@pytest.mark.parametrize("family", [name for name in KNOWN if FAMILIES[name].architectures])
def test_a_key_that_is_absent_means_what_the_published_code_takes_it_for(family: str) -> None:
    f = FAMILIES[family]
    config = transformers.AutoConfig.for_model(f.model_type)
    found = write_config(
        f.table, read_config(f.table, f.config, f.standard, {"model_type": f.model_type}, "config.json")
    )
    for key in set(f.table.read) - {"causal"}:  # which tells two families apart
        said = getattr(config, key, None)
        assert found[key] == said or found[key] is None or said is None, key


@pytest.mark.parametrize("family", PEERED)
def test_parameters_are_counted_as_the_peer_counts_them(family: str) -> None:
    case = CASES[family]
    for architecture, heads in case.heads.items():
        peer = peer_of(case, architecture, "usual", 0.02, torch.float32)
        config = case.config()
        if config.has("pooler"):
            config = replace(config, pooler=any("pooler" in name for name, _ in peer.named_parameters()))
        if config.has("choose_inner"):  # as many as the peer has labels
            config = replace(config, choose_inner=3)
        outputs = {"words": 101, "choose": 1, "answer": 2, "next": 2 if family == "bert" else 3}
        made = {head: outputs.get(head, 3) for head in heads}
        assert measure(FAMILIES[family], config, made).parameters == peer.num_parameters(), architecture


def test_a_layer_read_often_weighs_once_and_costs_each_time() -> None:
    albert, bert = (PUBLISHED[name] for name in ("albert-base-v2", "bert-base"))
    one, other = (measure(family, config, {"words": config.vocabulary}) for family, config in (albert, bert))
    assert one.parameters < 0.12 * other.parameters
    assert 0.6 < one.flops / other.flops < 1, "the narrow table of words is all that it saves"
    batch = batch_of("mlm", [7, 9])
    counts = [Operations(FAMILIES["albert"].network(CASES["albert"].config(layers=layers), {})) for layers in (1, 4)]
    for each in counts:
        each.add(batch)
    once, often = (each.total() for each in counts)
    words = 6.0 * 101 * 24 * len(batch.targets["words"])
    assert often - words == pytest.approx(4 * (once - words))


def test_the_context_is_what_a_text_may_be_long(tmp_path: Path) -> None:
    """514 rows of positions are a context of 512, and of 509 where padding is token 4."""
    for padding, context in ((1, 38), (4, 35)):
        config = transformers.RobertaConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=40, pad_token_id=padding, type_vocab_size=1,
        )  # fmt: skip
        peer = transformers.RobertaModel(config).eval()
        peer.save_pretrained(tmp_path / str(padding))
        opened = open_folder(tmp_path / str(padding))
        assert opened.config.context == context and opened.config.padding == padding
        batch = Ragged.of([[9] * context])
        with torch.inference_mode():
            expected = peer(batch.tokens[None]).last_hidden_state[0]
            assert (opened.network(batch.tokens, batch.rows) - expected).abs().max() < 1e-5
        longer = Ragged.of([[9] * (context + 1)])
        with pytest.raises(UserError, match=f"longer than the model's context of {context}"):
            opened.network(longer.tokens, longer.rows)
    assert PUBLISHED["roberta-base"][1].context == 512


def test_padding_comes_from_the_tokenizer(tmp_path: Path) -> None:
    """transformers counts positions from the padding token that the config names, so that must be the tokenizer's."""
    from weft.text.tokenizers.training import learn

    tokenizer = learn(["the weaver sang of the loom"] * 3, "wordpiece", 60)
    model = weft.new("roberta", tokenizer, size="1x64", settings={"context": 16})
    assert model.config.padding == tokenizer.id_of("padding") == 0
    model.save(tmp_path / "m")
    peer = transformers.AutoModel.from_pretrained(tmp_path / "m").eval()
    ids = torch.tensor(tokenizer.encode("the weaver sang").ids)
    with torch.inference_mode():
        expected = peer(ids[None]).last_hidden_state[0]
        assert (model.network(ids, Ragged.of([ids.tolist()]).rows) - expected).abs().max() < 1e-5


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("roberta", {"pad_token_id": "1"}, "pad_token_id (padding) must be a whole number"),
    ("roberta", {"pad_token_id": -3}, "pad_token_id (padding) must be between 0 and"),
    ("roberta", {"pad_token_id": 10**12}, "max_position_embeddings (context) must be between 1 and"),
    ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings (context) must be between 1 and"),
    ("roberta", {"max_position_embeddings": [514]}, "max_position_embeddings (context) must be a whole number"),
    ("roberta", {"max_position_embeddings": 500}, "positions.table.weight: checkpoint (18, 64), model (500, 64)"),
    ("xlm-roberta", {"architectures": ["RobertaModel"]}, "architecture 'RobertaModel' is not supported"),
    ("xlm", {"n_langs": 0}, "n_langs must be a number between 1 and"),
    ("xlm", {"n_langs": 10**9}, "n_langs must be a number between 1 and"),
    ("xlm", {"lang2id": {"en": 0, "de": 2}, "n_langs": 2}, "lang2id must give each of the 2 languages"),
    ("xlm", {"lang2id": {"en": 0, "de": 0}, "n_langs": 2}, "lang2id must give each of the 2 languages"),
    ("xlm", {"lang2id": [], "n_langs": 2}, "lang2id must give each of the 2 languages"),
    ("xlm", {"lang2id": {"en": 0}, "id2lang": {"0": "de"}}, "lang2id and id2lang do not agree"),
    ("xlm", {"n_langs": 2}, "missing: lang_embeddings.weight"),
    ("xlm", {"lang_id": 3}, "lang_id (language) must be one of"),
    ("xlm", {"use_lang_emb": "yes"}, "use_lang_emb must be true or false"),
    ("xlm", {"gelu_activation": 1}, "gelu_activation must be true or false"),
    ("xlm", {"asm": True}, "asm is True; only False is supported"),
    ("xlm", {"is_encoder": False}, "is_encoder is False; only True is supported"),
    ("xlm", {"model_type": "xlm-clm"}, "model_type 'xlm-clm' is not one of"),
    ("xlm", {"architectures": ["XLMForAnswering"]}, "did you mean 'XLMForQuestionAnswering'?"),
    ("xlm-clm", {"causal": "yes"}, "(causal) must be true or false"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups is 2; only 1 is supported"),
    ("albert", {"inner_group_num": 2}, "inner_group_num is 2; only 1 is supported"),
    ("albert", {"embedding_size": 0}, "embedding_size (embedding_width) must be between 1 and"),
    ("distilbert", {"n_heads": 7}, "width 64 cannot be cut into 7 equal heads"),
    ("distilbert", {"activation": "swiglu"}, "activation is 'swiglu'; supported are gelu"),
    ("distilbert", {"qa_dropout": 1.5}, "qa_dropout (answer_dropout) must be at least 0 and below 1"),
]


@pytest.mark.parametrize("family, values, message", HOSTILE, ids=lambda value: str(value)[:40])
def test_hostile_configs(
    family: str, values: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weft.new(family, size="1x64", settings={"vocabulary": 50, "context": 16}).save(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    assert run(["info", str(tmp_path / "m")]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.out == "" and "Traceback" not in said.err, said.err


def test_segments_that_a_family_does_not_have() -> None:
    """What a caller says of segments changes nothing where there is only one, or none."""
    batch = Ragged.of(TEXTS)
    segments = torch.ones_like(batch.tokens)
    for family in ("roberta", "distilbert", "albert"):
        network = FAMILIES[family].network(CASES[family].config(), {}).eval()
        network.initialize()
        same = torch.equal(network(batch.tokens, batch.rows, segments), network(batch.tokens, batch.rows))
        assert same == (family != "albert")


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "albert", "distilbert"])
def test_the_word_head_bends_as_published(family: str, tmp_path: Path) -> None:
    """By the activation of the layers; RoBERTa's always by the exact GELU."""
    case = CASES[family]
    config = case.peer(**SIZES["one layer"])
    setattr(config, next(iter(FAMILIES[family].table.values)), "tanh")
    architecture = next(kind for kind, heads in case.heads.items() if heads == ("words",))
    torch.manual_seed(0)
    peer = getattr(transformers, architecture)(config).double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, 0.3)
    peer.save_pretrained(tmp_path)
    network, batch = open_folder(tmp_path).network, Ragged.of(TEXTS)
    with torch.inference_mode():
        expected = torch.cat([peer(torch.tensor([text])).logits[0] for text in TEXTS])
        assert (network.words(network(batch.tokens, batch.rows)) - expected).abs().max() <= 1e-9


def test_a_table_that_began_as_sinusoids(tmp_path: Path) -> None:
    config = CASES["distilbert"].peer(**SIZES["one layer"])
    config.sinusoidal_pos_embds = True
    peer = transformers.DistilBertModel(config).eval()
    peer.save_pretrained(tmp_path / "a")
    model = weft.load(tmp_path / "a")
    assert model.config.positions == "learned"
    assert torch.equal(model.network.positions.table.weight, peer.embeddings.position_embeddings.weight)
    model.save(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["sinusoidal_pos_embds"] is True


@pytest.mark.parametrize(
    "family, architecture, head",
    [
        (name, kind, heads[0])
        for name, case in CASES.items()
        for kind, heads in case.heads.items()
        # To choose shares its names with another head, and nothing else tells them apart.
        if len(heads) == 1 and heads != ("choose",) and not FAMILIES[name].generates
    ],
)
def test_a_head_is_known_without_its_architecture(family: str, architecture: str, head: str, tmp_path: Path) -> None:
    peer_of(CASES[family], architecture, "usual", 0.02, torch.float32).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert list(open_folder(tmp_path).heads) == [head]


@pytest.mark.parametrize("family, place", [("distilbert", "attention"), ("albert", "feedforward")])
def test_where_nothing_is_dropped_out(family: str, place: str) -> None:
    """The published code has dropout after one of the two parts of a layer, not after both."""
    network = FAMILIES[family].network(CASES[family].config(dropout=0.5, attention_dropout=0.0), {}).train()
    network.initialize()
    other = {"attention": "feedforward", "feedforward": "attention"}[place]
    layer, rows = network.layers[0], Ragged.of([[1, 2, 3]]).rows
    x = torch.randn(3, 48)
    assert not torch.equal(layer(x, rows), layer(x, rows))
    setattr(layer, f"{other}_drop", torch.nn.Identity())
    assert torch.equal(layer(x, rows), layer(x, rows))


def test_one_layer_is_stored_once(tmp_path: Path) -> None:
    weft.new("albert", size="5x64", settings={"vocabulary": 50}).save(tmp_path / "m")
    names = load_file(tmp_path / "m" / "model.safetensors")
    assert sum("albert_layers" in name for name in names) == 16 and not any("groups.1" in name for name in names)


@pytest.mark.parametrize("size", PARAMETERS)
def test_published_sizes(size: str) -> None:
    family, config = PUBLISHED[size]
    assert measure(family, config, usual_heads(family, config)).parameters == PARAMETERS[size]

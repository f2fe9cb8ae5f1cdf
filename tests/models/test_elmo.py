"""ELMo against its formula written out, on weights in the published layout; its words, its objective, its mix."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.checkpoint.folder import open_folder
from weft.cli.main import run
from weft.data.masking import NOTHING, two_way
from weft.data.rows import Drawn
from weft.errors import UserError
from weft.exporters.onnx_export import write_onnx
from weft.nn.characters import characters_of, cut_words
from weft.nn.rows import Ragged
from weft.objectives.losses import BothWays
from weft.spelling import BEGIN, END, FILLING, FIRST_WORD, START, STOP
from weft.tasks.perplexity import perplexity
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.training import learn, word_bytes

OPTIONS: dict[str, Any] = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 5,
        "cell_clip": 0.4,
        "proj_clip": 0.2,
        "dim": 7,
        "n_layers": 3,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [3, 5]],
        "n_highway": 2,
        "embedding": {"dim": 4},
        "n_characters": 262,
        "max_characters_per_word": 12,
    },
}
SENTENCES = [["The", "café", "on", "3rd", "Antidisestablishmentarianism", "St", "."], ["a"], ["Hello", "wörld", "!"]]


def arrays(options: dict[str, Any] = OPTIONS, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under their published names, large enough for every clip and gate to matter."""
    generator = np.random.default_rng(seed)
    lstm, cnn = options["lstm"], options["char_cnn"]
    width, cell, total = lstm["projection_dim"], lstm["dim"], sum(count for _, count in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, cnn["embedding"]["dim"])}
    for number, (kernel, count) in enumerate(cnn["filters"]):
        shapes |= {f"CNN/W_cnn_{number}": (1, kernel, cnn["embedding"]["dim"], count), f"CNN/b_cnn_{number}": (count,)}
    for number in range(cnn["n_highway"]):
        for gate in ("carry", "transform"):
            shapes |= {f"CNN_high_{number}/W_{gate}": (total, total), f"CNN_high_{number}/b_{gate}": (total,)}
    shapes |= {"CNN_proj/W_proj": (total, width), "CNN_proj/b_proj": (width,)}
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
            shapes |= {name + "W_0": (2 * width, 4 * cell), name + "B": (4 * cell,), name + "W_P_0": (cell, width)}
    # In steps of 1/1024, so that a forget bias with its 1 is exact in float32.
    return {
        name: (generator.normal(0, 0.7, shape) * 1024).round().astype(np.float32) / 1024
        for name, shape in shapes.items()
    }


def write(folder: Path, weights: dict[str, np.ndarray], options: dict[str, Any] = OPTIONS) -> Path:
    """A folder as ELMo's authors publish it."""
    h5py = pytest.importorskip("h5py", reason="HDF5 weights need the extra elmo")
    folder.mkdir(exist_ok=True)
    (folder / "elmo_options.json").write_text(json.dumps(options))
    with h5py.File(folder / "elmo_weights.hdf5", "w") as file:
        for name, array in weights.items():
            file.create_dataset(name, data=array)
    return folder


# ------------------------------------------------------------------------------- the formula, written out


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def word_vector(word: list[int], w: dict[str, np.ndarray], options: dict[str, Any]) -> np.ndarray:
    """One word from its characters, counted from 0 as TensorFlow's table has them."""
    cnn = options["char_cnn"]
    act = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[cnn["activation"]]
    vectors = [w["char_embed"][character].astype(np.float64) for character in word]
    pooled: list[float] = []
    for number, (kernel, count) in enumerate(cnn["filters"]):
        for unit in range(count):
            sums = []
            for place in range(len(word) - kernel + 1):
                products = [w[f"CNN/W_cnn_{number}"][0, k, :, unit] @ vectors[place + k] for k in range(kernel)]
                sums.append(act(sum(products) + w[f"CNN/b_cnn_{number}"][unit]))
            pooled.append(max(sums))
    x = np.array(pooled)
    for number in range(cnn["n_highway"]):
        name = f"CNN_high_{number}/"
        carry = sigmoid(x @ w[name + "W_carry"].astype(np.float64) + w[name + "b_carry"])
        transformed = np.maximum(x @ w[name + "W_transform"].astype(np.float64) + w[name + "b_transform"], 0)
        x = carry * transformed + (1 - carry) * x
    return x @ w["CNN_proj/W_proj"].astype(np.float64) + w["CNN_proj/b_proj"]


def lstm(xs: list[np.ndarray], w: dict[str, np.ndarray], name: str, options: dict[str, Any]) -> list[np.ndarray]:
    """TensorFlow's LSTMCell with projection, step by step; gates in the order i, j, f, o."""
    cell_clip, clip = options["lstm"]["cell_clip"], options["lstm"]["proj_clip"]
    weight, bias, projection = (w[name + part].astype(np.float64) for part in ("W_0", "B", "W_P_0"))
    c, h, outputs = np.zeros(projection.shape[0]), np.zeros(projection.shape[1]), []
    for x in xs:
        i, j, f, o = np.split(np.concatenate([x, h]) @ weight + bias, 4)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
        c = c if cell_clip is None else np.clip(c, -cell_clip, cell_clip)
        h = (sigmoid(o) * np.tanh(c)) @ projection
        h = h if clip is None else np.clip(h, -clip, clip)
        outputs.append(h)
    return outputs


def layers_of(words: list[str], w: dict[str, np.ndarray], options: dict[str, Any]) -> list[np.ndarray]:
    """words 2P of each layer, the characters' first; with the words that begin and end a sentence."""
    length = options["char_cnn"]["max_characters_per_word"]
    spelled = [[256], *(list(word.encode()) for word in words), [257]]
    padded = [[258, *word[: length - 2], 259] for word in spelled]
    padded = [[*word, *[260] * (length - len(word))] for word in padded]
    characters = [word_vector(word, w, options) for word in padded]
    sides = []
    for direction in range(2):
        xs, layers = characters[:: -1 if direction else 1], []
        for layer in range(options["lstm"]["n_layers"]):
            outputs = lstm(xs, w, f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/", options)
            if layer and options["lstm"]["use_skip_connections"]:
                outputs = [output + x for output, x in zip(outputs, xs, strict=True)]
            xs = outputs
            layers.append(np.array(outputs[:: -1 if direction else 1]))
        sides.append([np.array(characters), *layers])
    return [np.concatenate(both, -1) for both in zip(*sides, strict=True)]


VARIANTS = {
    "published": {},
    "tanh, no skip, no highway": {
        "lstm": {"use_skip_connections": False},
        "char_cnn": {"activation": "tanh", "n_highway": 0},
    },
    "unclipped": {"lstm": {"cell_clip": None, "proj_clip": None}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_published_layout_by_its_formula(variant: str, tmp_path: Path) -> None:
    options = {key: {**OPTIONS[key], **VARIANTS[variant].get(key, {})} for key in OPTIONS}
    weights = arrays(options)
    model = weft.load(write(tmp_path / "elmo", weights, options))
    network: Any = model.network.double()
    assert model.tokenizer is not None
    rows = Ragged.of([model.tokenizer.encode(" ".join(words)).ids for words in SENTENCES])
    states: list[torch.Tensor] = []
    mixed = network(rows.tokens, rows.rows, states=states).detach()
    places = cut_words(rows.tokens, rows.rows)
    expected = [np.concatenate(each) for each in zip(*(layers_of(s, weights, options) for s in SENTENCES), strict=True)]
    assert len(states) == len(expected) == 4
    for ours, theirs in zip(states, expected, strict=True):
        assert len(theirs) == len(places.firsts) == sum(len(words) + 2 for words in SENTENCES)
        assert np.abs(ours[places.firsts].detach().numpy() - theirs).max() < 1e-9
    assert np.abs(mixed[places.firsts].numpy() - sum(expected) / 4).max() < 1e-9  # a fresh mix is the mean
    if variant == "published":  # the clips are reached, else this shows nothing of them
        top = expected[1]
        assert (np.abs(np.abs(top) - 0.2) < 1e-12).mean() > 0.1


def test_it_is_saved_as_safetensors_and_opened_again(tmp_path: Path) -> None:
    model = weft.load(write(tmp_path / "elmo", arrays()))
    assert model.task == "embed" and model.opened.family.name == "elmo"
    model.save(tmp_path / "ours")
    assert (tmp_path / "ours" / "model.safetensors").exists()
    again = weft.load(tmp_path / "ours")
    text = "The café on 3rd St."
    assert model(text).values == again(text).values
    assert all(torch.equal(a, b) for a, b in zip(model.network.parameters(), again.network.parameters(), strict=True))


# --------------------------------------------------------------------------------------- bad files


def test_options_that_are_no_elmo(tmp_path: Path) -> None:
    write(tmp_path / "elmo", arrays())
    path = tmp_path / "elmo" / "elmo_options.json"

    def refused(section: str, **values: Any) -> str:
        options = {key: dict(part) for key, part in OPTIONS.items()}
        options[section] |= values
        path.write_text(json.dumps(options))
        with pytest.raises(UserError) as error:
            weft.load(tmp_path / "elmo")
        return str(error.value)

    assert "W_0 has the shape (10, 28), where the options ask for (10, 32)" in refused("lstm", dim=8)
    assert 'dim must be a whole number, not "7"' in refused("lstm", dim="7")
    assert "between 1 and" in refused("lstm", dim=1 << 40)
    assert "cell_clip" in refused("lstm", cell_clip="3")
    assert "must be above 0" in refused("lstm", cell_clip=-1.0)
    assert "activation" in refused("char_cnn", activation="gelu")
    assert "filters must be pairs" in refused("char_cnn", filters=[[1, 2, 3]])
    assert "n_characters must be 262, not 30" in refused("char_cnn", n_characters=30)
    assert "word_length" in refused("char_cnn", max_characters_per_word=2)
    path.write_text("{}")
    with pytest.raises(UserError, match="has no lstm"):
        weft.load(tmp_path / "elmo")


def test_weights_that_are_no_numbers_of_this_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="HDF5 weights need the extra elmo")
    weights, name = arrays(), "CNN_proj/b_proj"

    def refused(change: Any) -> str:
        write(tmp_path / "elmo", weights)
        with h5py.File(tmp_path / "elmo" / "elmo_weights.hdf5", "r+") as file:
            del file[name]
            change(file)
        with pytest.raises(UserError) as error:
            weft.load(tmp_path / "elmo")
        return str(error.value)

    assert "has no CNN_proj/b_proj" in refused(lambda file: None)
    assert "leads elsewhere" in refused(lambda file: file.__setitem__(name, h5py.ExternalLink("other.hdf5", "/x")))
    assert "leads elsewhere" in refused(lambda file: file.__setitem__(name, h5py.SoftLink("/char_embed")))
    text = np.array(["a"] * 5, dtype=object)
    assert "no floating-point" in refused(lambda f: f.create_dataset(name, data=text, dtype=h5py.string_dtype()))
    assert "no floating-point" in refused(lambda f: f.create_dataset(name, data=np.arange(5)))
    assert "no floating-point" in refused(lambda f: f.create_group(name))
    assert "in one piece" in refused(lambda f: f.create_dataset(name, data=np.ones(5, "f4"), compression="gzip"))
    assert "in one piece" in refused(lambda f: f.create_dataset(name, shape=(5,), dtype="f4"))  # declared, not stored
    outside = [(str(tmp_path / "raw"), 0, 20)]
    (tmp_path / "raw").write_bytes(bytes(20))
    assert "in one piece" in refused(lambda f: f.create_dataset(name, shape=(5,), dtype="f4", external=outside))
    assert "shape" in refused(lambda f: f.create_dataset(name, shape=(1 << 40,), dtype="f4"))
    assert "NaN" in refused(lambda f: f.create_dataset(name, data=np.full(5, np.nan, "f4")))
    moment = h5py.h5t.UNIX_D32LE  # numpy has no such type

    def of_moments(file: Any) -> None:
        h5py.h5d.create(file["CNN_proj"].id, b"b_proj", moment, h5py.h5s.create_simple((5,)))

    assert "not a sound HDF5 file" in refused(of_moments)
    for broken in (b"", b"nothing of that kind"):
        (tmp_path / "elmo" / "elmo_weights.hdf5").write_bytes(broken)
        with pytest.raises(UserError, match="not a sound HDF5 file"):
            weft.load(tmp_path / "elmo")


@pytest.mark.parametrize("section, name, fewer, more", [
    ("lstm", "n_layers", 2, "RNN_0/RNN/MultiRNNCell/Cell2"),
    ("char_cnn", "n_highway", 1, "CNN_high_1"),
])  # fmt: skip
def test_weights_of_a_larger_model_are_refused(section: str, name: str, fewer: int, more: str, tmp_path: Path) -> None:
    options = {**OPTIONS, section: {**OPTIONS[section], name: fewer}}
    with pytest.raises(UserError, match=f"has {more}, which is more than the options ask for"):
        weft.load(write(tmp_path / "elmo", arrays(), options))


def test_which_files_are_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "elmo", arrays())
    with pytest.raises(UserError, match="is a file; give the model folder"):
        weft.load(folder / "elmo_weights.hdf5")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "h5py", None)
        with pytest.raises(UserError, match=r"HDF5 weights need h5py: pip install 'weft\[elmo\]'"):
            weft.load(folder)
    (folder / "second.hdf5").write_bytes(b"")
    with pytest.raises(UserError, match="one options.json and one .hdf5 file; this folder has 1 and 2"):
        weft.load(folder)


# ----------------------------------------------------------------------------------- words and characters


def test_a_word_is_one_token_or_its_bytes() -> None:
    tokenizer = learn(["the cat sat on the mat", "the cat"] * 2, "word-bytes", FIRST_WORD + 2)
    assert tokenizer.kind == "word-bytes" and tokenizer.vocabulary == FIRST_WORD + 2
    encoded = tokenizer.encode("the né cat")
    assert encoded.ids == [START, FIRST_WORD, BEGIN, 111, 196, 170, FIRST_WORD + 1, END]  # n is 110, é is 195 169
    assert encoded.offsets[1:7] == [(0, 3), (4, 5), (4, 5), (5, 6), (5, 6), (7, 10)]
    assert tokenizer.decode(encoded.ids) == "the né cat"


def test_characters_do_not_depend_on_the_vocabulary(tmp_path: Path) -> None:
    """A known word, an unknown one, and one without any vocabulary have the same characters, so the same vectors."""
    texts = ["the cat sat on the mat", "supercalifragilisticexpialidociousandsomethingmorethanfiftybytes the"] * 2
    small, large = (learn(texts, "word-bytes", FIRST_WORD + count) for count in (1, 50))
    none = word_bytes()
    vectors = []
    for tokenizer in (small, large, none):
        model = weft.new("elmo", tokenizer, size="2x16", heads={})
        tokenizer.save(tmp_path)
        assert load_tokenizer(tmp_path).ids(texts) == tokenizer.ids(texts)
        ids = Ragged.of(tokenizer.ids(texts[:2]))
        places = cut_words(ids.tokens, ids.rows)
        network: Any = model.network
        rows = characters_of(ids.tokens, places, network.spelling, 50)
        assert rows.shape == (12, 50) and rows[1, :6].tolist() == [BEGIN, 117, 105, 102, STOP, FILLING]
        assert (rows[:, 0] == BEGIN).all() and ((rows == STOP).sum(1) == 1).all() and rows[9, -1] == STOP
        vectors.append((rows, network.double()(ids.tokens, ids.rows)[places.firsts]))
    assert all(torch.equal(rows, vectors[0][0]) for rows, _ in vectors)
    assert all((hidden - vectors[0][1]).abs().max() < 1e-12 for _, hidden in vectors)


def test_it_neither_generates_nor_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = learn(["the cat sat"] * 3, "word-bytes", 300)
    model = weft.new("elmo", tokenizer, size="1x16", heads={"words": tokenizer.vocabulary, "tag": 2})
    model.save(tmp_path / "elmo")
    assert run(["suggest", str(tmp_path / "elmo"), "the c"]) == 2
    assert "this elmo model does not generate text" in capsys.readouterr().err
    with pytest.raises(UserError, match="it does not predict left to right"):
        perplexity(model.opened, ["the cat"])
    with pytest.raises(UserError, match="elmo cannot be written as ONNX"):
        write_onnx(tmp_path / "onnx", model.opened, "tag")
    assert not (tmp_path / "onnx").exists()


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="needs a vocabulary of kind word-bytes"):
        weft.new("elmo", learn(["the cat sat"] * 3, "word", 20), size="1x16")


def test_spelling_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weft.new("elmo", learn(["the cat"] * 2, "word-bytes", 300), size="1x16").save(tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    tensors["spelling"][0, 0] = 262
    save_file(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lead nowhere: spelling"):
        open_folder(tmp_path / "m")


# --------------------------------------------------------------------------------------- learning


def drawn_of(rows: list[list[int]]) -> Drawn:
    return Drawn(np.array([t for row in rows for t in row]), np.cumsum([0, *map(len, rows)]))


def test_each_word_predicts_both_neighbors() -> None:
    the, cat = FIRST_WORD, FIRST_WORD + 1
    rows = [[START, the, BEGIN, 111, 196, 170, cat, END, START, cat], [98, 99, the]]  # cut off at both ends
    batch = two_way(drawn_of(rows))
    assert batch.targets["places"].tolist() == [0, 1, 2, 6, 7, 8, 9, 10, 12]
    assert batch.targets["words"].tolist() == [the, BEGIN, cat, END, NOTHING, cat, NOTHING, the, NOTHING]
    assert batch.targets["before"].tolist() == [NOTHING, START, the, BEGIN, cat, NOTHING, START, NOTHING, BEGIN]
    assert BothWays().counts(batch) == {"words": 12}


def test_neither_direction_sees_what_it_predicts() -> None:
    model = weft.new("elmo", learn(["the cat sat on a mat"] * 2, "word-bytes", 300), size="2x16")
    network, tokenizer = model.network.double(), model.tokenizer
    assert tokenizer is not None
    first, second = (Ragged.of(tokenizer.ids([text])) for text in ("the cat sat on a mat", "the cat mat on a mat"))
    states: list[list[torch.Tensor]] = [[], []]
    for rows, some in zip((first, second), states, strict=True):
        network(rows.tokens, rows.rows, states=some)
    forth, back = (
        (a[:, part] - b[:, part]).abs().amax(1)
        for a, b in [(states[0][-1], states[1][-1])]
        for part in (slice(0, 16), slice(16, 32))
    )
    assert forth[:3].max() < 1e-12 and forth[3:].min() > 1e-6  # <S> the cat | sat ...
    assert back[4:].max() < 1e-12 and back[:4].min() > 1e-6


def test_two_way_pretraining_then_tags(tmp_path: Path) -> None:
    """Held-out loss falls below that of word frequencies, and what was learned carries over to a frozen tagger."""
    generator = np.random.default_rng(0)
    names, verbs = ["Anna", "Bert", "Carla", "Dora"], ["sees", "likes", "hears"]
    rows = [[generator.choice(names), generator.choice(verbs), generator.choice(names), "."] for _ in range(400)]
    (tmp_path / "text.txt").write_text("\n".join(" ".join(row) for row in rows))
    tags = {**dict.fromkeys(names, "B-PER")}
    lines = [f"{word} {tags.get(word, 'O')}" for row in rows[:80] for word in (*row, "")]
    (tmp_path / "tags.conll").write_text("\n".join(line if line[0] != " " else "" for line in lines))
    sizes = {"family": "elmo", "size": "1x16", "filters": [4] * 7, "dropout": 0.0}
    common: dict[str, Any] = {"progress": False, "log": lambda line: None}
    pretrained = weft.pretrain(
        model=sizes,
        text={"files": [str(tmp_path / "text.txt")]},
        objective={"length": 32},
        training={"steps": 60, "batch": 16, "learning_rate": 2e-2},
        out=str(tmp_path / "lm"),
        **common,
    )
    loss = next(metric.value for metric in pretrained.card.metrics if metric.name == "loss")
    assert loss < 1.15  # by frequencies alone: (2 log 4 + log 3) / 5 = 0.77 at best, some 2.0 for all words alike
    before = {name: tensor.clone() for name, tensor in pretrained.network.state_dict().items()}
    tuned = weft.finetune(
        str(tmp_path / "tags.conll"),
        task={"name": "tag", "freeze": "encoder"},
        base=str(tmp_path / "lm"),
        training={"steps": 60, "batch": 8, "learning_rate": 1e-2},
        out=str(tmp_path / "tag"),
        **common,
    )
    assert next(m.value for m in tuned.card.metrics if m.name == "f1") > 0.95
    after = tuned.network.state_dict()
    moved = {name for name, tensor in after.items() if name in before and not torch.equal(before[name], tensor)}
    assert moved == {"mix.shares", "mix.scale"}
    assert tuned("Zora sees Bert .")  # a name that no text had is read by its characters


def test_fresh_forget_gates_begin_open() -> None:
    model: Any = weft.new("elmo", word_bytes(), size="2x16", heads={})
    for layer in model.network.layers:
        gates = layer.bias.detach().view(2, 4, -1)  # input, forget, new content, output
        assert (gates[:, 1] == 1).all() and not gates[:, [0, 2, 3]].any()


def test_a_word_counts_once_in_the_vector_of_a_text(tmp_path: Path) -> None:
    """A text's vector is the mean over its words, known or spelled."""
    model = weft.load(write(tmp_path / "elmo", arrays()))
    assert model.tokenizer is not None
    rows = Ragged.of([model.tokenizer.encode("The café !").ids])
    states = model.network(rows.tokens, rows.rows)[cut_words(rows.tokens, rows.rows).firsts]
    assert (
        states.shape == (5, 10)
        and np.abs(np.array(model("The café !").values) - states.mean(0).detach().numpy()).max() < 1e-6
    )


def test_the_first_layer_and_the_mix_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = learn(["the cat sat"] * 2, "word-bytes", 300)
    weft.new("elmo", tokenizer, size="2x16", heads={"classify": 2}).save(tmp_path / "m")
    assert run(["info", str(tmp_path / "m")]) == 0
    assert "layer weights   embeddings 0.3333, layer 1 0.3333, layer 2 0.3333, scale 1.0" in capsys.readouterr().out


def test_info_leaves_out_what_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A published folder does not say which version made it."""
    assert run(["info", str(write(tmp_path / "elmo", arrays()))]) == 0
    assert capsys.readouterr().out.rstrip().endswith("card            format 2")

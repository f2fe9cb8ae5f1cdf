"""Recurrent and convolutional encoder-decoders: their formulas written out, what they learn and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.contracts.test_sequences import network_of
from weft.checkpoint.families import FAMILIES, measure
from weft.errors import UserError
from weft.models.convolution import ConvSeq2Seq, ConvSeq2SeqConfig
from weft.models.seq2seq import Seq2Seq, Seq2SeqConfig
from weft.nn.rows import Ragged

END = 1


def pairs(count: int, backwards: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Words to read, and the same to write, in the same or the reverse order."""
    draw = torch.Generator().manual_seed(3)
    texts = [
        torch.randint(2, 12, (int(torch.randint(2, 7, (1,), generator=draw)),), generator=draw).tolist()
        for _ in range(count)
    ]
    return [[*text, END] for text in texts], [text[::-1] if backwards else text for text in texts]


def learn(network: Any, steps: int, learning_rate: float, own: Tensor | None = None, enough: float = 0.04) -> float:
    """The loss after learning eight pairs by heart."""
    read, written = pairs(8, backwards=True)
    source, batch = Ragged.of(read), Ragged.of([[0, *text] for text in written])
    targets = torch.tensor([token for text in written for token in (*text, END)])
    optimizer = torch.optim.Adam(network.parameters(), learning_rate)
    more = {} if own is None else {"own": own}
    for _ in range(steps):
        loss = F.cross_entropy(network.words(network(batch.tokens, batch.rows, source=source, **more)), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if loss < enough:
            break
    return loss.item()


def said_by(network: Any) -> bool:
    """Whether it writes all pairs greedily, word for word."""
    read, written = pairs(8, backwards=True)
    with torch.inference_mode():
        scores, state = network.eval().start(Ragged.of([[0]] * 8), Ragged.of(read))
        found = [scores.argmax(-1)]
        for _ in range(7):
            found.append(network.step(found[-1], state).argmax(-1))
    return all(
        row[: len(text) + 1] == [*text, END] for row, text in zip(torch.stack(found, 1).tolist(), written, strict=True)
    )


LOOKS = (("none", False), ("additive", False), ("dot", False), ("general", False), ("dot", True), ("general", True))
OFTEN = {("gru", "none", False), ("gru", "additive", False), ("gru", "general", True), ("rnn", "dot", False)}
COMBINATIONS = [  # each cell and each way in the everyday tests, the rest of their pairs in all tests
    pytest.param(
        {"cell": cell, "attention": attention, "feeding": feeding},
        marks=() if cell == "lstm" or (cell, attention, feeding) in OFTEN else pytest.mark.slow,
    )
    for cell, (attention, feeding) in product(("lstm", "gru", "rnn"), LOOKS)
]


@pytest.mark.parametrize("settings", COMBINATIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_every_cell_and_way_to_look_learns_pairs_by_heart(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = Seq2Seq(Seq2SeqConfig(vocabulary=12, width=32, layers=1, dropout=0.0, **settings), {"words": 12})
    network.initialize()
    assert learn(network, 250, 1e-2) < 0.1
    assert said_by(network)


def test_the_convolutional_one_learns_pairs_by_heart() -> None:
    torch.manual_seed(0)
    config = ConvSeq2SeqConfig(vocabulary=12, context=16, width=32, layers=2, dropout=0.0)
    network = ConvSeq2Seq(config, {"words": 12})
    network.initialize()
    assert learn(network, 250, 5e-3) < 0.1
    assert said_by(network)


# ---------------------------------------------------------------- formulas, one row, one place at a time


def test_bahdanau_written_out() -> None:
    """The state before looks; what it sees is part of the input, and of what is told."""
    network = network_of("seq2seq", {"attention": "additive", "cell": "gru", "layers": 1, "tied": "none"})
    source, text = torch.tensor([5, 9, 2, 31]), torch.tensor([0, 4, 7])
    rows = Ragged.of([text.tolist()]).rows
    found = network(text, rows, source=Ragged.of([source.tolist()]))
    memory = network.encode(Ragged.of([source.tolist()]))
    annotations, looking = memory.values[0], network.looking
    cell = torch.nn.GRUCell(network.decoder.layers[0].input_size, 48).double()
    with torch.no_grad():
        for ours, theirs in zip(cell.parameters(), network.decoder.layers[0].parameters(), strict=True):
            ours.copy_(theirs)
        forth, back = network.encoder(network.source_tokens(source), Ragged.of([source.tolist()]).rows)[1]
        state = network.bridge.join[0](torch.cat([forth[0], back[0]], -1)).tanh()
        for place, word in enumerate(text):
            energy = torch.stack(
                [looking.score((looking.query(state[0]) + looking.key(a)).tanh())[0] for a in annotations]
            )
            context = (energy.softmax(0)[:, None] * annotations).sum(0)
            embedded = network.tokens(word)
            state = cell(torch.cat([embedded, context])[None], state)
            told = network.combine(torch.cat([state[0], context, embedded])).tanh()
            assert (found[place] - told).abs().max() < 1e-9


@pytest.mark.parametrize("attention, feeding", [("dot", False), ("general", True)])
def test_luong_written_out(attention: str, feeding: bool) -> None:
    """The new state looks; what comes of it is told, and fed on where that is asked for."""
    settings = {"attention": attention, "feeding": feeding, "bidirectional": False}
    network = network_of("seq2seq", settings)
    text, rows = torch.tensor([0, 4, 7]), Ragged.of([[0, 4, 7]]).rows
    found = network(text, rows, source=Ragged.of([[5, 9, 2, 31]]))
    memory = network.encode(Ragged.of([[5, 9, 2, 31]]))
    with torch.no_grad():
        state, told = [tuple(part for part in parts) for parts in memory.state], torch.zeros(1, 48).double()
        for place, word in enumerate(text):
            x = network.tokens(word)[None]
            x = torch.cat([x, told], -1) if feeding else x
            for number, module in enumerate(network.decoder.layers):
                state[number] = torch._VF.lstm_cell(x, state[number], *module._flat_weights)
                x = state[number][0]
            matrix = torch.eye(48).double() if attention == "dot" else network.looking.key.weight
            weights = (memory.values[0] @ matrix.t() @ x[0]).softmax(0)
            told = network.combine(torch.cat([x, (weights @ memory.values[0])[None]], -1)).tanh()
            assert (found[place] - told[0]).abs().max() < 1e-9


def test_one_vector_and_the_source_from_its_end() -> None:
    """Without attention the decoder begins with the encoder's last state, after the first word of the source."""
    network = network_of("seq2seq", {"attention": "none", "bidirectional": False, "layers": 1, "tied": "none"})
    assert network.encoder.directions == (True,)
    source = torch.tensor([5, 9, 2, 31])
    reader, writer = torch.nn.LSTM(48, 48).double(), torch.nn.LSTM(48, 48).double()
    reader.load_state_dict(network.encoder.layers[0].state_dict())
    writer.load_state_dict(network.decoder.layers[0].state_dict())
    _, (hidden, cell) = reader(network.source_tokens(source.flip(0)))
    expected, _ = writer(network.tokens(torch.tensor([0, 4])), (hidden, cell))
    found = network(torch.tensor([0, 4]), Ragged.of([[0, 4]]).rows, source=Ragged.of([source.tolist()]))
    assert (found - expected).abs().max() < 1e-9


def test_what_is_read_from_its_end_stays_in_its_place() -> None:
    """So that what is looked at can be named: a word tells in its own place and in those read after it."""
    network = network_of("seq2seq", {"bidirectional": False, "reverse": True})
    one, other = (network.encode(Ragged.of([source])).values[0] for source in ([5, 9, 2, 31], [5, 8, 2, 31]))
    assert ((one - other).abs().amax(-1) > 1e-9).tolist() == [True, True, False, False]


def test_convolution_written_out() -> None:
    """Against torch's own convolution and attention, one row."""
    network = network_of("conv-seq2seq", {"kernel": 3})
    half, kernel = 0.5**0.5, 3

    def convolved(layer: Any, x: Tensor, before: int, after: int) -> Tensor:
        weight = layer.maps.weight.view(2 * 48, kernel, 48).transpose(1, 2)  # out, in, place
        return F.glu(F.conv1d(F.pad(x.t(), (before, after))[None], weight, layer.maps.bias)[0].t(), -1)

    source, text = torch.tensor([5, 9, 2, 31]), torch.tensor([0, 4, 7])
    e, d = network.encoder, network.decoder
    read = network.source_tokens(source) + e.positions(torch.arange(4))
    x = e.enter(read)
    for layer in e.layers:
        x = (x + convolved(layer, x, 1, 1)) * half
    keys = e.leave(x)
    values = (keys + read) * half
    words = network.tokens(text) + d.positions(torch.arange(3))
    x = d.enter(words)
    for layer, query, mix in zip(d.layers, network.queries, network.mixes, strict=True):
        y = convolved(layer, x, 2, 0)
        weights = ((query(y) + words) * half @ keys.t()).softmax(-1)
        y = (y + mix(weights @ values * 4**0.5)) * half
        x = (x + y) * half
    found = network(text, Ragged.of([text.tolist()]).rows, source=Ragged.of([source.tolist()]))
    assert (found - d.leave(x)).abs().max() < 1e-9


# ---------------------------------------------------------------- scheduled sampling


@pytest.mark.parametrize("settings", [{"attention": "additive"}, {"attention": "general"}, {"attention": "none"}])
def test_a_place_may_read_the_models_own_guess(settings: dict[str, Any]) -> None:
    """Never: as given; always: as if the model had written it itself; sometimes: drawn anew each time."""
    network = network_of("seq2seq", settings)
    texts, source = [[3, 9, 4, 2, 8], [3, 4, 3]], Ragged.of([[5, 9, 2], [8, 7, 3, 3]])
    batch = Ragged.of(texts)
    given = network(batch.tokens, batch.rows, source=source)
    never = network(batch.tokens, batch.rows, source=source, own=torch.tensor(0.0))
    assert (given - never).abs().max() < 1e-9
    always = network(batch.tokens, batch.rows, source=source, own=torch.tensor(1.0))
    for row, start in enumerate(batch.rows.firsts().tolist()):
        said = [3]
        for place in range(len(texts[row])):
            alone = Ragged.of([said])
            part = Ragged.of([[5, 9, 2], [8, 7, 3, 3]][row : row + 1])
            hidden = network(alone.tokens, alone.rows, source=part)
            assert (hidden[-1] - always[start + place]).abs().max() < 1e-9
            said.append(int(network.words(hidden[-1:]).argmax()))
    torch.manual_seed(0)
    drawn = [network(batch.tokens, batch.rows, source=source, own=torch.tensor(0.5)) for _ in range(8)]
    assert len({tuple(x[:, 0].tolist()) for x in drawn}) > 1
    assert all(torch.equal(x[batch.rows.firsts()], drawn[0][batch.rows.firsts()]) for x in drawn)  # begin is given


def test_it_learns_from_its_own_guesses() -> None:
    torch.manual_seed(0)
    config = Seq2SeqConfig(vocabulary=12, width=32, layers=1, dropout=0.0, attention="dot", feeding=True)
    network = Seq2Seq(config, {"words": 12})
    network.initialize()
    learn(network, 120, 1e-2, own=torch.tensor(0.25))
    assert said_by(network)


# ---------------------------------------------------------------- sizes and mistakes


def test_the_papers_own_counts() -> None:
    """Sutskever et al.: 384 million parameters, of which 64 million are recurrent."""
    family = FAMILIES["seq2seq"]
    config = family.sizes["seq2seq-plain"]
    assert measure(family, config, {"words": config.vocabulary}).parameters == pytest.approx(384e6, rel=1e-3)
    inside = measure(family, replace(config, vocabulary=1, source_vocabulary=1), {}).parameters
    assert inside == pytest.approx(64e6, rel=1e-2)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"begin": 101}, "begin must be a token of the vocabulary of 101"),
        ({"tied": "all", "source_vocabulary": 50}, "try tied=decoder"),
        ({"attention": "additive", "feeding": True}, "feeding is for attention dot or general"),
        ({"reverse": True}, "try bidirectional=false"),
        ({"source_vocabulary": 0}, "source_vocabulary must be between 1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Seq2SeqConfig(**{"vocabulary": 101, **settings})


def test_a_kernel_has_a_middle() -> None:
    with pytest.raises(UserError, match="kernel must be odd"):
        ConvSeq2SeqConfig(kernel=4)


def test_without_attention_one_vector_of_the_source_is_all_that_is_read() -> None:
    """The mean of what the encoder made, by the root of its length; every place of the decoder reads the same."""
    network: Any = network_of("conv-seq2seq", {"attention": "none"}).double().eval()
    assert not any(name.startswith("queries") for name, _ in network.named_parameters())
    sources = [[3, 4, 5, 6, 1], [7, 1]]
    source = Ragged.of(sources)
    with torch.no_grad():
        memory = network.encode(source)
        assert memory.values.shape[1] == 1 and bool(memory.may.all())
        for row, tokens in enumerate(sources):
            places = torch.arange(len(tokens))
            words = network.source_tokens(torch.tensor(tokens)) + network.encoder.positions(places)
            x = network.encoder.enter(words)
            alone = Ragged.of([tokens])
            for layer in network.encoder.layers:
                x = (x + layer(x, alone.rows)) * 0.5**0.5
            whole = (network.encoder.leave(x) + words).sum(0) * 0.5**0.5 / len(tokens) ** 0.5
            assert torch.allclose(memory.values[row, 0], whole, atol=1e-12)
        seen, where = memory.look(torch.randn(2, 4, network.config.width, dtype=torch.float64))
        assert bool((where == 1).all()) and torch.allclose(seen, memory.values.expand_as(seen))
        assert network.start(Ragged.of([[0], [0]]), source, attention=True)[1].attention is None


def test_without_attention_it_learns_pairs_by_heart() -> None:
    settings = {"attention": "none", "vocabulary": 12, "width": 48, "layers": 2, "dropout": 0.0, "context": 16}
    torch.manual_seed(0)
    network = ConvSeq2Seq(ConvSeq2SeqConfig(**settings), {"words": 12})
    network.initialize()
    assert learn(network, 300, 3e-3) < 0.1 and said_by(network)

"""`weft.watch` over every family: it changes nothing, hands out what was computed, and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.contracts import test_sequences as sequences
from tests.contracts.test_families import close, network_of
from tests.table import ATTENTIVE, PLAIN, SPEAKERS
from weft.checkpoint.families import FAMILIES
from weft.errors import UserError
from weft.explain.seen import sizes_of
from weft.nn import attention
from weft.nn.attention import MultiHead
from weft.nn.recurrent import Recurrent
from weft.nn.rows import Ragged

TEXTS = [[5, 9, 2, 31, 7], [8], [3, 3, 4, 12, 30, 11, 6, 9, 1]]
LAYERED = [name for name in PLAIN if network_of(name).stacks()]
DECODING = [name for name in SPEAKERS if name in LAYERED]
SPEAKING = [name for name in DECODING if name != "xlnet"]  # XLNet's words come from a stream of its own
every = sequences.every


def outputs(network: Any, texts: list[list[int]] = TEXTS) -> Tensor:
    batch = Ragged.of(texts)
    return network(batch.tokens, batch.rows)


def next_states(network: Any, texts: list[list[int]]) -> Tensor:
    batch = Ragged.of(texts)
    return network.next_states(batch.tokens, batch.rows)


def untouched(network: Any) -> bool:
    """Whether nothing of a watch is left in a network."""
    modules = list(network.modules())
    taps = [module for module in modules if isinstance(module, MultiHead | Recurrent)]
    hooks = [hook for module in modules for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    wrapped = {"forward", "next_states", "start", "step", "encode", "decode"} & vars(network).keys()
    return not hooks and not wrapped and all(tap.watcher is None and tap.editor is None for tap in taps)


# --------------------------------------------------------------------------------------------- nothing is changed


@pytest.mark.parametrize("name", LAYERED)
def test_watched_equals_unwatched(name: str) -> None:
    network = network_of(name)
    for training in (False, True):
        network.train(training)
        results = []
        for watched in (False, True):
            torch.manual_seed(7)
            network.zero_grad()
            if watched:
                with weft.watch(network, gradients=training):
                    hidden = outputs(network)
            else:
                hidden = outputs(network)
            hidden.square().sum().backward()
            results.append((hidden, [p.grad.clone() for p in network.parameters() if p.grad is not None]))
        assert close(results[1][0], results[0][0], 1e-9)
        assert all(close(one, two, 1e-9) for one, two in zip(results[1][1], results[0][1], strict=True))
    assert untouched(network)


@pytest.mark.parametrize("name", LAYERED)
def test_watched_equals_unwatched_in_float32(name: str) -> None:
    network = network_of(name, torch.float32)
    with torch.inference_mode():
        expected = outputs(network)
        with weft.watch(network):
            assert close(outputs(network), expected, 1e-5)


@every
def test_watched_equals_unwatched_in_encoder_decoders(name: str, settings: dict[str, Any]) -> None:
    network = sequences.network_of(name, settings)
    expected = sequences.hidden_of(network, sequences.TEXTS, sequences.SOURCES)
    with weft.watch(network) as seen:
        hidden = sequences.hidden_of(network, sequences.TEXTS, sequences.SOURCES)
    assert sequences.near(network, hidden, expected, 1e-9) and untouched(network)
    assert len(seen) == len(sequences.TEXTS)
    for text, source, own in zip(sequences.TEXTS, sequences.SOURCES, seen, strict=True):
        assert own.ids == text and own.decoder.hidden[-1].shape[0] == len(text)
        if "encoder" in own.stacks:
            assert own.source_ids == source and own.encoder.hidden[0].shape[0] == len(source)
        if "cross" in own.stacks:
            weights = own.cross.attention[-1]
            assert weights.shape[1:] == (len(text), len(source))
            assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_other_layers_stay_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the watched layer is written out; unwatched, none is."""
    network, wanted = network_of("bert", layers=3), list[bool]()
    inner = attention.attend
    monkeypatch.setattr(
        attention, "attend", lambda *args, **options: wanted.append(options["want_weights"]) or inner(*args, **options)
    )
    outputs(network)
    with weft.watch(network, layers=1) as seen:
        outputs(network)
    outputs(network)
    assert wanted == [False] * 3 + [False, True, False] + [False] * 3
    assert list(seen[0].attention) == [1] and list(seen[0].hidden) == [1]


# --------------------------------------------------------------------------------------------------- what is seen


@pytest.mark.parametrize("name", ATTENTIVE)
def test_attention_is_what_queries_keys_and_values_give(name: str) -> None:
    network = network_of(name)
    with weft.watch(network) as seen, torch.no_grad():
        outputs(network)
    for text, own in zip(TEXTS, seen, strict=True):
        for layer in range(network.config.layers):
            weights, count = own.attention[layer], len(text)
            assert weights.shape == (network.config.heads, count, count)
            assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]))
            mixed = weights @ own.values[layer]
            assert close(mixed, own.head_outputs[layer], 1e-9)
            module = network.stacks()[""][layer].attention.output
            expected = module(mixed.transpose(0, 1).flatten(1)).detach()
            assert close(own.attention_outputs[layer], expected, 1e-9)
            if name in ("bert", "gpt2"):  # the others add something that depends on the distance
                scores = own.queries[layer] @ own.keys[layer].transpose(1, 2) / own.keys[layer].shape[-1] ** 0.5
                if name == "gpt2":
                    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
                assert close(scores.softmax(-1), weights, 1e-9)


@pytest.mark.parametrize("name", [name for name in DECODING if name in ATTENTIVE])
def test_causal_attention_does_not_look_ahead(name: str) -> None:
    network = network_of(name)
    with weft.watch(network) as seen, torch.no_grad():
        next_states(network, TEXTS)
    for own in seen:
        assert (own.attention[0].triu(1) == 0).all()


@pytest.mark.parametrize("name", LAYERED)
def test_hidden_states_are_those_of_the_network(name: str) -> None:
    network, batch, states = network_of(name), Ragged.of(TEXTS[2:]), list[Tensor]()
    with weft.watch(network) as seen, torch.no_grad():
        network(batch.tokens, batch.rows, states=states)
    if name == "elmo":  # its layers have a row for each word, and an output before the residual
        return
    assert torch.equal(seen.embeddings, states[0])
    for layer in range(network.config.layers - 1):  # a final norm may follow the last
        assert torch.equal(seen.hidden[layer], states[layer + 1])


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_gates_and_memory_follow_the_equations(name: str) -> None:
    network = network_of(name)
    with weft.watch(network) as seen, torch.no_grad():
        outputs(network)
    for own in seen:
        hidden = own.hidden[1]
        before = torch.cat([torch.zeros_like(hidden[:1]), hidden[:-1]])
        if name == "rnn":
            with pytest.raises(UserError, match="no gates"):
                own.gates[1]
            continue
        gates = own.gates[1]
        if name == "gru":
            assert close((1 - gates["update"]) * gates["new"] + gates["update"] * before, hidden, 1e-9)
            continue
        memory = own.memory[1]
        kept = gates["forget"] * torch.cat([torch.zeros_like(memory[:1]), memory[:-1]])
        assert close(kept + gates["input"] * gates["cell"], memory, 1e-9)
        assert close(gates["output"] * memory.tanh(), hidden, 1e-9)


def test_memory_and_gates_of_elmo() -> None:
    network = network_of("elmo")
    with weft.watch(network, layers=0) as seen, torch.no_grad():
        outputs(network, [[300 - 200, 99, 98]])
    gates, memory = seen.gates[0], seen.memory[0]
    half = memory.shape[-1] // 2
    forth = {key: gate[:, :half] for key, gate in gates.items()}
    kept = torch.cat([torch.zeros(1, half), memory[:-1, :half]]) * forth["forget"]
    expected = (kept + forth["input"] * forth["cell"]).clamp(-network.config.clip, network.config.clip)
    assert close(memory[:, :half], expected, 1e-9)


@pytest.mark.parametrize("name", DECODING)
def test_cached_equals_uncached(name: str) -> None:
    """The prompt and each new token give one growing matrix, also for rows of a batch that leave or change places."""
    network = network_of(name)
    texts = [list(text) for text in TEXTS]
    with torch.inference_mode(), weft.watch(network) as seen:
        _, state = network.start(Ragged.of(TEXTS))
        order = [0, 1, 2]
        for step in range(4):
            if step == 2:  # the second row ends, the others change places
                state.pick(torch.tensor([2, 0]))
                order = [2, 0]
            tokens = [10 * step + row for row in order]
            network.step(torch.tensor(tokens), state)
            for row, token in zip(order, tokens, strict=True):
                texts[row].append(token)
    assert [own.ids for own in seen] == texts
    for text, own in zip(texts, seen, strict=True):
        with torch.inference_mode(), weft.watch(network) as whole:
            next_states(network, [text])
        layers = range(network.config.layers - (name == "xlnet"))  # its last content stream is not needed
        for layer in layers:
            assert close(own.hidden[layer], whole.hidden[layer], 1e-9)
            if name in ATTENTIVE:
                assert close(own.attention[layer], whole.attention[layer], 1e-9)
                assert close(own.keys[layer], whole.keys[layer], 1e-9)
            elif name == "lstm":
                assert close(own.memory[layer], whole.memory[layer], 1e-9)
                assert close(own.gates[layer]["forget"], whole.gates[layer]["forget"], 1e-9)
        assert close(own.embeddings, whole.embeddings, 1e-9)
        if name == "xlnet":
            count = own.query.attention[1].shape[1]  # from the end of the prompt on
            assert close(own.query.attention[1], whole.query.attention[1][:, -count:], 1e-9)


@every
def test_cached_equals_uncached_in_encoder_decoders(name: str, settings: dict[str, Any]) -> None:
    network = sequences.network_of(name, settings)
    texts = [list(text) for text in sequences.TEXTS]
    with torch.inference_mode(), weft.watch(network) as seen:
        _, state = network.start(Ragged.of(texts), sequences.sources_of(network, sequences.SOURCES))
        state.pick(torch.tensor([3, 1, 0]))
        for step in range(3):
            network.step(torch.tensor([3, 1, 0]) + step, state)
            for row in (3, 1, 0):
                texts[row].append(row + step)
    for number in (0, 1, 2, 3):
        with torch.inference_mode(), weft.watch(network) as whole:
            sequences.hidden_of(network, [texts[number]], [sequences.SOURCES[number]])
        own = seen[number]
        assert own.ids == texts[number]
        assert sequences.near(network, own.decoder.hidden[-1], whole.decoder.hidden[-1], 1e-9)
        if "cross" in own.stacks:
            assert sequences.near(network, own.cross.attention[-1], whole.cross.attention[-1], 1e-9)
        if name in ("transformer", "marian", "t5"):
            assert sequences.near(network, own.decoder.attention[-1], whole.decoder.attention[-1], 1e-9)
            for what in ("keys", "values", "queries", "head_outputs"):
                one, two = (getattr(part.cross, what)[-1] for part in (own, whole))
                assert sequences.near(network, one, two, 1e-9), what


def test_segments_of_transformer_xl_give_one_matrix() -> None:
    """A text of three segments has one band of attention, the memory of each segment included."""
    network = network_of("transformer-xl", segment=4, memory=4)
    with weft.watch(network) as seen, torch.no_grad():
        outputs(network, [list(range(1, 11))])
    weights = seen.attention[1]
    assert weights.shape == (3, 10, 10) and torch.allclose(weights.sum(-1), torch.ones(3, 10).double())
    assert (weights[:, 9, :4] == 0).all() and (weights[:, 9, 4:] > 0).all()
    assert close((weights @ seen.values[1]), seen.head_outputs[1], 1e-9)


def test_heads_restrict_what_is_kept() -> None:
    network = network_of("gpt2")
    for gradients in (False, True):
        with weft.watch(network) as seen, weft.watch(network, heads=[2, 0], gradients=gradients) as some:
            outputs(network, TEXTS[:1]).sum().backward()
        for what in ("attention", "queries", "keys", "values", "head_outputs"):
            assert torch.equal(getattr(some, what)[1], getattr(seen, what)[1][[2, 0]]), what
    assert some.gradients.attention[0].shape == (2, 5, 5)


def test_gradients_are_those_of_autograd() -> None:
    """The gradient of the attention, by its effect: weights times values, times the gradient of what they give."""
    network = network_of("bert")
    with weft.watch(network, gradients=True) as seen:
        outputs(network).square().sum().backward()
    for own in seen:
        slopes = own.gradients
        expected = slopes.head_outputs[1] @ own.values[1].transpose(1, 2)
        assert close(slopes.attention[1], expected, 1e-9)
        weights = own.attention[1]
        inner = weights * (slopes.attention[1] - (slopes.attention[1] * weights).sum(-1, keepdim=True))
        assert close(slopes.queries[1], inner @ own.keys[1] / 4.0, 1e-9)
        assert slopes.hidden[0].shape == own.hidden[0].shape and slopes.embeddings.abs().sum() > 0


# ------------------------------------------------------------------------------------------ patches and ablation


@pytest.mark.parametrize("name", LAYERED)
def test_a_patch_with_its_own_output_changes_nothing(name: str) -> None:
    network, text = network_of(name), TEXTS[2:]
    with weft.watch(network) as seen, torch.no_grad():
        expected = outputs(network, text)
    patch: dict[Any, Any] = {0: seen.hidden[0], 1: lambda x: x}
    if name in ATTENTIVE:
        patch |= {(0, 1): seen.head_outputs[0][1], (1, 2): lambda x: x}
    with weft.watch(network, patch=patch) as again, torch.no_grad():
        assert close(outputs(network, text), expected, 1e-9)
    assert close(again.hidden[1], seen.hidden[1], 1e-9)
    with weft.watch(network, layers=1, patch={0: 0.5}), torch.no_grad():
        assert not close(outputs(network, text), expected, 1e-3)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_ablating_all_heads_leaves_the_bias_alone(name: str) -> None:
    network = network_of(name)
    with weft.watch(network, ablate=[0, (1, -1)]) as seen, torch.no_grad():
        outputs(network)
    bias = network.stacks()[""][0].attention.output.bias
    bias = torch.zeros(1) if bias is None else bias.detach()
    for own in seen:
        assert (own.head_outputs[0] == 0).all() and (own.attention_outputs[0] == bias).all()
        assert (own.head_outputs[1][-1] == 0).all() and not (own.head_outputs[1][0] == 0).any()
        assert torch.allclose(own.attention[0].sum(-1), torch.ones(1).double())  # the weights are as they were


def test_ablated_heads_are_pruned_heads() -> None:
    """A head without an output is the same as a head whose part of the output map is 0."""
    network = network_of("gpt2")
    with weft.watch(network, ablate=[(1, 0)]), torch.no_grad():
        ablated = outputs(network)
    with torch.no_grad():
        network.layers[1].attention.output.weight[:, :16] = 0.0
        assert close(outputs(network), ablated, 1e-9)


@pytest.mark.parametrize("name", SPEAKING)
def test_patches_hold_in_decoding_too(name: str) -> None:
    network, text = network_of(name), TEXTS[2]
    options: dict[str, Any] = {"patch": {0: lambda x: 0.5 * x}, "ablate": [(1, 0)] if name in ATTENTIVE else []}
    with weft.watch(network, **options), torch.inference_mode():
        expected = network.words(next_states(network, [text])[-1:])
        _, state = network.start(Ragged.of([text[:-1]]))
        assert close(network.step(torch.tensor(text[-1:]), state), expected, 1e-9)


def test_cross_attention_is_patched() -> None:
    network = sequences.network_of("t5", {})
    given = (sequences.TEXTS, sequences.SOURCES)
    expected = sequences.hidden_of(network, *given)
    others = [source[::-1] for source in sequences.SOURCES]
    with weft.watch(network, ablate=[("cross", 0), ("cross", 1)]):
        blind = sequences.hidden_of(network, *given)
        assert sequences.near(network, sequences.hidden_of(network, sequences.TEXTS, others), blind, 1e-9)
    assert not close(blind, expected, 1e-3)
    with weft.watch(network, patch={("encoder", 1): 0.0, ("decoder", 0, 2): 0.0}) as seen:
        sequences.hidden_of(network, *given)
    assert (seen[0].encoder.hidden[1] == 0).all() and (seen[0].decoder.head_outputs[0][2] == 0).all()


# ------------------------------------------------------------------------------------------------------ logit lens


@pytest.mark.parametrize("name", [*DECODING, "bert", "albert", "roberta", "distilbert"])
def test_the_lens_of_the_last_layer_gives_the_logits(name: str) -> None:
    network = network_of(name)
    with weft.watch(network) as seen, torch.no_grad():
        hidden = next_states(network, TEXTS) if FAMILIES[name].generates else outputs(network)
        logits = network.words(hidden)
    joined = torch.cat([own.lens(-1) for own in seen])
    assert close(joined, logits, 1e-9)
    assert not close(torch.cat([own.lens(0) for own in seen]), logits, 1e-6)


@every
def test_the_lens_of_encoder_decoders(name: str, settings: dict[str, Any]) -> None:
    network = sequences.network_of(name, settings)
    with weft.watch(network) as seen, torch.no_grad():
        logits = network.words(sequences.hidden_of(network, sequences.TEXTS, sequences.SOURCES))
    if name == "conv-seq2seq" or (name == "seq2seq" and settings["attention"] != "none"):
        with pytest.raises(UserError, match="lens|word head"):
            seen[0].lens(-1)
        return
    assert sequences.near(network, torch.cat([own.lens(-1) for own in seen]), logits, 1e-9)


# ------------------------------------------------------------------------------------------------ beginning and end


@pytest.mark.parametrize("name", ["bert", "lstm", "xlnet", "elmo"])
def test_nothing_is_left_after_an_error(name: str) -> None:
    network = network_of(name)
    expected = outputs(network)

    def broken(x: Tensor) -> Tensor:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), weft.watch(network, patch={1: broken}):
        outputs(network)
    assert untouched(network) and torch.equal(outputs(network), expected)
    with pytest.raises(UserError, match="between -2 and 1"), weft.watch(network, layers=2):
        pass
    assert untouched(network)


def test_watches_may_be_nested() -> None:
    network = network_of("gpt2")
    with weft.watch(network, layers=0) as outer:
        outputs(network)
        with weft.watch(network, layers=1, ablate=[(0, 0)]) as inner:
            outputs(network)
        outputs(network)
    assert len(outer) == 9 and len(inner) == 3 and untouched(network)
    assert close(outer[0].hidden[0], outer[6].hidden[0], 0.0)
    assert not close(outer[3].hidden[0], outer[0].hidden[0], 1e-6)
    assert list(inner[0].attention) == [1] and list(outer[0].attention) == [0]
    outer.clear()
    assert len(outer) == 0


def test_a_watched_network_can_be_freed() -> None:
    network = network_of("bert")
    with weft.watch(network):
        outputs(network)
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("bert", {"layers": [0, 7]}, "layer 7 is not between -2 and 1"),
        ("bert", {"heads": 3}, "head 3 is not between -3 and 2"),
        ("bert", {"patch": {(0, 3): 0.0}}, "patch: head 3 is not between"),
        ("bert", {"patch": {("decoder", 0): 0.0}}, r"give \(layer, head\) or layer"),
        ("bert", {"patch": {(0, 1, 2): 0.0}}, r"give \(layer, head\)"),
        ("bert", {"patch": {1: torch.zeros(3, 3)}}, r"replacement has shape \(3, 3\), where the output has \(15, 48\)"),
        ("bert", {"layers": {"cross": 0}}, "no stack 'cross'"),
        ("lstm", {"ablate": [(0, 0)]}, "no heads of attention"),
        ("lstm", {"heads": [0]}, "no attention"),
        ("ngram", {}, "no layers that could be watched"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    network = network_of(name)
    with pytest.raises(UserError, match=message), weft.watch(network, **options):
        outputs(network)


def test_questions_that_have_no_answer() -> None:
    network = network_of("bert")
    with pytest.raises(UserError, match="not a Linear"), weft.watch(torch.nn.Linear(2, 2)):
        pass
    with weft.watch(network, layers=[0]) as seen:
        with pytest.raises(UserError, match="nothing was seen yet"):
            seen.attention  # noqa: B018
        outputs(network)
    cases: list[tuple[Any, str]] = [
        (lambda: seen.attention[0], "3 texts were seen: pick one"),
        (lambda: seen[0].attention[1], "layer 1 was not watched; watched: 0"),
        (lambda: seen[3], "text 3: 3 were seen"),
        (lambda: seen[0].encoder, "no layer of a stack 'encoder'"),
        (lambda: seen[0].gradients, "gradients=True"),
        (lambda: seen.text(0, window=1), "window 1: text 0 has 1"),
    ]
    for ask, message in cases:
        with pytest.raises(UserError, match=message):
            ask()
    with weft.watch(network, gradients=True) as seen, torch.no_grad():
        outputs(network, TEXTS[:1])
    with pytest.raises(UserError, match="no gradient was recorded"):
        seen.gradients.attention[0]


def test_sizes_name_every_stack() -> None:
    assert sizes_of(network_of("albert")) == {"": (2, 3)} and sizes_of(network_of("lstm")) == {"": (2, 0)}
    assert sizes_of(network_of("xlnet")) == {"": (2, 3), "query": (2, 3)}
    assert sizes_of(sequences.network_of("t5", {"decoder_layers": 3})) == {
        "encoder": (2, 3),
        "decoder": (3, 3),
        "cross": (3, 3),
    }

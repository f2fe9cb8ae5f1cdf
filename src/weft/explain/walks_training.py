"""Walks through an encoder-decoder: target and output grids, writing token by token, and teacher forcing.

Without a model they use a tiny Transformer over six words, which is trained on the spot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import UserError
from weft.explain.walk_record import generated, names_of, plain, read_text, recorded
from weft.explain.walk_steps import Array, Walk, WalkTable
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Completion
from weft.models.transformer import Transformer, TransformerConfig
from weft.nn.attention import Sources
from weft.nn.rows import Ragged
from weft.tasks.complete import writer_of
from weft.tasks.forward import evaluating, softmax
from weft.tasks.model import Model

WRITTEN = ("a", "am", "i", "thanks", "student", "<eos>")
READ = ("je", "suis", "étudiant", "merci", "<eos>")
PAIRS = (("je suis étudiant", "i am a student"), ("merci", "thanks"))
END = WRITTEN.index("<eos>")
STEPS = 60  # of training
EARLY = 14  # steps of a model that still makes mistakes
RATE = 0.01
MOST = 12  # tokens that a walk writes
TINY = "A Transformer of one layer, trained here for {steps} steps on two sentence pairs."


# ------------------------------------------------------------------------------------------------------ the tiny model


def numbers_of(text: str, words: Sequence[str]) -> list[int]:
    unknown = [word for word in text.split() if word not in words[:-1]]
    if unknown or not text.split():
        raise UserError(f"the tiny model knows the words {', '.join(words[:-1])}, not {text!r}; or give a model folder")
    return [words.index(word) for word in text.split()]


@dataclass(frozen=True)
class TrainedTransformer:
    """A tiny translator after some steps, and the loss before each of them."""

    network: Transformer
    losses: list[float]


@cache
def tiny_transformer(steps: int) -> TrainedTransformer:
    """A Transformer of one layer over six words, trained from the same random weights each time."""
    config = TransformerConfig(
        vocabulary=len(WRITTEN), source_vocabulary=len(READ), context=16, width=16, layers=1, heads=2, inner=32,
        tied="decoder", embedding_dropout=0.0, dropout=0.0, begin=END,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Transformer(config, {"words": len(WRITTEN)})
        network.initialize()
    network.double()
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    source = Ragged.of([[*numbers_of(text, READ), READ.index("<eos>")] for text, _ in PAIRS])
    targets = [[*numbers_of(text, WRITTEN), END] for _, text in PAIRS]
    read = Ragged.of([[END, *target[:-1]] for target in targets])
    labels = torch.tensor([token for target in targets for token in target])
    losses = []
    with torch.enable_grad():
        for _ in range(steps):
            loss = F.cross_entropy(network.words(network(read.tokens, read.rows, source=source)), labels)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return TrainedTransformer(network.eval(), losses)


@dataclass(frozen=True)
class Translator:
    """An encoder-decoder with a source that it has read: a model's, or the tiny one."""

    network: Any
    source: list[int]
    source_names: list[str]
    begin: int
    end: int | None
    context: int
    device: Any
    spell: Callable[[Sequence[int]], list[str]]  # what is written, as words
    numbers: Callable[[str], list[int]]  # and the other way
    about: str

    @staticmethod
    def of(model: Model | None, text: str | None, steps: int = STEPS) -> Translator:
        if model is None:
            source = [*numbers_of(PAIRS[0][0] if text is None else text, READ), READ.index("<eos>")]
            return Translator(
                tiny_transformer(steps).network, source, [READ[n] for n in source], END, END, 16, "cpu",
                lambda ids: [WRITTEN[n] for n in ids], lambda text: numbers_of(text, WRITTEN), TINY.format(steps=steps),
            )  # fmt: skip
        opened = model.opened
        if not opened.family.reads or opened.family.numbers or opened.exported:
            raise UserError(f"{opened.family.name} is not an encoder-decoder (transformer, marian, t5, seq2seq)")
        if text is None:
            raise UserError("give the text that the model reads")
        given, writer = read_text(model, text), writer_of(opened)
        return Translator(
            opened.network, given.ids, given.names, opened.config.begin, writer.id_of("end"), opened.config.context,
            opened.device, lambda ids: names_of(model, ids, written=True),
            lambda text: list(writer.ids([text], specials=False)[0]), f"Model: {model.folder or opened.family.name}.",
        )  # fmt: skip

    def ragged(self, ids: Sequence[int]) -> Ragged:
        return Ragged.of([list(ids)], self.device)

    @torch.inference_mode()
    def logits(self, written: Sequence[int]) -> Array:
        """T V: after each of these tokens."""
        read = self.ragged(written)
        with evaluating(self.network):
            hidden: Tensor = self.network(read.tokens, read.rows, source=self.ragged(self.source))
            return plain(self.network.words(hidden)).astype(np.float64)

    def written(self, most: int = MOST) -> Completion:
        """What it writes greedily, with the likeliest words of each step and what of the source it attended to."""
        options: dict[str, Any] = {
            "choice": Sampling(), "context": self.context, "max_tokens": most, "sources": [self.source],
            "ends": () if self.end is None else (self.end,), "alternatives": 5, "device": self.device,
        }  # fmt: skip
        with evaluating(self.network):
            try:
                return generate(self.network, [[self.begin]], attention=True, **options)[0][0]
            except UserError:  # a decoder that attends to nothing
                return generate(self.network, [[self.begin]], **options)[0][0]


# ---------------------------------------------------------------------------------------------------------------- grids


def grids_walk() -> Walk:
    """The output grid that a model should give, and the one that it gives before and after training."""
    trained = tiny_transformer(STEPS)
    now, before = Translator.of(None, None), replace(Translator.of(None, None), network=tiny_transformer(0).network)
    words = [*PAIRS[0][1].split(), "<eos>"]
    ids = [WRITTEN.index(word) for word in words]
    places = [f"place {n}" for n in range(1, len(ids) + 1)]
    walk = Walk("Target and trained output of a six-word vocabulary")
    walk.intro = f"'{PAIRS[0][0]}' becomes '{PAIRS[0][1]}'. {now.about}"
    coded = walk.add("one_hot", "one-hot", np.eye(len(WRITTEN)), WRITTEN, WRITTEN, scale="sequential", digits=0)
    walk.step("The vocabulary", "Six words; each is a vector with one 1.", "", [coded])
    target = walk.add("target", "target", np.eye(len(WRITTEN))[ids], places, WRITTEN, scale="sequential", digits=0)
    text = f"What the model should output for '{' '.join(words)}': at each place, probability 1 for the right word."
    walk.step("The target", text, "", [target])
    read = [END, *ids[:-1]]
    fresh = softmax(before.logits(read))
    shown = walk.add("untrained", "untrained output", fresh, places, WRITTEN, scale="sequential")
    loss = float(-np.log(fresh[range(len(ids)), ids]).mean())
    text = f"With random weights the probabilities have little to do with the target. The loss is {loss:.3f}."
    walk.step("Before training", text, "p = softmax(logits)", [target, shown])
    at = [n for n in (0, 5, 10, 20, 40, STEPS - 1) if n < STEPS]
    rows = [(str(n), f"{trained.losses[n]:.4f}") for n in at]
    text = f"AdamW with a learning rate of {RATE}: at each step the cross-entropy between target and output falls."
    walk.step("Training", text, "J = −mean log p(right word)", tables=[WalkTable("", ("step", "loss"), rows)])
    chances = output_steps(walk, now, read, places)
    text = "The trained output is close to the target at every place."
    walk.step("After training", text, "", [target, chances])
    logs = walk.add("logs", "log p", np.log(walk.values(chances)), kind="map", left=chances, function="log")
    made: dict[str, Any] = {"kind": "multiply", "left": target, "right": logs, "digits": 3}
    product = walk.add("product", "target · log p", walk.values(target) * walk.values(logs), **made)
    loss = float(-walk.values(product).sum() / len(ids))
    text = f"The target picks the logarithm of the right word's probability. Minus their mean is the loss, {loss:.4f}."
    walk.step("The loss", text, "J = −Σ target · log p / T", product)
    return walk


def output_steps(walk: Walk, speaker: Translator, read: Sequence[int], places: Sequence[str]) -> str:
    """The decoder's hidden states, their product with the table of words, and the softmax; the id of the latter."""
    network = speaker.network
    with recorded(network) as calls:
        tokens = speaker.ragged(read)
        logits = plain(network.words(network(tokens.tokens, tokens.rows, source=speaker.ragged(speaker.source))))
    hidden = walk.add("hidden", "x", calls.input(network.heads["words"]), places)
    table = walk.add("table", "E^⊤", plain(network.tokens.weight).T, columns=list(WRITTEN))
    scores = walk.add("logits", "logits", logits, kind="product", left=hidden, right=table)
    text = "What the decoder made at each place, times the vector of each word."
    walk.step("Trained: logits", text, "logits = x E^⊤", scores)
    made: dict[str, Any] = {"kind": "softmax", "left": scores, "scale": "sequential"}
    chances = walk.add("output", "trained output", softmax(logits), **made)
    walk.step("Trained: softmax", "Each row becomes probabilities.", "p = softmax(logits)", chances)
    return chances


# --------------------------------------------------------------------------------------------------- token by token


def seq2seq_walk(model: Model | None, text: str | None) -> Walk:
    """An encoder-decoder at work: the source is read at once, the output is written token by token."""
    speaker = Translator.of(model, text)
    completion = speaker.written()
    tokens, names = completion.tokens, speaker.source_names
    written = speaker.spell(tokens)
    read = speaker.spell([speaker.begin, *tokens[:-1]])
    walk = Walk("An encoder-decoder, token by token")
    walk.intro = speaker.about
    walk.part = "Encoder"
    table = WalkTable("", ("place", "token"), [(str(n), name) for n, name in enumerate(names)])
    walk.step("The source", "The encoder reads these tokens.", "", tables=[table])
    with torch.inference_mode(), evaluating(speaker.network):
        encoded = speaker.network.encode(speaker.ragged(speaker.source))
    if isinstance(encoded, Sources):
        hidden = walk.add("encoded", "encoder output", plain(encoded.hidden), names)
        text = "All tokens are read at once. Each becomes a vector that has attended to all others."
        walk.step("The encoder's output", text, "", [hidden])
    walk.part = "Decoder"
    weights = None if completion.attention is None else plain(completion.attention)
    assert completion.alternatives is not None
    for t, ranked in enumerate(completion.alternatives):
        chain = {
            "inputs": read[: t + 1],
            "states": [f"s_{n}" for n in range(t + 1)],
            "outputs": written[: t + 1],
            "used": [True] * (t + 1),
        }
        shown = []
        if weights is not None:
            row = weights[t][None]
            shown.append(walk.add(f"attention_{t}", "cross-attention", row, [written[t]], names, scale="sequential"))
        words, chances = speaker.spell([token for token, _ in ranked]), np.exp([[log for _, log in ranked]])
        shown.append(
            walk.add(f"chances_{t}", "p, the best words", chances, [f"step {t + 1}"], words, scale="sequential")
        )
        text = f"The decoder has read {', '.join(repr(word) for word in read[: t + 1])}. "
        text += (
            "It attends to the source with all heads of its last layer (their mean), " if weights is not None else "It "
        )
        text += f"and writes '{written[t]}'."
        walk.step(f"Step {t + 1}: {written[t]}", text, "p(y_t | y_{<t}, source)", shown, chain=chain)
    end = "with the end token" if completion.finish_reason == "end" else f"after {len(tokens)} tokens"
    shown = []
    if weights is not None:
        shown = [walk.add("alignment", "cross-attention", weights, written, names, scale="sequential")]
    text = f"The output is '{' '.join(written)}'. It ends {end}."
    walk.step("The output", text, "", shown)
    return walk


# -------------------------------------------------------------------------------------------------- teacher forcing


@dataclass(frozen=True)
class ForcedText:
    """A text that a model should write, and what it predicts and writes."""

    begin: int  # the token before the first one
    ids: list[int]  # the right tokens
    logits: Array  # T V: before each of them, where the model reads the right ones
    own: list[int]  # what it writes where it reads its own
    spell: Callable[[Sequence[int]], list[str]]
    about: str

    @staticmethod
    def of(model: Model | None, text: str | None, target: str | None) -> ForcedText:
        if model is not None and not model.opened.family.reads:
            return continued(model, text)
        speaker = Translator.of(model, text, EARLY)
        if target is None and (model is not None or text not in (None, PAIRS[0][0])):
            raise UserError("give --target TEXT, what the model should write")
        ids = speaker.numbers(PAIRS[0][1] if target is None else target)
        ids = ids if speaker.end is None else [*ids, speaker.end]
        if not ids:
            raise UserError("the target has no tokens")
        logits, own = speaker.logits([speaker.begin, *ids[:-1]]), speaker.written(len(ids)).tokens
        return ForcedText(speaker.begin, ids, logits, own, speaker.spell, speaker.about)


def continued(model: Model, text: str | None) -> ForcedText:
    """A text whose first third a language model is given."""
    opened = model.opened
    network: Any = opened.network
    if text is None or not opened.family.one_way or opened.family.counts or "words" not in network.heads:
        raise UserError("teacher-forcing needs a text and a model that generates (gpt2, lstm, transformer, t5 ...)")
    given = read_text(model, text)
    cut = max(1, len(given.ids) // 3)
    begin, ids = given.ids[:cut], given.ids[cut:]
    if not ids:
        raise UserError("the text must have at least two tokens")
    with torch.inference_mode(), evaluating(network):
        hidden = network.next_states(given.tokens, given.rows)
        logits = plain(network.words(hidden)).astype(np.float64)[cut - 1 : -1]
    own = generated(model, begin, None, len(ids)).tokens
    start = " ".join(given.names[:cut])
    about = f"Model: {model.folder or opened.family.name}. The text begins with '{start}', which both are given."
    return ForcedText(begin[-1], ids, logits, own, lambda numbers: names_of(model, numbers), about)


def teacher_walk(model: Model | None, text: str | None, target: str | None = None) -> Walk:
    """What a model predicts where it reads the right tokens, and what it writes where it reads its own."""
    forced = ForcedText.of(model, text, target)
    ids, own, spell = forced.ids, forced.own, forced.spell
    walk = Walk("Teacher forcing and generation")
    walk.intro = forced.about
    best = forced.logits.argmax(-1).tolist()
    right = softmax(forced.logits)[np.arange(len(ids)), ids]
    names, predicted, writes = spell(ids), spell(best), spell(own)
    table = compared(spell([forced.begin, *ids[:-1]]), predicted, names, ("reads", "predicts", "should predict"))
    rows_right = [(*row, f"{p:.4f}") for row, p in zip(table.rows, right, strict=True)]
    chances = WalkTable("", (*table.header, "p(right)"), rows_right, table.marked)
    loss = float(-np.log(np.maximum(right, 1e-300)).mean())
    text = "In training the model reads the right tokens, whatever it would have written, so one pass computes all "
    text += f"places. Wrong predictions are marked. The loss, the mean of −log p(right), is {loss:.3f}."
    walk.step("Teacher forcing", text, "J = −mean log p(y_t | right y_{<t})", tables=[chances])
    table = compared(spell([forced.begin, *own[:-1]]), writes, names, ("reads", "writes", "should write"))
    text = "In generation the model reads its own tokens, one step after the other."
    walk.step("Generation", text, "y_t = argmax p(y | own y_{<t})", tables=[table])
    first = next((t for t, token in enumerate(own) if token != ids[t]), None)
    text = "Generation wrote every token right, so both read the same tokens and agree at every place."
    if first is not None:
        text = f"At place {first} generation writes '{writes[first]}' instead of '{names[first]}', and reads it at the "
        text += "next place. Teacher forcing hides this: in training no mistake is ever read."
    rows = [(str(t), predicted[t], writes[t] if t < len(own) else "", names[t]) for t in range(len(ids))]
    marked = [] if first is None else [(first, 2)]
    table = WalkTable("", ("place", "teacher forcing", "generation", "right"), rows, marked)
    walk.step("Side by side", text, "", tables=[table])
    return walk


def compared(reads: list[str], outputs: list[str], right: list[str], header: tuple[str, str, str]) -> WalkTable:
    """What is read at each place, what comes of it and what should; wrong ones are marked."""
    rows = [(str(t), reads[t], outputs[t], right[t]) for t in range(len(outputs))]
    return WalkTable("", ("place", *header), rows, [(t, 2) for t, row in enumerate(rows) if row[2] != row[3]])

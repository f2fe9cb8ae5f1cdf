"""Walks through a whole model: where 'it' looks, masked words, and whether one sentence follows another.

Without a model, those of BERT's two objectives use a tiny BERT, which is trained on the spot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from weft.checkpoint.families import FAMILIES
from weft.data.masking import Masking
from weft.data.rows import Drawn, identity_of
from weft.errors import UserError
from weft.explain.walk_layer import LayerWalk
from weft.explain.walk_record import names_of, plain, read_text, recorded
from weft.explain.walk_steps import Array, Walk, WalkTable
from weft.explain.watch import watch
from weft.nn.rows import Ragged, Rows
from weft.tasks.fill import follows
from weft.tasks.forward import evaluating, softmax, tokenizer_of
from weft.tasks.model import Model, new
from weft.text.tokenizers.training import learn
from weft.text.windows import pair_frame

SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)
RATE = 0.15  # of tokens that are chosen
EPOCHS = 400  # in which the same text is masked anew, to count what happens
STORY = (
    "the old king lives in a castle", "he has a golden crown",
    "the small dog runs in the garden", "it chases a black cat",
    "my sister reads a long book", "she likes the story very much",
    "the train stops in the city", "many people leave it there",
)  # fmt: skip
STEPS = 120
TINY = f"A BERT of one layer, trained here for {STEPS} steps on {len(STORY)} sentences."


# ------------------------------------------------------------------------------------------------------ where it looks


def span_of(model: Model, text: str, word: str) -> slice | None:
    """The tokens of a word in a text as `read_text` has it; None where the text does not have the word."""
    lower, tokenizer = text.lower(), tokenizer_of(model.opened)
    for start in (n for n in range(len(text)) if lower.startswith(word, n)):
        end = start + len(word)
        inside = (start and text[start - 1].isalnum()) or (end < len(text) and text[end].isalnum())
        if not inside:
            before = len(tokenizer.ids([text[:start].rstrip()], specials=False)[0]) if start else 0
            after = len(tokenizer.ids([text[:end]], specials=False)[0])
            given = read_text(model, text)
            lead = max(0, given.last + 1 - len(tokenizer.ids([text], specials=False)[0]))
            return slice(lead + before, lead + after)
    return None


def it_walk(model: Model, texts: Sequence[str] = (), word: str = "it") -> Walk:
    """Where a pronoun looks in two sentences that differ in their last word."""
    texts = texts or SENTENCES
    family = model.opened.family
    if family.reads or not model.network.stacks():  # type: ignore[operator]
        raise UserError(f"{family.name}: the walk it shows an encoder or decoder with attention (bert, gpt2 ...)")
    walk = Walk(f"Where '{word}' looks")
    walk.intro = f"Attention of '{word}' in {model.folder.name if model.folder else family.name}."
    if family.one_way:
        walk.intro += " This model reads from left to right: the words after it cannot change where it looks."
    summary: list[tuple[str, ...]] = []
    for number, text in enumerate(texts):
        walk.part = f"… {' '.join(text.split()[-2:])}"
        summary.append(it_steps(walk, model, text, word, number))
    walk.part = "Side by side"
    header = ("sentence", f"'{word}' looks at", "animal", "street")
    text = "Attention of the last layer, the mean of its heads, summed over the tokens of the nouns. "
    text += (
        "A trained encoder often looks at the animal if it was tired, and more at the street if it was wide; a small "
    )
    text += "model, or another head, need not."
    walk.step("Side by side", text, tables=[WalkTable("", header, summary)])
    return walk


def it_steps(walk: Walk, model: Model, text: str, word: str, number: int) -> tuple[str, ...]:
    """The attention of one word by layer and head, and a line for the summary."""
    span = span_of(model, text, word)
    if span is None:
        raise UserError(f"{text!r} does not have the word {word!r}")
    given = read_text(model, text)
    network: Any = model.network
    with watch(network) as seen, evaluating(network), torch.inference_mode():
        network(given.tokens, given.rows, given.segments)
    layers = [plain(weights)[:, span.stop - 1] for weights in seen.attention.values()]  # H S each
    walk.scope = f"{number}."
    means = np.stack([layer.mean(0) for layer in layers])
    labels = [f"layer {n}" for n in range(len(layers))]
    shown = walk.add("layers", f"'{word}' by layer", means, labels, given.names, scale="sequential")
    walk.step("By layer", f"{text} The row of '{word}' in each layer, the mean of its heads.", "", [shown])
    heads = [f"head {n}" for n in range(len(layers[-1]))]
    last = walk.add("heads", "last layer by head", layers[-1], heads, given.names, scale="sequential")
    order = np.argsort(-means[-1])[:5]
    rows = [(given.names[n], f"{means[-1][n]:.3f}") for n in order]
    table = WalkTable("Mean of the heads", ("token", "attention"), rows)
    walk.step("The last layer by head", "Heads look at different tokens.", "", [last], tables=[table])
    walk.scope = ""
    nouns = [span_of(model, text, noun) for noun in ("animal", "street")]
    shares = [f"{means[-1][noun].sum():.3f}" if noun is not None else "" for noun in nouns]
    return (text, given.names[int(order[0])], *shares)


# ---------------------------------------------------------------------------------------------------------- tiny BERT


@cache
def tiny_bert() -> Model:
    """A BERT of one layer, trained on a few sentences for masked words and for the next sentence."""
    family = FAMILIES["bert"]
    tokenizer = learn(list(STORY) * 8, family.tokenizer, 400, specials=family.specials, around=family.around)
    settings = {"context": 40, "heads": 2, "inner": 64, "dropout": 0.0, "attention_dropout": 0.0, "weight_scale": 0.1}
    with torch.random.fork_rng(devices=[]):
        model = new("bert", tokenizer, size="1x32", settings=settings, seed=0)
    network: Any = model.network
    singles = [
        read_text(model, text).ids for text in (*STORY, *map(" ".join, zip(STORY[::2], STORY[1::2], strict=True)))
    ]
    ids = tokenizer.ids(list(STORY), specials=False)
    pairs = [(n, other) for n in range(0, len(STORY), 2) for other in range(1, len(STORY), 2)]
    rows, segments = zip(*(paired(model, ids[one], ids[two]) for one, two in pairs), strict=True)
    read, marks = Ragged.of(list(rows)), torch.tensor([segment for row in segments for segment in row])
    answers = torch.tensor([int(two != one + 1) for one, two in pairs])
    masking, specials = Masking.of(tokenizer, RATE, False, 0), specials_of(model)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    with torch.enable_grad():
        for step in range(STEPS):
            batch = masking.apply(drawn_of(singles, specials, step))
            hidden = network(batch.tokens, batch.rows)[batch.targets["places"]]
            loss = F.cross_entropy(network.words(hidden), batch.targets["words"])
            hidden = network(read.tokens, read.rows, marks)
            loss = loss + F.cross_entropy(network.logits("next", hidden, read.rows), answers)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    network.eval()
    return model


def specials_of(model: Model) -> set[int]:
    """Ids of tokens that are never masked."""
    tokenizer = tokenizer_of(model.opened)
    frame = pair_frame(tokenizer)
    return {number for part in frame or () for number in part}


def drawn_of(rows: Sequence[Sequence[int]], specials: set[int], epoch: int) -> Drawn:
    """Rows as training draws them in an epoch."""
    lengths = np.array([len(row) for row in rows])
    tokens = np.array([token for row in rows for token in row])
    numbers = np.arange(len(rows))
    identity = identity_of(np.full(len(rows), epoch), numbers, lengths)
    return Drawn(tokens, np.r_[0, lengths.cumsum()], identity, np.isin(tokens, list(specials)))


# -------------------------------------------------------------------------------------------------------- masked words


def mlm_walk(model: Model | None, text: str | None, seed: int = 0) -> Walk:
    """Which tokens are chosen and what becomes of them, by the code of training, and what the model says there."""
    walk = Walk("Masked language modeling")
    walk.intro = TINY if model is None else f"Model: {model.folder or model.opened.family.name}."
    model = tiny_bert() if model is None else model
    opened, text = model.opened, " ".join(STORY[2:4]) if text is None else text
    if opened.family.generates or "words" not in opened.heads or opened.exported:
        raise UserError(f"{opened.family.name}: the walk mlm needs a model of masked words (bert, roberta, albert ...)")
    masking = Masking.of(tokenizer_of(opened), RATE, False, seed)
    given, specials = read_text(model, text), specials_of(model)
    if all(token in specials for token in given.ids):
        raise UserError("the text has no tokens that could be masked")
    batch = masking.apply(drawn_of([given.ids], specials, 0))
    places, tokens = batch.targets["places"].tolist(), batch.tokens.tolist()
    seen = names_of(model, tokens)
    kinds = [kind_of(given.ids[n], tokens[n], masking.mask) if n in places else "" for n in range(len(tokens))]
    rows = [
        (str(n), name, "chosen" if kind else "") for n, (name, kind) in enumerate(zip(given.names, kinds, strict=True))
    ]
    marked = [(n, 2) for n in places]
    text = f"{len(places)} of {len(given.ids) - sum(token in specials for token in given.ids)} tokens are chosen by "
    text += f"chance: {100 * RATE:.0f} %, at least one. Special tokens are never chosen."
    walk.step("Which tokens are chosen", text, tables=[WalkTable("", ("place", "token", ""), rows, marked)])
    replaced = [(str(n), given.names[n], seen[n], kinds[n]) for n in places]
    text = "A chosen token becomes the mask in 80 % of cases, a random token in 10 %, and stays itself in 10 %. "
    text += "The model does not know which tokens were chosen, so it must be ready to predict every token."
    table = WalkTable("Here", ("place", "token", "the model reads", ""), replaced)
    walk.step("80, 10, 10", text, tables=[table, shares_of(model, given.ids, specials, seed)])
    guess_steps(walk, model, batch, places, given)
    return walk


def kind_of(token: int, shown: int, mask: int) -> str:
    return "mask" if shown == mask else "unchanged" if shown == token else "random token"


def shares_of(model: Model, ids: Sequence[int], specials: set[int], seed: int) -> WalkTable:
    """How often each of the three happens to the same text in many epochs."""
    masking = Masking.of(tokenizer_of(model.opened), RATE, False, seed)
    counts = {"mask": 0, "random token": 0, "unchanged": 0}
    for epoch in range(EPOCHS):
        batch = masking.apply(drawn_of([ids], specials, epoch))
        for place in batch.targets["places"].tolist():
            counts[kind_of(ids[place], int(batch.tokens[place]), masking.mask)] += 1
    total = sum(counts.values())
    rows = [(kind, f"{count:,}", f"{100 * count / total:.1f} %") for kind, count in counts.items()]
    return WalkTable(f"This text in {EPOCHS} epochs", ("", "chosen tokens", "share"), rows)


def guess_steps(walk: Walk, model: Model, batch: Any, places: list[int], given: Any) -> None:
    """The probabilities at the chosen places, and the loss."""
    network: Any = model.network
    device = model.opened.device
    with torch.inference_mode(), evaluating(network):
        rows = Rows.of([len(batch.tokens)], device)
        hidden = network(batch.tokens.to(device), rows, given.segments)
        logits = plain(network.words(hidden[torch.tensor(places, device=device)])).astype(np.float64)
    chances = softmax(logits)
    right = np.array([given.ids[n] for n in places])
    best = np.argsort(-chances, axis=-1, kind="stable")[:, :3]
    words = list(dict.fromkeys([*right.tolist(), *best.flatten().tolist()]))[:12]
    labels = [f"{n} {given.names[n]}" for n in places]
    shape = (len(places), chances.shape[1])
    columns = names_of(model, words)
    shown = walk.add(
        "chances", "p(word)", chances[:, words], labels, columns, shape=shape, scale="sequential", digits=3
    )
    own = chances[np.arange(len(places)), right]
    guesses = [
        ", ".join(f"{name} {row[w]:.2f}" for name, w in zip(names_of(model, top.tolist()), top, strict=True))
        for row, top in zip(chances, best, strict=True)
    ]
    table_rows = [(label, guesses[n], f"{own[n]:.4f}") for n, label in enumerate(labels)]
    loss = float(-np.log(np.maximum(own, 1e-300)).mean())
    text = f"At each chosen place the model predicts the original token. The mean of −log p(right) is {loss:.3f}."
    table = WalkTable("", ("place", "the model says", "p(right)"), table_rows)
    walk.step("What the model says", text, "J = −mean log p(right token)", [shown], tables=[table])


# ------------------------------------------------------------------------------------------------------- next sentence


def paired(model: Model, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
    """Two texts as BERT reads them: the tokens and their segments."""
    frame = pair_frame(tokenizer_of(model.opened))
    assert frame is not None
    before, between, after = frame
    border = len(before) + len(first) + len(between)
    tokens = [*before, *first, *between, *second, *after]
    return tokens, [int(n >= border) for n in range(len(tokens))]


def nsp_walk(model: Model | None, texts: Sequence[str] = ()) -> Walk:
    """Whether one sentence follows another: the pair, its segments, the pooler and two logits."""
    walk = Walk("Next sentence prediction")
    walk.intro = TINY if model is None else f"Model: {model.folder or model.opened.family.name}."
    pairs = [(texts[0], texts[1])] if len(texts) == 2 else [(STORY[2], STORY[3]), (STORY[2], STORY[5])]
    if texts and len(texts) != 2:
        raise UserError("give two texts, or none")
    model = tiny_bert() if model is None else model
    answers = follows(model.opened, pairs)  # refuses a model without this head
    tokenizer = tokenizer_of(model.opened)
    for number, (pair, answer) in enumerate(zip(pairs, answers, strict=True)):
        walk.part, walk.scope = pair[1], f"{number}."
        ids = [list(part) for part in tokenizer.ids(list(pair), specials=False)]
        tokens, segments = paired(model, *ids)
        if len(tokens) > model.config.context:
            raise UserError(
                f"the pair has {len(tokens)} tokens, more than the model's context of {model.config.context}"
            )
        nsp_steps(walk, model, tokens, segments, answer.probability)
    return walk


def nsp_steps(walk: Walk, model: Model, tokens: list[int], segments: list[int], probability: float) -> None:
    network: Any = model.network
    names, device = names_of(model, tokens), model.opened.device
    rows = [(name, "AB"[segment]) for name, segment in zip(names, segments, strict=True)]
    text = "The two texts in one row, with special tokens around and between them. A segment vector tells them apart."
    walk.step("The pair", text, tables=[WalkTable("", ("token", "segment"), rows)])
    ragged = Ragged.of([tokens], device)
    marks = torch.tensor(segments, device=device) if model.config.segments > 1 else None
    with recorded(network) as calls:
        hidden = network(ragged.tokens, ragged.rows, marks)
        logits = plain(network.logits("next", hidden, ragged.rows))
    steps = LayerWalk(walk, calls)
    whole = walk.add("hidden", "x", plain(hidden), names)
    first = walk.add("first", f"x of {names[0]}", plain(hidden)[:1], [names[0]], kind="row", left=whole, indices=[0])
    walk.step("The first token", "After all layers its vector stands for the pair.", "", first)
    dense = steps.linear("pooler", "x W^P", network.pooler.dense, first, "W^P")
    made: dict[str, Any] = {"kind": "map", "left": dense, "function": "tanh"}
    pooled: Array = calls.output(network.pooler)
    bent = walk.add("pooled", "tanh(x W^P)", pooled, **made)
    walk.step("Pooler", "A linear map and tanh.", "tanh(x W^P + b^P)", [*walk.shown(dense), "→", bent])
    labels, output = ["follows", "does not follow"], network.heads["next"].output
    weights = walk.weights("next_weights", "W", plain(output.weight).T, labels)
    bias = walk.add("next_bias", "b", plain(output.bias)[None], ["bias"], labels)
    scores = walk.add("logits", "logits", logits, kind="product", left=bent, right=weights, bias=bias)
    walk.step("Two logits", "One for each answer.", "x W + b", scores)
    made = {"kind": "softmax", "left": scores, "scale": "sequential", "digits": 4}
    shares = walk.add("p", "p", softmax(logits), **made)
    text = f"The second text follows the first with probability {probability:.4f}."
    walk.step("Softmax", text, "p = softmax(logits)", shares)

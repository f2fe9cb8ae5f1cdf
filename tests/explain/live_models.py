"""Models for live pages, and how what a page says is compared with Weft on the same rounded weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import weft
from weft.explain.live import live_data
from weft.explain.live_weights import rounded
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

MARGIN = 1e-3  # two best logits that are closer may change places
LABELS = {"classify": ("bad", "fair", "good"), "pair": ("no", "yes"), "multilabel": ("a", "b", "c", "d")}
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
HEADS = {
    "classify": "classify",
    "pair": "classify",
    "multilabel": "classify",
    "regress": "classify",
    "tag": "tag",
    "answer": "answer",
}

SENTENCES = (
    "The weaver threw a shuttle of red wool through the warp.",
    "A warm and wonderful story, told with care; I would read it again!",
    "Nothing happens for two hours, and then it gets worse.",
    "Ada Lovelace met Charles Babbage in London in 1833.",
    "Was the river cold? Yes, but the boats weren't late.",
    "In winter the shepherd counted 42 sheep and 7 lambs on the hill.",
    "She said: 'Bring the loom to Oslo, Rome or New York.'",
    "Él comió piñas en el café; the naïve façade was Ångström-thin.",
    "This film is neither good nor bad: it's simply there...",
    "prices rose by 3.5 % to $1,200 (before tax)",
)

ANSWERS = """inputs => inputs.map(([text, second]) => {
    const { ids, logits, value, words, spans, gaps, answers, none } = globalThis.session.answer(text, second);
    const scores = gaps && gaps.map(gap => [...gap.logits]);
    return { ids, logits: logits && [...logits], value, words, spans, gaps: scores, answers, none };
})"""
GREEDY = """([texts, most]) => texts.map(text => {
    const steps = [...globalThis.session.generate(text, { temperature: 0, most })];
    const end = globalThis.session.task.end;
    const ids = steps.map(step => step.id).filter(id => id !== end);
    const never = new Set(globalThis.session.task.never);
    const margins = steps.map(({ logits }) => {
        const best = [...logits].filter((_, id) => !never.has(id)).sort((a, b) => b - a);
        return best[0] - best[1];
    });
    return [ids, margins, globalThis.session.continuation(globalThis.session.prompt(text), ids)];
})"""


@dataclass(frozen=True)
class Case:
    """A network to be tried: its family, task, and the settings that differ from the family's own."""

    name: str
    family: str
    task: str
    settings: dict[str, Any]
    tokenizer: str = "wordpiece"
    size: str = "2x64"


def case(name: str, family: str, task: str, tokenizer: str = "wordpiece", size: str = "2x64", **settings: Any) -> Case:
    return Case(name, family, task, settings, tokenizer, size)


CASES = (
    case("gpt2", "gpt2", "complete", "bpe", context=64),
    case("gpt2 rotary gated", "gpt2", "complete", "bpe", context=64, positions="rotary", activation="gated-silu"),
    case("gpt2 alibi", "gpt2", "complete", "unigram", context=64, positions="alibi"),
    case("gpt2 classify", "gpt2", "classify", "bpe", context=64),
    case("openai-gpt", "openai-gpt", "complete", "bpe", context=64),
    case("bert classify", "bert", "classify", context=64),
    case("bert pair", "bert", "pair", context=64),
    case("bert multilabel", "bert", "multilabel", context=64),
    case("bert regress", "bert", "regress", context=64),
    case("bert tag", "bert", "tag", context=64),
    case("bert answer", "bert", "answer", context=48),
    case("bert fill", "bert", "fill", context=64),
    case("roberta classify", "roberta", "classify", "bpe", context=64),
    case("albert classify", "albert", "classify", "unigram", context=64),
    case("distilbert tag", "distilbert", "tag", context=64),
    case("lstm", "lstm", "complete", "word"),
    case("gru", "gru", "complete", "character"),
    case("rnn", "rnn", "complete", "bpe"),
    case("lstm classify", "lstm", "classify", "word", bidirectional=True),
    case("gru attention", "gru", "classify", "wordpiece", bidirectional=True, pooling="attention"),
    case("lstm tag", "lstm", "tag", "word", bidirectional=True),
)


def tokenizers() -> dict[str, Tokenizer]:
    """One of each kind, learned from the sentences."""
    return {kind: learn(SENTENCES * 20, kind, 400) for kind in ("wordpiece", "bpe", "unigram", "word", "character")}


def inputs_of(tried: Case, texts: Sequence[str]) -> list[Any]:
    """Texts, pairs, or texts with a gap."""
    if tried.task in ("pair", "answer"):
        firsts = [text[:12] if tried.task == "answer" else text for text in texts]
        return list(zip(firsts, [*texts[1:], texts[0]], strict=True))
    if tried.task == "complete":
        return [text[:24] for text in texts]
    if tried.task == "fill":
        return [f"[MASK] {text.replace(' the ', ' [MASK] ')}" for text in texts]
    return list(texts)


def model_of(tried: Case, tokenizers: dict[str, Tokenizer]) -> Model:
    """The model of a case, with weights so large that its answers differ from text to text."""
    heads = {"words": None}
    if tried.task in HEADS:
        sizes = {"tag": len(TAGS), "answer": 2, "regress": 1}
        outputs = sizes.get(tried.task) or len(LABELS[tried.task])
        heads = {HEADS[tried.task]: outputs}
    settings = {"weight_scale": 0.15, **tried.settings}
    made = weft.new(tried.family, tokenizers[tried.tokenizer], size=tried.size, settings=settings, heads=heads, seed=3)
    with torch.no_grad():
        for name, parameter in made.network.named_parameters():
            if name.startswith("heads.") or parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.2)
    labels = TAGS if tried.task == "tag" else LABELS.get(tried.task, ())
    card = replace(made.card, task=tried.task, labels=labels)
    return Model(replace(made.opened, card=card), tried.task)


def set_session(page: Any, model: Model, weights: str) -> None:
    data = json.dumps(live_data(model, weights))
    page.evaluate("data => { globalThis.session = new LiveSession(JSON.parse(data)); }", data)


def disagreements(page: Any, model: Model, inputs: Sequence[Any], weights: str = "int8", most: int = 12) -> list[str]:
    """Inputs for which the page and Weft answer differently; none where the two best logits are as good as equal."""
    set_session(page, model, weights)
    twin = rounded(model, weights)
    kind = page.evaluate("() => globalThis.session.task.kind")
    if kind == "next":
        return _greedy(page, twin, inputs, most)
    pairs = [list(given) if isinstance(given, tuple) else [given, None] for given in inputs]
    answers = page.evaluate(ANSWERS, pairs)
    if kind == "fill":
        return _gaps(twin, inputs, answers)
    if kind == "answer":
        return _spans(twin, inputs, answers)
    if kind == "tags":
        return _tags(twin, inputs, answers)
    wrong = []
    for given, answer, prediction in zip(inputs, answers, twin.predict(list(inputs)), strict=True):
        own = np.atleast_1d(np.asarray(prediction.output, dtype=np.float64))
        page_logits = np.atleast_1d(answer["value"] if kind == "value" else answer["logits"])
        best = np.sort(own)[::-1]
        sides = (page_logits > 0).tolist() == (own > 0).tolist() if kind == "labels" else True
        close = np.abs(own).min() < MARGIN if kind == "labels" else len(best) > 1 and best[0] - best[1] < MARGIN
        same = kind == "value" or (sides and int(page_logits.argmax()) == int(own.argmax()))
        if np.abs(page_logits - own).max() > 1e-3 * max(1.0, np.abs(own).max()) or not (same or close):
            wrong.append(f"{given!r}: {own.tolist()} in Python, {page_logits.tolist()} in the browser")
    return wrong


def _greedy(page: Any, twin: Model, inputs: Sequence[str], most: int) -> list[str]:
    wrong, tokenizer = [], twin.tokenizer
    assert tokenizer is not None
    end = tokenizer.id_of("end")
    inputs = list(inputs)
    for number, text in enumerate(inputs):
        while len(tokenizer.ids([text])[0]) + most > twin.config.context:  # Weft would stop at the end of the context
            text = text[: len(text) // 2]
        inputs[number] = text
    for text, (ids, margins, continuation) in zip(inputs, page.evaluate(GREEDY, [list(inputs), most]), strict=True):
        own = [token for token in twin(text, max_tokens=most).tokens if token != end]
        if ids != own:
            first = next((n for n, (a, b) in enumerate(zip(ids, own, strict=False)) if a != b), min(len(ids), len(own)))
            if margins[min(first, len(margins) - 1)] >= MARGIN:
                wrong.append(f"{text!r}: {own} in Python, {ids} in the browser, different from token {first}")
        elif continuation != twin(text, max_tokens=most).text:
            wrong.append(f"{text!r}: {twin(text, max_tokens=most).text!r} in Python, {continuation!r} in the browser")
    return wrong


def _gaps(twin: Model, inputs: Sequence[str], answers: Sequence[Any]) -> list[str]:
    wrong = []
    tokenizer = twin.tokenizer
    assert tokenizer is not None
    for text, answer, words in zip(inputs, answers, twin(list(inputs), top=2), strict=True):
        for logits, candidates in zip(answer["gaps"], words.gaps, strict=True):
            best = np.argsort(logits)[::-1]
            word = tokenizer.decode([int(best[0])]).strip()
            if word != candidates[0].word and logits[best[0]] - logits[best[1]] >= MARGIN:
                wrong.append(f"{text!r}: {candidates[0].word!r} in Python, {word!r} in the browser")
    return wrong


def _spans(twin: Model, inputs: Sequence[Any], answers: Sequence[Any]) -> list[str]:
    wrong = []
    for given, answer, reply in zip(inputs, answers, twin(list(inputs)), strict=True):
        best = answer["answers"][:1]
        own, page_span = (reply.start, reply.end), (0, 0) if answer["none"] else (best[0]["start"], best[0]["end"])
        close = len(answer["answers"]) > 1 and best[0]["logit"] - answer["answers"][1]["logit"] < MARGIN
        if (own != page_span and not close) or (best and abs(best[0]["score"] - reply.best[0].score) > 1e-3):
            wrong.append(f"{given!r}: {reply} in Python, {page_span} and {best} in the browser")
    return wrong


def _tags(twin: Model, inputs: Sequence[str], answers: Sequence[Any]) -> list[str]:
    wrong = []
    for text, answer, spans in zip(inputs, answers, twin(list(inputs)), strict=True):
        own = [(span.start, span.end, span.label) for span in spans.spans]
        page_spans = [(span["start"], span["end"], span["label"]) for span in answer["spans"]]
        gaps = [np.sort(word["logits"])[::-1] for word in answer["words"]]
        if own != page_spans and all(best[0] - best[1] >= MARGIN for best in gaps):
            wrong.append(f"{text!r}: {own} in Python, {page_spans} in the browser")
    return wrong

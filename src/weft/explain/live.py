"""`weft look MODEL --live model.html`: the model itself in one HTML file, with its tokenizer and a forward pass."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import UserError, listed
from weft.explain.live_tokenizer import ranges_of, tokenizer_data
from weft.explain.live_weights import check_size, packed_weights, precision_of
from weft.files import write_text
from weft.nn.positions import alibi_slopes
from weft.picture import component, page
from weft.tasks.fill import filler
from weft.tasks.forward import framing_for, tokenizer_of
from weft.tasks.model import Model
from weft.tasks.perplexity import as_prompts
from weft.text.tags import TagDecoder

TRANSFORMERS = ("gpt2", "openai-gpt", "bert", "roberta", "xlm-roberta", "albert", "distilbert")
RECURRENT = ("rnn", "lstm", "gru")
SAMPLES = {
    "complete": "Once upon a time",
    "fill": "The weaver worked at the {mask}.",
    "answer": "Who wrote the first program?",
    "tag": "Ada Lovelace met Charles Babbage in London.",
}
CONTEXT = "Ada Lovelace wrote the first program in 1843, for a machine that Charles Babbage never built."
LOADING = '<p class="live-loading" role="status">Loading the model</p>'
SECOND = "It was a good read."
SAMPLE = "A warm and wonderful story, told with care."


@dataclass(frozen=True)
class LivePage:
    """What was written."""

    path: Path
    bytes: int
    parameters: int
    weights: str  # int8 or fp16

    def __str__(self) -> str:
        size = f"{self.bytes / 1e6:.1f} MB"
        return f"wrote {self.path}: {size}, {self.parameters:,} parameters in {self.weights}; open it in any browser"


def write_live(
    model: Model,
    path: str | os.PathLike[str],
    weights: str | None = None,
    title: str = "",
    texts: Sequence[str] = (),
) -> LivePage:
    """Write the model as one HTML file that runs in a browser, without a network; it opens with these texts."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path}: a live page is an .html file")
    data = live_data(model, weights)
    if len(texts) > 1 and not data["task"]["pair"]:
        raise UserError(f"this model reads one text, not {len(texts)}")
    data["task"] |= dict(zip(("sample", "second"), texts, strict=False))
    name = title or (model.folder.name if model.folder else model.opened.family.name)
    write_text(path, page(f"{name}, live", [LOADING + component("live", data)]))
    return LivePage(path, path.stat().st_size, data["parameters"], data["precision"])


def live_data(model: Model, weights: str | None = None) -> dict[str, Any]:
    """All that the page holds: sizes, weights, tokenizer, task."""
    opened = model.opened
    if opened.exported:
        raise UserError(
            f"a model for {model.card.backend} has no PyTorch weights: write the page of the one it is from"
        )
    name = opened.family.name
    if name not in (*TRANSFORMERS, *RECURRENT):
        raise UserError(f"a live page runs {listed((*TRANSFORMERS, *RECURRENT), 20)}, not {name}")
    precision = precision_of(model, weights)
    check_size(model, precision)
    task = task_data(model)
    tokenizer = tokenizer_data(tokenizer_of(opened))
    if task["kind"] == "tags":
        classes = tokenizer["tables"]["classes"]
        for letter in "ws":  # Python's own, by which a text is cut into words
            inside = re.compile(rf"\{letter}").match
            classes[f"python-{letter}"] = ranges_of(n for n in range(sys.maxunicode + 1) if inside(chr(n)))
    return {
        "family": name,
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "precision": precision,
        "spec": recurrent_spec(model) if name in RECURRENT else transformer_spec(model),
        "task": task,
        "tokenizer": tokenizer,
        "weights": packed_weights(model, precision),
    }


# ------------------------------------------------------------------ the network


def transformer_spec(model: Model) -> dict[str, Any]:
    """The sizes and switches of a Transformer, as live-model.js reads them."""
    network: Any = model.network
    c = model.config
    causal = model.opened.family.one_way
    names = range(c.layers) if len(network.layers) == c.layers else [0] * c.layers  # ALBERT reads one layer many times
    layers = [{"name": f"layers.{number}", "heads": network.layers[number].attention.heads} for number in names]
    choice = network.mix and network.mix.choice
    return {
        "kind": "transformer",
        "causal": causal,
        "width": c.width,
        "context": c.context,
        "headWidth": c.head_width or c.width // c.heads,
        "layers": layers,
        "activation": c.activation.removeprefix("gated-"),
        "gated": c.activation.startswith("gated-"),
        "epsilon": c.norm_epsilon,
        "normBefore": c.norm_place == "before",
        "finalNorm": c.norm_place == "before",
        "positions": c.positions,
        "unused": network.positions.unused,
        "slopes": alibi_slopes(c.heads).tolist() if c.positions == "alibi" else [],
        "embeddingNorm": network.embedding_norm is not None,
        "widened": network.widened is not None,
        "choice": choice and {"numbers": choice.numbers, "how": choice.how, "weights": choice.weights},
        "pooling": "last" if causal else "first",
        **heads_of(model, c.activation.removeprefix("gated-") if model.opened.family.name not in ROBERTAS else "gelu"),
    }


ROBERTAS = ("roberta", "xlm-roberta")  # the word head has the exact GELU, whatever the layers have


def recurrent_spec(model: Model) -> dict[str, Any]:
    """The same of a recurrent network."""
    c = model.config
    return {
        "kind": "recurrent",
        "causal": not c.bidirectional,
        "cell": c.cell,
        "activation": c.activation,
        "width": c.width,
        "context": c.context,
        "layerCount": c.layers,
        "directions": 2 if c.bidirectional else 1,
        "pooling": c.pooling,
        **heads_of(model, ""),
    }


def heads_of(model: Model, activation: str) -> dict[str, Any]:
    """The word head and the head of labels by the names of their weights."""
    network: Any = model.network
    names = dict(network.named_parameters())
    heads: dict[str, Any] = {"words": None, "head": None}
    if "words" in model.opened.heads:
        under = next(
            (prefix for prefix in ("heads.words.words.", "heads.words.") if any(n.startswith(prefix) for n in names)),
            "heads.words.",
        )
        table = f"{under}decoder.weight" if f"{under}decoder.weight" in names else "tokens.weight"
        biases = [f"{under}decoder.bias", f"{under}bias"] if table != "tokens.weight" else [f"{under}bias"]
        heads["words"] = {
            "dense": "heads.words.dense.weight" in names,
            "activation": activation,
            "narrow": "heads.words.narrow" if "heads.words.narrow.weight" in names else None,
            "table": table,
            "bias": next((name for name in biases if name in names), None),
        }
    task: Any = model.task_object
    head = task.head
    if head in ("classify", "tag", "answer") and head in model.opened.heads:
        deep = f"heads.{head}.dense.weight" in names
        heads["head"] = {
            "name": head,
            "byToken": head in network.BY_TOKEN,
            "pooler": head in network.POOLED,
            "dense": deep,
            "activation": network.heads[head].activation if deep else "",
        }
    return heads


# ------------------------------------------------------------------ the task


def task_data(model: Model) -> dict[str, Any]:
    """What the page shows: labels, tags, words for gaps or the next word, and how a text is framed."""
    opened, name = model.opened, model.task
    framing = framing_for(opened)
    frame: dict[str, Any] = {
        "before": framing.before,
        "after": framing.after,
        "pair": framing.pair,
        "segments": framing.segments,
        "length": framing.length,
        "stride": framing.stride,
        "cutting": framing.cutting,
        "nothing": framing.nothing,
    }
    shared = {"name": name, "frame": frame, "sample": SAMPLES.get(name, SAMPLE), "pair": False, "second": SECOND}
    if name in ("classify", "pair", "multilabel", "regress"):
        return shared | label_task(model)
    if name == "tag":
        labels = model.card.labels or tuple(f"LABEL_{number}" for number in range(opened.heads["tag"]))
        decoder = TagDecoder(labels)
        rules = {"begins": decoder.begins, "ends": decoder.ends, "allowed": decoder.allowed}
        lists = {key: np.asarray(value).astype(int).tolist() for key, value in rules.items()}
        return shared | {"kind": "tags", "labels": labels, "scheme": decoder.scheme, **lists}
    if name == "answer" and "answer" in opened.heads:
        answers: Any = model.task_object
        reading = {"threshold": answers.threshold, "temperature": answers.temperature, "second": CONTEXT}
        return shared | {"kind": "answer", "pair": True, **reading}
    if opened.family.generates and "words" in opened.heads:
        tokenizer = tokenizer_of(opened)
        nothing, some = as_prompts(tokenizer, [[], [-1]])  # -1 stands for the text
        frame |= {"length": opened.config.context, "nothing": nothing, "before": some[:-1]}
        end = tokenizer.id_of("end")
        sample = SAMPLES["complete"]
        return shared | {"kind": "next", "end": end, "never": opened.never, "sample": sample, "frame": frame}
    if name == "fill" or "words" in opened.heads:
        tokenizer, mask = filler(opened)
        frame["length"] = opened.config.context
        sample = SAMPLES["fill"].format(mask=tokenizer.roles.mask)
        return shared | {
            "kind": "fill",
            "mask": mask,
            "maskName": tokenizer.roles.mask,
            "sample": sample,
            "frame": frame,
        }
    raise UserError(
        f"a live page shows classify, pair, multilabel, regress, tag, fill, answer and language models, not {name}"
    )


def label_task(model: Model) -> dict[str, Any]:
    """Labels, several labels or a value for a text or a pair."""
    task: Any = model.task_object
    labels = task.labels
    return {
        "kind": {"label": "label", "labels": "labels", "value": "value"}[task.kind],
        "labels": labels,
        "thresholds": [task.thresholds.get(label, 0.5) for label in labels],
        "center": task.center,
        "spread": task.spread,
        "pair": task.pair,
    }

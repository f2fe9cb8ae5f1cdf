"""The logit lens (nostalgebraist, 2020): which words each layer would predict if it were the last.

T: tokens; V: vocabulary; k: words that are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.errors import UserError, refuse, shown
from weft.explain.seen import SeenText
from weft.explain.token_names import token_names
from weft.explain.view import Interactive, View
from weft.explain.watch import watch
from weft.nn.rows import Ragged
from weft.tasks.classify import TextTask
from weft.tasks.complete import complete, sources_of, writer_of
from weft.tasks.forward import batches, evaluating, framing_for, tokenizer_of
from weft.tasks.model import Model

TOP, MOST = 5, 50  # words of a cell
TOKENS = 200  # columns of a page
WRITTEN = 64  # tokens of an encoder-decoder's own output
NAMED = 32  # columns of a picture that have their words in them


@dataclass(frozen=True)
class LensRow:
    """What one layer would predict at every token."""

    label: str
    ids: Tensor  # T k, the likeliest first
    probabilities: Tensor  # T k


@dataclass(frozen=True, kw_only=True)
class LensPanel(Interactive):
    """A table of layers and tokens, each cell with its likeliest words."""

    is_plot: ClassVar[bool] = True

    def draw(self, axes: Any) -> None:
        rows, tokens = self.content["rows"], self.content["tokens"]
        values = [[cell[0][1] for cell in row["cells"]] for row in rows]
        image = axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axes.set_xticks(range(len(tokens)), tokens, rotation=90)
        if len(tokens) <= NAMED:
            for down, row in enumerate(rows):
                for across, cell in enumerate(row["cells"]):
                    color = "white" if cell[0][1] > 0.5 else "black"
                    axes.text(
                        across,
                        down,
                        shown(cell[0][0], 10),
                        ha="center",
                        va="center",
                        fontsize=8 if len(tokens) <= 16 else 6,
                        color=color,
                    )
        axes.set(title="Likeliest word by layer", xlabel=self.content["axis"])
        axes.figure.colorbar(image, label="probability")


def lens_rows(text: SeenText, layers: int, top: int) -> list[LensRow]:
    """The likeliest words of each layer, the highest layer first; of the embeddings too, where they are as wide."""
    rows: list[LensRow] = []
    for layer in [*range(layers - 1, -1, -1), "embeddings"]:
        try:
            logits = text.lens(layer)
        except UserError:
            if layer == "embeddings" and rows:
                continue
            raise
        best = logits.softmax(-1).topk(min(top, logits.shape[-1]), -1)
        label = "Embeddings" if layer == "embeddings" else f"Layer {layer}"
        rows.append(LensRow(label, best.indices, best.values))
    return rows


def check_lens(model: Model) -> None:
    """Refuse a model whose layers predict no words, with what there is to see instead."""
    opened, name = model.opened, model.opened.family.name
    if opened.exported:
        raise UserError(f"a model exported for {opened.card.backend} hands out no layers: give the folder it came from")
    if opened.family.numbers or opened.family.series:
        raise UserError(f"{name}: this model reads numbers, not text")
    if opened.family.counts:
        raise UserError(f"{name}: this model has no layers; 'weft look next MODEL --text TEXT' shows its next words")
    opened.network.check_lens()
    if not opened.network.stacks():
        raise UserError(f"{name}: this model has no layers that could be looked at")


def watched_text(model: Model, text: str, window: int, target: str | None, notes: list[str]) -> SeenText:
    """The text as the model reads it, watched."""
    opened = model.opened
    network: Any = model.network
    with evaluating(network), torch.inference_mode():
        if opened.family.reads:
            if target is None:
                target = complete(opened, [text], max_tokens=WRITTEN)[0].text
                notes.append(f"The decoder reads the model's own output: {shown(target, 200)!r} (--target TEXT).")
            sources = sources_of(opened, [(opened.card.prefix or "") + text])
            written = Ragged.of(
                [[opened.config.begin, *writer_of(opened).ids([target], specials=False)[0]]], opened.device
            )
            with watch(network, layers={"decoder": range(len(network.stacks()["decoder"]))}) as seen:
                network(written.tokens, written.rows, source=Ragged.of(sources, opened.device))
            return seen.only()
        refuse((target is not None, f"--target is for encoder-decoders, and {opened.family.name} is none"))
        framing, task = framing_for(opened), TextTask("classify", either=True)
        windows = task.encode(task.check_inputs([text]), tokenizer_of(opened), framing).pieces[0]
        if not 1 <= window <= len(windows):
            raise UserError(f"window {window}: this text has {len(windows)} window{'s' * (len(windows) > 1)}")
        if len(windows) > 1:
            notes.append(f"The text has {len(windows)} windows; this is window {window} (--window N shows another).")
        _, batch = next(batches([windows[window - 1]], opened.device, framing.marks(False)))
        with watch(network) as seen:
            if opened.family.generates:
                network.next_states(batch.tokens, batch.rows)
            else:
                network(batch.tokens, batch.rows, batch.segments)
        return seen.only()


def lens_view(
    model: Model, text: str, *, top: int = TOP, window: int = 1, target: str | None = None, name: str | None = None
) -> View:
    """What every layer of a model would predict for a text, as a page: layers down, tokens across.

    A decoder predicts the token after each, an encoder the token at each place. `target`: what the decoder of an
    encoder-decoder reads; the model's own output unless given.
    """
    refuse((not 1 <= top <= MOST, f"--top must be between 1 and {MOST}, not {top}"))
    check_lens(model)
    notes = list[str]()
    seen = watched_text(model, text, window, target, notes)
    ids = seen.ids[:TOKENS]
    if len(seen.ids) > TOKENS:
        notes.append(f"The text has {len(seen.ids):,} tokens; these are the first {TOKENS}.")
    follows = bool(model.opened.family.generates or model.opened.family.reads)
    writer = writer_of(model.opened)
    mask = writer.id_of("mask")
    known: dict[int, str] = {}

    def word(number: int) -> str:
        if number not in known:
            known[number] = token_names(writer, [number])[0]
        return known[number]

    depth = len(model.opened.network.stacks()["decoder" if model.opened.family.reads else ""])
    rows = [{"label": row.label, "cells": cells_of(row, len(ids), word)} for row in lens_rows(seen, depth, top)]
    notes.append(
        "The word head reads the output of every layer as if it were the last, after the final norm. The highest row "
        "is the prediction of the model; a frame marks where a lower layer has the same likeliest word."
    )
    content = {
        "tokens": token_names(writer, ids),
        "follows": follows,
        "chosen": len(ids) - 1 if follows else ids.index(mask) if mask in ids else 0,
        "axis": "token, and the prediction of the one after it"
        if follows
        else "token, and the prediction at its place",
        "rows": rows,
    }
    panel = LensPanel(component="lens", content=content, note=" ".join(notes))
    title = name or (model.folder.name if model.folder else model.opened.family.name)
    return View(f"Logit lens of {title}", (panel,), f"“{shown(text, 300)}”")


def cells_of(row: LensRow, count: int, word: Any) -> list[list[Sequence[Any]]]:
    """Of each token the likeliest words and their probabilities."""
    pairs = zip(row.ids[:count].tolist(), row.probabilities[:count].tolist(), strict=True)
    return [[(word(number), round(share, 6)) for number, share in zip(*pair, strict=True)] for pair in pairs]

"""One word in many contexts: its contextual vectors by layer, as clouds, beside its one static vector."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, one_of, refuse, shown
from weft.explain.bank_sentences import LABELED
from weft.explain.plots import PointLayout, PointPlot
from weft.explain.projection import centroid_accuracy, cosine_distances, kmeans, pca, silhouette, turned_onto
from weft.explain.view import LinePlot, TextTable, View
from weft.picture import ChartLine
from weft.tasks.embed import TokenEmbedder
from weft.tasks.model import Model
from weft.text.records import read_records, read_texts

MOST = 5000  # occurrences
CLUSTERS = 6  # at most, where there are no labels
AROUND = 60  # characters of a sentence on either side of the word
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Occurrences:
    """A word wherever it occurs in some texts, with its vector in every layer."""

    word: str
    texts: list[str]  # of each occurrence, cut around it
    labels: list[str] | None
    layers: list[Floats]  # n d of each layer, the first of them the embeddings
    static: Floats  # d: of the table of tokens

    def spaces(self) -> list[tuple[str, Floats]]:
        """The names and vectors of what is compared: the static vector of every occurrence, then the layers."""
        same = np.broadcast_to(self.static, (len(self.texts), len(self.static)))
        names = ["embeddings", *(f"layer {n}" for n in range(1, len(self.layers)))]
        return [("static", np.array(same)), *zip(names, self.layers, strict=True)]


def read_sentences(
    path: str | os.PathLike[str] | None, column: str = "text", labels: str | None = None
) -> tuple[list[str], list[str] | None]:
    """Sentences of a file, with their senses: after a tab on each line, or in the column `labels` of a table."""
    if path is None:
        return [text for text, _ in LABELED], [sense for _, sense in LABELED]
    name = os.fspath(path)
    if labels is not None:
        records = list(read_records([name]))
        for record in records[:1]:
            for wanted in (column, labels):
                one_of(wanted, list(record.values), f"{name}: column")
        rows = [(str(record.values[column] or ""), str(record.values[labels] or "")) for record in records]
        return [text for text, _ in rows], [sense for _, sense in rows]
    if Path(name).suffix.lower() not in ("", ".txt", ".text", ".tsv"):
        return [document.text for document in read_texts([name], column=column)], None
    pairs = [line.text.partition("\t") for line in read_texts([name], format="txt", documents="line")]
    if pairs and all(tab for _, tab, _ in pairs):
        return [text for text, _, _ in pairs], [sense.strip() for _, _, sense in pairs]
    return [text + tab + rest for text, tab, rest in pairs], None


def occurrences(
    model: LoadedModel, word: str, texts: Sequence[str], labels: Sequence[str] | None = None
) -> Occurrences:
    """Find a word in texts, and its vectors in all layers; a text without it is left out."""
    word = word.strip()
    network: Any = model.network
    refuse(
        (not word or len(word.split()) != 1, f"give one word, not {shown(word)!r}"),
        (model.exported, "an exported model shows no layers: give the model folder that it was exported from"),
        (labels is not None and len(labels) != len(texts), f"{len(labels or ())} labels for {len(texts)} texts"),
    )
    embedder = TokenEmbedder(model, "word", layers="all-concat")
    cuts = np.cumsum(network.state_widths)[:-1]
    rows, own, senses = list[Floats](), list[str](), list[str]()
    for number, answer in enumerate(embedder.texts(texts)):
        for place, (name, (begin, end)) in enumerate(zip(answer.tokens, answer.spans, strict=True)):
            if name.casefold() == word.casefold():
                rows.append(np.asarray(answer.vectors[place], dtype=np.float64))
                own.append(excerpt(texts[number], begin, end))
                senses.append(labels[number] if labels is not None else "")
    if len(rows) < 3:
        raise UserError(f"{word!r} occurs {len(rows)} times in {len(texts)} texts; at least 3 are needed")
    if len(rows) > MOST:
        raise UserError(f"{word!r} occurs {len(rows):,} times; give texts with {MOST:,} occurrences at most")
    layers = np.split(np.stack(rows), cuts, axis=1)
    return Occurrences(word, own, None if labels is None else senses, layers, static_vector(model, word))


def static_vector(model: LoadedModel, word: str) -> Floats:
    """The mean of a word's token embeddings, before positions and layers."""
    assert model.tokenizer is not None
    network: Any = model.network
    (ids,) = model.tokenizer.ids([word], specials=False)
    table = dict(network.named_parameters()).get("tokens.weight")
    if table is None or not ids:  # words of a model that spells: all occurrences are one point all the same
        return np.zeros(1)
    return table.detach()[ids].double().mean(0).cpu().numpy()


def excerpt(text: str, begin: int, end: int) -> str:
    """The text around a word, which stands in brackets."""
    before, after = text[max(0, begin - AROUND) : begin], text[end : end + AROUND]
    left, right = "…" if begin > AROUND else "", "…" if end + AROUND < len(text) else ""
    return " ".join(f"{left}{before}[{text[begin:end]}]{after}{right}".split())


@dataclass(frozen=True)
class Separation:
    """How far apart the senses are in one layer."""

    name: str
    silhouette: float
    accuracy: float | None  # of the nearest centroid, each point left out in turn; None without labels


def separations(instances: Occurrences, groups: NDArray[np.int64], labeled: bool) -> list[Separation]:
    """By layer, the static vectors first."""
    return [
        Separation(
            name,
            silhouette(cosine_distances(vectors), groups),
            centroid_accuracy(vectors, groups) if labeled else None,
        )
        for name, vectors in instances.spaces()
    ]


def clustered(instances: Occurrences, seed: int = 0) -> tuple[NDArray[np.int64], str]:
    """Clusters by k-means in the layer and of the number that give the best silhouette."""
    best, chosen, name = -2.0, np.zeros(len(instances.texts), dtype=np.int64), ""
    for layer, vectors in instances.spaces()[2:] or instances.spaces()[1:]:
        distances = cosine_distances(vectors)
        for count in range(2, min(CLUSTERS, len(vectors) - 1) + 1):
            groups = kmeans(vectors, count, seed)
            if len(set(groups.tolist())) < 2:
                continue
            value = silhouette(distances, groups)
            if value > best:
                best, chosen, name = value, groups, f"{len(set(groups.tolist()))} clusters by k-means in {layer}"
    return chosen, name or "all vectors are equal"


def words_view(
    model: Model,
    word: str,
    texts: Sequence[str],
    labels: Sequence[str] | None = None,
    *,
    layer: int | None = None,
    seed: int = 0,
) -> View:
    """One word in many texts: a point for each occurrence, by layer; `labels` are the senses, one for each text."""
    instances = occurrences(model.opened, word, texts, labels)
    count = len(instances.layers)
    if layer is not None and not 0 <= layer < count:
        raise UserError(f"layer must be between 0 (embeddings) and {count - 1}, not {layer}")
    if instances.labels is not None and len(set(instances.labels)) > 1:
        names = list(dict.fromkeys(instances.labels))
        groups, how = np.array([names.index(label) for label in instances.labels]), "the senses given"
    else:
        groups, how = clustered(instances, seed)
        names = [f"cluster {n + 1}" for n in range(int(groups.max()) + 1)]
    labeled = instances.labels is not None and len(set(instances.labels)) > 1
    scores = separations(instances, groups, labeled) if len(names) > 1 else []
    layouts, before = list[PointLayout](), None
    for number, (name, vectors) in enumerate(instances.spaces()):
        places, share = pca(vectors)
        places = places if before is None else turned_onto(places, before)
        before = before if not places.any() else places
        note = (
            "One static vector: every occurrence is the same point." if not number else f"PCA, {share:.0%} of variance."
        )
        note += f" Silhouette {scores[number].silhouette:.2f}." if scores else ""
        layouts.append(PointLayout(name, places, note))
    chosen = layer + 1 if layer is not None else best_layer(scores, count)
    points = [
        {"label": text, "group": int(group), "note": ""} for text, group in zip(instances.texts, groups, strict=True)
    ]
    plot = PointPlot(
        points=points, layouts=layouts, groups=names, choice="Layer", chosen=chosen, labeled=False,
        note=f"Each point is one “{instances.word}”; colors are {how}. Layers are turned to lie alike.",
    )  # fmt: skip
    panels = (plot, *_score_panels(scores, labeled))
    intro = f"{len(points)} occurrences of “{instances.word}” in {len(texts)} texts."
    return View(f"“{instances.word}” in context", panels, intro)


def best_layer(scores: Sequence[Separation], count: int) -> int:
    """The number of the layout that separates best; the last layer where nothing is compared."""
    return max(range(len(scores)), key=lambda n: scores[n].silhouette) if scores else count


def _score_panels(scores: Sequence[Separation], labeled: bool) -> tuple[LinePlot | TextTable, ...]:
    if not scores:
        return ()
    static, layers = scores[0], scores[1:]
    ends = (0.0, len(layers) - 1.0)
    lines = [
        ChartLine("silhouette", [(float(n), score.silhouette) for n, score in enumerate(layers)], group="silhouette"),
        ChartLine("silhouette of the static vector", [(x, static.silhouette) for x in ends], True, "silhouette"),
    ]
    if labeled:
        points = [(float(n), score.accuracy or 0.0) for n, score in enumerate(layers)]
        lines.append(ChartLine("accuracy of the nearest centroid", points, group="accuracy"))
        chance = [(x, static.accuracy or 0.0) for x in ends]
        lines.append(ChartLine("accuracy with the static vector", chance, True, "accuracy"))
    plot = LinePlot(
        heading="How far the senses are apart", lines=lines, x="layer (0: embeddings)", y="score",
        note="Silhouettes use cosine distances. A centroid is the mean of a sense without the point itself."
        if labeled
        else "Silhouettes use cosine distances, and the clusters of one layer in all of them.",
    )  # fmt: skip
    rows = [
        [score.name, f"{score.silhouette:.3f}", *([f"{score.accuracy:.3f}"] if score.accuracy is not None else [])]
        for score in scores
    ]
    return plot, TextTable(header=["vectors", "silhouette", *(["accuracy"] if labeled else [])], rows=rows)

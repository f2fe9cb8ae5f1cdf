"""The results of a ladder in words, as a table and as one page for somebody who has never seen the project."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.picture import Bar, ChartLine, bar_chart, heading, line_chart, page, paragraph, short, table, verbatim

HEADER = (
    *("model", "bits/byte", "95 % from", "to", "parameters", "on disk"),
    *("trained", "epochs", "tokens/s", "writes/s", "useful context"),
)
Rung = dict[str, Any]


def finished(results: dict[str, Any]) -> list[Rung]:
    """The rungs that came to an end, in the order of the ladder."""
    return [rung for rung in results["rungs"] if "bits_per_byte" in rung]


def value_of(rung: Rung) -> float:
    """Bits per byte on held-out text; a model that rules something out that came needs endlessly many."""
    value = rung["bits_per_byte"]["value"]
    return math.inf if value is None else float(value)


def rows_of(results: dict[str, Any]) -> list[list[str]]:
    """The table, a row for each rung, failed ones with their reason."""
    return [_row(rung) for rung in results["rungs"]]


def _row(rung: Rung) -> list[str]:
    if "bits_per_byte" not in rung:
        return [rung["name"], "failed" if "failed" in rung else "not yet", *[""] * (len(HEADER) - 2)]
    score = rung["bits_per_byte"]
    useful = rung["useful_context"]
    return [
        rung["name"],
        *("endless" if score[key] is None else f"{score[key]:.4f}" for key in ("value", "low", "high")),
        f"{rung['parameters']:,}" + (" counts" if rung["counted"] else ""),
        f"{rung['bytes_on_disk'] / 1e6:.2f} MB",
        f"{rung['seconds']:.1f} s",
        f"{rung['epochs']:.1f}",
        "" if rung["tokens_per_second"] is None else f"{rung['tokens_per_second']:,}",
        f"{rung['generation_tokens_per_second']:,.0f}",
        "" if useful is None else str(useful),
    ]


def failures(results: dict[str, Any]) -> list[str]:
    """Why rungs are missing, one sentence for each."""
    return [f"{rung['name']} failed: {rung['failed']}" for rung in results["rungs"] if "failed" in rung]


def verdict(results: dict[str, Any]) -> str:
    """Who won, by how much, and why, in plain sentences."""
    rungs = sorted(finished(results), key=value_of)
    if len(rungs) < 2:
        return "Too few models have come to an end to say who won."
    best, second = rungs[0], rungs[1]
    sentences = [
        f"The {best['title']} predicted the held-out text best: {value_of(best):.3f} bits per byte, against "
        f"{value_of(second):.3f} of the {second['title']}, which came second."
    ]
    low, high = second["bits_per_byte"]["low"], best["bits_per_byte"]["high"]
    if low is not None and high is not None and low <= high:
        sentences.append("Their intervals overlap, so on another text of this kind the order might be the other.")
    counted = [rung for rung in rungs if rung["counted"] and "gram" in rung["name"]]
    learned = [rung for rung in rungs if not rung["counted"]]
    if counted and learned:
        sentences += _against(counted[0], learned[0])
    return " ".join(sentences)


def _against(counted: Rung, learned: Rung) -> list[str]:
    """Why counting or learning won."""
    gap = value_of(learned) - value_of(counted)
    epochs = f"{learned['epochs']:.1f} passes over the text ({learned['tokens']:,} tokens)"
    curve = [point["bits_per_byte"] for point in learned["curve"]]
    falling = curve[-1 - len(curve) // 3] - curve[-1] if len(curve) >= 3 else 0.0  # in the last third
    if gap > 0:
        sentences = [
            f"Counting won at this budget: the {counted['title']} is {gap:.3f} bits per byte better than the best "
            f"neural network, the {learned['title']}.",
            f"That is so because counting needs one pass: in {counted['seconds']:.1f} s it knew every run of tokens "
            f"that the text holds, while the {learned['title']}, which has to learn by many small corrections, was "
            f"stopped after {epochs}.",
        ]
        if falling > 0.005:
            sentences.append(
                f"Its loss was still falling, by {falling:.3f} bits per byte in the last third of its training: more "
                "minutes, or a GPU, would bring it down further, while counting has nothing more to gain."
            )
        return sentences
    useful, reach = learned["useful_context"], counted.get("reach")
    sentences = [
        f"Learning beat counting: the {learned['title']} is {-gap:.3f} bits per byte better than the best n-gram, the "
        f"{counted['title']}, after {epochs}."
    ]
    if useful is not None and reach is not None and useful > reach:
        sentences.append(
            f"It makes use of about {useful} tokens before the one that it predicts, where the {counted['title']} "
            f"sees {reach}; and what it learns of one word serves for similar ones, which counts cannot do."
        )
    return sentences


def page_of(results: dict[str, Any]) -> str:
    """One page that stands alone."""
    rungs, text = finished(results), results["text"]
    kind = "characters" if text["vocabulary"]["kind"] == "character" else "parts of words"
    budget = results["budget"]
    equal = (
        f"{budget['tokens']:,} tokens to read"
        if "tokens" in budget
        else f"{budget['minutes']:g} minute{'s' * (budget['minutes'] != 1)} of training"
    )
    intro = (
        "A language model predicts how a text goes on. Here models of every age, from plain counting to the "
        f"Transformer, learned from the same text ({', '.join(text['files'])}; {text['train_bytes']:,} bytes, cut into "
        f"{text['vocabulary']['tokens']:,} different {kind}), each with {equal}, and were then asked to predict "
        f"{text['held_out_bytes']:,} bytes that none of them had seen."
    )
    value = text.get("xz_bits_per_byte")
    xz = (
        "" if value is None else f" For comparison, the packer xz, having seen the rest of the text, takes {value:.3f}."
    )
    parts = [
        heading("Which model predicts best") + paragraph(verdict(results)),
        _bars(results),
        paragraph(
            "Bits per byte: how many yes-or-no answers it takes on average to tell the next byte, if the model may "
            "guess first. Fewer is better; 8 is to know nothing. The thin line is the interval in which the figure "
            "would lie in 95 of 100 such texts." + xz
        ),
        heading("The figures")
        + table(list(HEADER), rows_of(results))
        + "".join(map(paragraph, failures(results)))
        + paragraph(
            "Parameters: numbers that were learned, or runs of tokens that were counted. Trained: seconds of training. "
            "Tokens/s: how many tokens a second were read in training; writes/s: how many one stream of text is "
            "written with. Useful context: see below."
        ),
        heading("How they learned") + _curves(rungs, "seconds", "seconds of training"),
        _curves(rungs, "tokens", "tokens read"),
        heading("How far back they look") + _contexts(rungs),
        paragraph(
            "The same places of the held-out text were predicted after 1, 2, 3 and more tokens before them, each time "
            "read from nothing. Where a line has become level, more context is of no use to that model; the table "
            "gives the shortest context that no longer one beats by more than the noise."
        ),
        heading("What each of them is, and writes") + _samples(results),
        heading("How this was measured") + paragraph(_method(results)),
    ]
    return page("The ladder of language models", parts, intro)


def _bars(results: dict[str, Any]) -> str:
    bars = list[Bar]()
    best = min(map(value_of, finished(results)), default=math.inf)
    for rung in results["rungs"]:
        if "bits_per_byte" not in rung:
            note = f"failed: {rung['failed']}" if "failed" in rung else "not yet"
            bars.append(Bar(rung["title"], math.nan, note=note))
            continue
        score, value = rung["bits_per_byte"], value_of(rung)
        note = "endless" if math.isinf(value) else ""
        bars.append(Bar(rung["title"], value, score["low"], score["high"], note, faint=value > best))
    return bar_chart("Held-out text, less is better", bars, "bits per byte")


def _curves(rungs: Sequence[Rung], by: str, x: str) -> str:
    lines = list[ChartLine]()
    end = max((point[by] for rung in rungs for point in rung["curve"]), default=1.0)
    for rung in rungs:
        points = [(point[by], point["bits_per_byte"]) for point in rung["curve"]]
        if rung["counted"]:
            if rung["name"] == "uniform" or math.isinf(value_of(rung)):
                continue
            at = rung["seconds"] if by == "seconds" else rung["tokens"]
            points = [(at, value_of(rung)), (max(end, at), value_of(rung))]
        lines.append(ChartLine(rung["title"], points, dashed=rung["counted"]))
    return line_chart(f"Held-out loss by {x}", lines, x, "bits per byte")


def _contexts(rungs: Sequence[Rung]) -> str:
    lines = [
        ChartLine(
            rung["title"],
            [(point["context"], point["bits_per_byte"]) for point in rung["by_context"] if point["bits_per_byte"]],
            dashed=rung["counted"],
        )
        for rung in rungs
        if rung["by_context"] and rung["name"] not in ("uniform", "unigram")
    ]
    return line_chart("Loss by the number of tokens before", lines, "tokens before", "bits per byte", log_x=True)


def _samples(results: dict[str, Any]) -> str:
    parts = list[str]()
    for rung in results["rungs"]:
        sees = rung["sees"]
        if rung.get("context") and not rung.get("reach"):
            sees = f"{sees}, {rung['context']} of them at most"
        elif rung.get("reach") and not rung["counted"]:
            sees = f"the last {rung['reach']} tokens"
        parts.append(paragraph(f"{rung['title']} ({rung['name']}): {rung['about']}. It sees {sees}."))
        if "sample" in rung:
            parts.append(verbatim(f"{rung['sample']['prompt']}▸{rung['sample']['text']}"))
    return "".join(parts)


def _method(results: dict[str, Any]) -> str:
    text = results["text"]
    unknown = f" {text['unknown']:,} held-out tokens are unknown to the vocabulary." if text.get("unknown") else ""
    return (
        f"Device: {results['device']}; seed {results['seed']}; sizes: {results['budget'].get('size', 'as given')}. "
        "Time of training runs from the first step to the last, the reading of tokens included; looks at the "
        "held-out text, saving, and getting ready (compiling, the first steps) are left out. The speed of the first "
        "steps decides how many steps fit into the time, so that the learning rate falls to its end. Of each neural "
        "network the state with the lowest held-out loss is kept, which favors it a little; n-grams are counted once. "
        "On the way the held-out text is read in separate rows, so the curves end a little above the figures of the "
        "table, for which a window slides over it. Intervals: bootstrap over blocks of 64 tokens. Samples: drawn from "
        f"the model's own chances, one seed, {short(text['train_tokens'])} tokens of text behind them.{unknown}"
    )

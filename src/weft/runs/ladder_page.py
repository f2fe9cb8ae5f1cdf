"""The results of a ladder in words, as a table and as one page for somebody who has never seen the project."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.picture import Bar, ChartLine, bar_chart, heading, line_chart, page, paragraph, short, table, verbatim

HEADER = (
    *("model", "bits/byte", "95 % from", "to", "parameters", "on disk"),
    *("trained", "epochs", "tokens/s", "generates/s", "useful context"),
)
Rung = dict[str, Any]


def finished(results: dict[str, Any]) -> list[Rung]:
    """The rungs that have a result, in the order of the ladder."""
    return [rung for rung in results["rungs"] if "bits_per_byte" in rung]


def value_of(rung: Rung) -> float:
    """Bits per byte on held-out text; infinite for a model that gives some of it probability 0."""
    value = rung["bits_per_byte"]["value"]
    return math.inf if value is None else float(value)


def rows_of(results: dict[str, Any]) -> list[list[str]]:
    """The table, a row for each rung."""
    rows = []
    for rung in results["rungs"]:
        if "bits_per_byte" not in rung:
            rows.append([rung["name"], "failed" if "failed" in rung else "not yet", *[""] * (len(HEADER) - 2)])
            continue
        score, useful, speed = rung["bits_per_byte"], rung["useful_context"], rung["tokens_per_second"]
        bits = ["infinite" if score[key] is None else f"{score[key]:.4f}" for key in ("value", "low", "high")]
        rows.append(
            [
                rung["name"],
                *(bits if score["low"] != score["high"] else [bits[0], "", ""]),  # a constant has no interval
                f"{rung['parameters']:,}" + (" counts" if rung["counted"] else ""),
                f"{rung['bytes_on_disk'] / 1e6:.2f} MB",
                f"{rung['seconds']:.1f} s",
                f"{rung['epochs']:.1f}",
                "" if speed is None else f"{speed:,}",
                f"{rung['generation_tokens_per_second']:,.0f}",
                "" if useful is None else str(useful),
            ]
        )
    return rows


def failures(results: dict[str, Any]) -> list[str]:
    """Why rungs failed, one sentence for each."""
    return [f"{rung['name']} failed: {rung['failed']}" for rung in results["rungs"] if "failed" in rung]


def verdict(results: dict[str, Any]) -> str:
    """Which model won, by how much, and why."""
    rungs = sorted(finished(results), key=value_of)
    if len(rungs) < 2:
        return "Too few models have finished to compare them."
    best, second = rungs[0], rungs[1]
    sentences = [
        f"The {best['title']} predicted the held-out text best: {value_of(best):.3f} bits per byte, against "
        f"{value_of(second):.3f} of the {second['title']}."
    ]
    low, high = second["bits_per_byte"]["low"], best["bits_per_byte"]["high"]
    if low is not None and high is not None and low <= high:
        sentences.append("Their intervals overlap, so the order may differ on another text of this kind.")
    counts = next((rung for rung in rungs if rung["counted"] and "gram" in rung["name"]), None)
    network = next((rung for rung in rungs if not rung["counted"]), None)
    if counts is None or network is None:
        return " ".join(sentences)
    gap = value_of(network) - value_of(counts)
    epochs = f"{network['epochs']:.1f} passes over the text ({network['tokens']:,} tokens)"
    curve = [point["bits_per_byte"] for point in network["curve"]]
    falling = curve[-1 - len(curve) // 3] - curve[-1] if len(curve) >= 3 else 0.0  # in the last third
    if gap > 0:
        sentences.append(
            f"Counting won at this budget: the {counts['title']} is {gap:.3f} bits per byte better than the best "
            f"network, the {network['title']}. Counting needs one pass and took {counts['seconds']:.1f} s; the network "
            f"learns by many small updates and was stopped after {epochs}."
        )
        if falling > 0.005:
            sentences.append(
                f"Its loss was still falling, by {falling:.3f} bits per byte in the last third of its training: more "
                "minutes, or a GPU, would lower it further. Counts cannot improve."
            )
        return " ".join(sentences)
    sentences.append(
        f"Learning beat counting: the {network['title']} is {-gap:.3f} bits per byte better than the best n-gram, the "
        f"{counts['title']}, after {epochs}."
    )
    useful, reach = network["useful_context"], counts.get("reach")
    if useful is not None and reach is not None and useful > reach:
        sentences.append(
            f"It uses about {useful} preceding tokens, while the {counts['title']} sees {reach}; and what it learns "
            "about one word also applies to similar words, which counts cannot do."
        )
    return " ".join(sentences)


def page_of(results: dict[str, Any]) -> str:
    """One self-contained page."""
    rungs, text, budget = finished(results), results["text"], results["budget"]
    kind = "characters" if text["vocabulary"]["kind"] == "character" else "subwords"
    minutes, tokens, xz = budget.get("minutes"), budget.get("tokens"), text.get("xz_bits_per_byte")
    equal = f"{tokens:,} tokens" if tokens else f"{minutes:g} minute{'s' * (minutes != 1)} of training"
    intro = (
        "A language model predicts how a text continues. These models were trained on the same text "
        f"({', '.join(text['files'])}; {text['train_bytes']:,} bytes, {text['vocabulary']['tokens']:,} {kind})"
        f", each with {equal}, and evaluated on {text['held_out_bytes']:,} bytes that none of them had seen."
    )
    best, bars = min(map(value_of, rungs), default=math.inf), list[Bar]()
    for rung in results["rungs"]:
        if "bits_per_byte" not in rung:
            note = f"failed: {rung['failed']}" if "failed" in rung else "not yet"
            bars.append(Bar(rung["title"], math.nan, note=note))
            continue
        score, value = rung["bits_per_byte"], value_of(rung)
        note = "infinite" if math.isinf(value) else ""
        bars.append(Bar(rung["title"], value, score["low"], score["high"], note, faint=value > best))
    contexts = [
        ChartLine(
            rung["title"],
            [(point["context"], point["bits_per_byte"]) for point in rung["by_context"] if point["bits_per_byte"]],
            dashed=rung["counted"],
        )
        for rung in rungs
        if rung["by_context"] and rung["name"] not in ("uniform", "unigram")
    ]
    parts = [
        heading("Which model predicts best") + paragraph(verdict(results)),
        bar_chart("Held-out text, lower is better", bars, "bits per byte"),
        paragraph(
            "Bits per byte: the average number of bits needed to encode the next byte with the model's probabilities. "
            "Lower is better; 8 is no better than chance. The thin line is the 95 % interval."
            + ("" if xz is None else f" The compressor xz needs {xz:.3f} after compressing the rest of the text.")
        ),
        heading("Results") + table(list(HEADER), rows_of(results)) + "".join(map(paragraph, failures(results))),
        paragraph(
            "Parameters: learned weights, or counted n-grams. Trained: seconds of training. Tokens/s: tokens read per "
            "second of training. Generates/s: tokens generated per second for one text. Useful context: see below."
        ),
        heading("Loss during training") + _curves(rungs, "seconds", "seconds of training"),
        _curves(rungs, "tokens", "tokens read"),
        heading("Loss by context length")
        + line_chart("Loss by preceding tokens", contexts, "preceding tokens", "bits per byte", log_x=True),
        paragraph(
            "The same positions of the held-out text, predicted after 1, 2 and more tokens from an empty state. Where "
            "a line is level, more context does not help. The useful context is the shortest one that no longer one "
            "beats by more than noise."
        ),
        heading("The models and their samples") + _samples(results["rungs"]),
        heading("Method") + paragraph(_method(results)),
    ]
    return page("The ladder of language models", parts, intro)


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


def _samples(rungs: Sequence[Rung]) -> str:
    parts = list[str]()
    for rung in rungs:
        sees = rung["sees"]
        if rung.get("context") and not rung.get("reach"):
            sees = f"{sees}, at most {rung['context']} of them"
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
        "Training time includes reading tokens, but not evaluation, saving, compiling or the first steps. The speed of "
        "the first steps determines how many steps fit into the time, so that the learning-rate schedule ends in time. "
        "Of each network the state with the lowest held-out loss is kept, which favors it a little. During training "
        "the held-out text is read in separate rows, so the curves end a little above the table, which uses a sliding "
        "window. Intervals: bootstrap over blocks of 64 tokens. Samples: temperature 1, one seed. "
        f"Training text: {short(text['train_tokens'])} tokens.{unknown}"
    )

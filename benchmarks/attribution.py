"""Which words mattered: do integrated gradients add up, and do methods find a word that was planted?

1. Completeness: integrated gradients must add up to the logit less that of the baseline. Models of several families and
   tasks with random, large weights; the largest and the median relative error over all texts.
2. A planted keyword: texts of common words, in half of which a nonsense word decides the label. Two classifiers are
   trained with `weft.finetune`: all weights; and the head alone on a frozen encoder, whose attention cannot learn where
   to look. Of the test texts with the keyword, the share in which it has the largest value.

    python benchmarks/attribution.py
    python benchmarks/attribution.py --smoke
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import common

import weft
from weft.checkpoint.families import FAMILIES as FAMILY_TABLE
from weft.explain.attribution import METHODS, attribute
from weft.tasks.model import Model
from weft.text.tokenizers.training import learn

TEXT = (
    "the a of and to in is that it was for on with as be at by this from have or one had not but what all were when we "
    "there can an your which their said if do"
)
WORDS = TEXT.split()
KEYWORD = "zorbik"
LABELS = ("no", "so", "yes")
TAGS = ("O", "B-NAME", "I-NAME")
FAMILIES = (
    ("bert", "classify"), ("bert", "tag"), ("bert", "answer"), ("bert", "fill"), ("deberta", "classify"),
    ("xlnet", "classify"), ("gpt2", "classify"), ("gpt2", "complete"), ("lstm", "classify"), ("lstm", "complete"),
    ("gru", "tag"), ("cnn", "classify"),
)  # fmt: skip


def sentence(chance: random.Random, words: int = len(WORDS), shortest: int = 8, longest: int = 24) -> list[str]:
    return chance.choices(WORDS[:words], k=chance.randint(shortest, longest))


def model_of(family: str, task: str, size: str, seed: int) -> Model:
    """A model with random weights, large enough that every word changes the logits."""
    outputs = {"classify": len(LABELS), "tag": len(TAGS), "answer": 2}
    known = FAMILY_TABLE[family]
    chance = random.Random(seed)
    texts = [" ".join(sentence(chance)) for _ in range(300)]
    tokenizer = learn(texts, known.tokenizer, 400, specials=known.specials, around=known.around)
    settings: dict[str, Any] = {"weight_scale": 0.15} | ({} if family in ("lstm", "gru", "cnn") else {"context": 128})
    heads = {task: outputs[task]} if task in outputs else None
    layers = None if family == "cnn" else size
    model = weft.new(family, tokenizer, size=layers, settings=settings, heads=heads, seed=seed)
    labels = {"classify": LABELS, "tag": TAGS}.get(task)
    return Model(replace(model.opened, card=replace(model.card, task=task, labels=labels)), task)


def input_of(task: str, chance: random.Random) -> Any:
    words = sentence(chance)
    if task == "answer":
        return "which one is it", " ".join(words)
    if task == "fill":
        words[chance.randrange(len(words))] = "[MASK]"
    return " ".join(words)


def completeness(texts: int, size: str) -> dict[str, Any]:
    """The errors of integrated gradients by family and task."""
    results: dict[str, Any] = {}
    for family, task in FAMILIES:
        model, chance, start = model_of(family, task, size, 1), random.Random(2), time.perf_counter()
        found = [attribute(model, input_of(task, chance)) for _ in range(texts)]
        errors = [each.error or 0.0 for each in found]
        results[f"{family} {task}"] = {
            "largest_error": max(errors),
            "median_error": statistics.median(errors),
            "median_passes": statistics.median(each.steps for each in found),
            "seconds_per_text": round((time.perf_counter() - start) / texts, 3),
        }
        print(
            f"{family:8} {task:9} largest error {max(errors):.4%}, median {statistics.median(errors):.5%}", flush=True
        )
    return results


def planted(count: int, seed: int) -> list[dict[str, str]]:
    """Texts of common words; every other one has the keyword, which decides the label."""
    chance, rows = random.Random(seed), []
    for number in range(count):
        words = sentence(chance, 20, 6, 12)
        if number % 2:
            words.insert(chance.randint(0, len(words)), KEYWORD)
        rows.append({"text": " ".join(words), "label": "marked" if number % 2 else "plain"})
    return rows


def keyword_share(attribution: Any) -> float:
    """The keyword's part of the sizes of all values: 1 where no other word has any."""
    sizes = {word: 0.0 for word in (True, False)}
    for word in attribution.words:
        sizes[word.word == KEYWORD] += abs(word.value)
    return sizes[True] / max(sum(sizes.values()), 1e-300)


def keyword(arguments: argparse.Namespace, freeze: str | None) -> dict[str, Any]:
    """How often each method puts the keyword first."""
    tokenizer = learn([row["text"] for row in planted(1000, 2)], "wordpiece", 300)
    size = arguments.frozen_size if freeze else arguments.size
    settings = {"context": 64, "heads": 4, **({"weight_scale": 0.05} if freeze else {})}
    base = weft.new("bert", tokenizer, size=size, settings=settings, seed=arguments.seed)
    task: Any = {"name": "classify", **({"freeze": freeze} if freeze else {})}
    training = {"epochs": arguments.frozen_epochs if freeze else arguments.epochs}
    training |= {"learning_rate": 1e-2} if freeze else {}
    model = weft.finetune(planted(arguments.rows, 0), task=task, base=base, training=training)
    checked = planted(200, 3)
    accuracy = statistics.mean(model(row["text"]).label == row["label"] for row in checked)
    tests = [row["text"] for row in planted(2 * arguments.texts, 1) if row["label"] == "marked"]
    result: dict[str, Any] = {"accuracy": accuracy, "keyword_first": {}, "keyword_share": {}}
    print(f"\nplanted keyword, {'frozen encoder' if freeze else 'all weights trained'}: accuracy {accuracy:.1%}")
    for method in METHODS:
        attributions = [attribute(model, text, method, "marked") for text in tests]
        first = [max(each.words, key=lambda word: word.value).word == KEYWORD for each in attributions]
        shares = [keyword_share(each) for each in attributions]
        result["keyword_first"][method], result["keyword_share"][method] = map(statistics.mean, (first, shares))
        if method == "integrated-gradients":
            result["largest_error"] = max(each.error or 0.0 for each in attributions)
        share = f"with {statistics.mean(shares):5.1%} of all values"
        print(
            f"  {method:22} keyword first in {statistics.mean(first):6.1%} of {len(tests)} texts, {share}", flush=True
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2x64")
    parser.add_argument("--frozen-size", default="2x256", help="of the frozen encoder: its numbers must hold each word")
    parser.add_argument("--rows", type=int, default=1000, help="rows that the classifiers are trained on")
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--frozen-epochs", type=float, default=10.0)
    parser.add_argument("--texts", type=int, default=100, help="texts that are explained")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, default=common.RESULTS / "attribution.json")
    arguments = common.parse(parser, size="1x64", frozen_size="1x64", rows=40, epochs=1.0, frozen_epochs=1.0, texts=2)
    results = {
        "machine": common.machine(),
        "completeness": completeness(arguments.texts, arguments.size),
        "trained": keyword(arguments, None),
        "frozen": keyword(arguments, "encoder"),
    }
    largest = max(each["largest_error"] for each in results["completeness"].values())
    largest = max(largest, results["trained"]["largest_error"], results["frozen"]["largest_error"])
    print(f"\nlargest completeness error {largest:.3%}: {'within' if largest <= 0.01 else 'NOT within'} 1 %")
    common.write(arguments.result, results)


if __name__ == "__main__":
    sys.exit(main())

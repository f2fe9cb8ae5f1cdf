"""XLM on Tatoeba's English and German sentences: does a translation language model align the languages?

    WEFT_DATA=DIR python benchmarks/xlm.py [--size 4x256] [--steps 3000] [--tokens 16384] [--seeds 1]

Two models of one size and one vocabulary read as many tokens in as many steps: one the sentences of both languages
(MLM), the other half of the time sentence pairs (MLM + TLM; Conneau and Lample, 2019). Each sentence is a row. Of 1,000
pairs neither sentence of which was seen, each sentence finds its translation by the cosine of mean hidden states: the
share that finds its own, by layer and in both directions. Then both are fine-tuned on TREC's questions, beside a model
of the same size from scratch. Needs tatoeba/deu-eng.zip and nltk/qc.zip.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, machine, parse, write

import weft
from weft.models.shared import mean_of
from weft.nn.rows import Ragged
from weft.training.log import read_metrics

Pairs = list[tuple[str, str]]
WORDS = 4  # of a held-out sentence at least: the shortest say too little to be told apart


def read_pairs(data: Path, held: int) -> tuple[Pairs, Pairs]:
    """The pairs to learn from, and those held out: no sentence of theirs is in another pair."""
    with zipfile.ZipFile(data / "tatoeba" / "deu-eng.zip") as archive:
        lines = archive.read("deu.txt").decode("utf-8").splitlines()
    pairs = list(dict.fromkeys((cells[0], cells[1]) for cells in (line.split("\t") for line in lines)))
    random.Random(0).shuffle(pairs)
    test: Pairs = []
    english, german = set[str](), set[str]()
    for one, other in pairs:
        fits = min(len(one.split()), len(other.split())) >= WORDS and one not in english and other not in german
        if fits and len(test) < held:
            test.append((one, other))
            english.add(one)
            german.add(other)
    return [pair for pair in pairs if pair[0] not in english and pair[1] not in german], test


def write_texts(folder: Path, pairs: Pairs, test: Pairs) -> None:
    folder.mkdir()
    for name, rows in (("train", pairs), ("test", test)):
        (folder / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
        for side, language in enumerate(("en", "de")):
            (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in rows), encoding="utf-8")


def pretrained(given: argparse.Namespace, texts: Path, out: Path, paired: bool, seed: int, batch: int) -> Any:
    """One model, and its held-out losses at the first and the last evaluation."""
    text: dict[str, Any] = {"documents": "line"}
    for key, name in (("files", "train"), ("dev", "test")):
        text[key] = [f"{language}={texts / name}.{language}" for language in ("en", "de")]
    if paired:
        text |= {"pairs": [f"en-de={texts / 'train.tsv'}"], "dev_pairs": [f"en-de={texts / 'test.tsv'}"]}
    vocabulary = texts.parent / "vocabulary"
    model = weft.pretrain(
        model={"family": "xlm", "size": given.size},
        text=text,
        tokenizer={"folder": str(vocabulary)} if vocabulary.exists() else {"kind": "bpe", "size": given.vocabulary},
        objective={"length": 64, "rows": "documents", "name": "mlm+tlm" if paired else "mlm"},
        training={"steps": given.steps, "batch": batch, "evaluate_every": max(1, given.steps // 4), "warmup": 0.06},
        seed=seed,
        device=given.device,
        out=str(out),
    )
    if not vocabulary.exists():
        assert model.opened.tokenizer is not None
        vocabulary.mkdir()
        model.opened.tokenizer.save(vocabulary)
    lines = [line for line in read_metrics(out / "run" / "metrics.jsonl") if "validation_loss" in line]
    keys = ["validation_loss", *(f"validation_{name}" for name in ("en", "de", "en-de"))]
    return model, {key.removeprefix("validation_"): [lines[0].get(key), lines[-1].get(key)] for key in keys}


@torch.inference_mode()
def vectors(model: Any, sentences: Sequence[str], language: str, device: str) -> list[torch.Tensor]:
    """By layer, a vector of length 1 for each sentence: the mean of its hidden states."""
    opened = model.opened.in_language(language)
    network = opened.network.to(device).eval()
    by_layer: list[list[torch.Tensor]] = [[] for _ in range(opened.config.layers + 1)]
    for begin in range(0, len(sentences), 250):
        ids = opened.tokenizer.ids(sentences[begin : begin + 250])
        batch, states = Ragged.of([row[: opened.config.context] for row in ids], device), list[torch.Tensor]()
        network(batch.tokens, batch.rows, states=states)
        for layer, state in zip(by_layer, states, strict=True):
            layer.append(torch.nn.functional.normalize(mean_of(state, batch.rows).float(), dim=-1))
    return [torch.cat(layer) for layer in by_layer]


def retrieval(model: Any, test: Pairs, device: str) -> dict[str, list[float]]:
    """The share of sentences that find their translation, by layer, from English to German and back."""
    english, german = (vectors(model, [p[side] for p in test], name, device) for side, name in enumerate(("en", "de")))
    right, found = torch.arange(len(test), device=device), dict[str, list[float]]()
    for name, ones, others in (("en->de", english, german), ("de->en", german, english)):
        both = zip(ones, others, strict=True)
        found[name] = [float(((one @ other.T).argmax(1) == right).float().mean()) for one, other in both]
    return found


def questions(data: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """TREC's questions and the six kinds of what they ask for (Li and Roth, 2002)."""
    parts = []
    with zipfile.ZipFile(data / "nltk" / "qc.zip") as archive:
        for part in ("train", "test"):
            lines = archive.read(f"qc/{part}.txt").decode("latin-1").splitlines()
            rows = [line.partition(" ")[::2] for line in lines if line.strip()]
            parts.append([{"text": text, "label": label.split(":")[0]} for label, text in rows])
    return parts[0], parts[1]


def finetuned(given: argparse.Namespace, base: Path | None, vocabulary: Path, seed: int, scratch: Path) -> float:
    """Accuracy on TREC's test, from a base or from scratch."""
    train, test = questions(given.data)
    begin: dict[str, Any] = {"base": str(base)} if base is not None else {}
    if base is None:
        begin = {"model": {"family": "xlm", "size": given.size}, "tokenizer": {"folder": str(vocabulary)}}
    task = {"name": "classify", "baseline": False, **({"language": "en"} if base is not None else {})}
    training = {"epochs": given.epochs, "batch": 32, "learning_rate": 2e-4}
    model = weft.finetune(
        train, task=task, training=training, seed=seed, device=given.device, out=str(scratch), **begin
    )
    return model.to(given.device).evaluate(test).scores["accuracy"].value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("WEFT_DATA"), help="where tatoeba and nltk lie")
    parser.add_argument("--size", default="4x256")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of a step")
    parser.add_argument("--pairs", type=int, default=200_000, help="sentence pairs to learn from, at most")
    parser.add_argument("--held", type=int, default=1000, help="pairs to retrieve")
    parser.add_argument("--epochs", type=float, default=10, help="of fine-tuning")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--result", type=Path, default=RESULTS / "xlm.json")
    given = parse(parser, size="1x64", vocabulary=400, steps=8, tokens=512, held=20, epochs=1.0)
    if given.data is None:
        raise SystemExit("where is the data? give --data DIR or set WEFT_DATA")
    began = time.perf_counter()
    pairs, test = read_pairs(given.data, given.held)
    pairs = pairs[: given.pairs]
    results: dict[str, Any] = {"machine": machine(), **{key: vars(given)[key] for key in ("size", "steps", "tokens")}}
    results |= {"pairs": len(pairs), "held_out": len(test), "runs": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        texts = Path(folder) / "texts"
        write_texts(texts, pairs, test)
        # Tokens of a sentence on average, about: characters by those of a token, and two special ones.
        mean = statistics.mean(len(a) + len(b) for a, b in pairs[:5000]) / 2 / 3.6 + 2
        for seed in range(given.seeds):
            for name in ("mlm", "mlm+tlm"):
                paired, out = name == "mlm+tlm", Path(folder) / f"{name}-{seed}"
                rows = given.tokens / (mean if not paired else 4 * mean / 3)  # half of the tokens are of pairs
                model, losses = pretrained(given, texts, out, paired, seed, max(1, round(rows)))
                line: dict[str, Any] = {"objective": name, "seed": seed, "losses": losses}
                line["tokens_read"] = read_metrics(out / "run" / "metrics.jsonl")[-1].get("tokens")
                line["retrieval"] = retrieval(model, test, given.device)
                line["trec"] = finetuned(
                    given, out, texts.parent / "vocabulary", seed, Path(folder) / f"{name}-qc-{seed}"
                )
                results["runs"].append(line)
                show(line)
            scratch = finetuned(given, None, texts.parent / "vocabulary", seed, Path(folder) / f"scratch-{seed}")
            results["runs"].append({"objective": "scratch", "seed": seed, "trec": scratch})
            print(f"scratch, seed {seed}: TREC accuracy {scratch:.4f}", flush=True)
    results["seconds"] = round(time.perf_counter() - began, 1)
    write(given.result, results)
    print(f"{results['seconds']} s; {given.result}")


def show(line: dict[str, Any]) -> None:
    losses = ", ".join(f"{name} {a:.3f} -> {b:.3f}" for name, (a, b) in line["losses"].items() if a is not None)
    print(f"{line['objective']}, seed {line['seed']}: held-out {losses}; {line['tokens_read']:,} tokens", flush=True)
    for name, shares in line["retrieval"].items():
        print(f"  retrieval {name}: by layer {'  '.join(f'{share:.3f}' for share in shares)}")
    print(f"  TREC accuracy {line['trec']:.4f}", flush=True)


if __name__ == "__main__":
    main()

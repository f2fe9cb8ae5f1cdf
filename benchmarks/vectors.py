"""Word vectors: word2vec and GloVe on IMDb beside gensim, in use for sentiment, and mapped between two languages.

    python benchmarks/vectors.py                      all parts, on the CPU, beside gensim where it is installed
    python benchmarks/vectors.py --device cuda        ours alone, on a GPU
    python benchmarks/vectors.py --only words         one part: words, sentiment or map
    python benchmarks/vectors.py --reviews 7500       less text, to see that all works

Data lies in $WEFT_DATA, or in --data: imdb, words, tatoeba. Words are cut by Weft for both; gensim gets its own
defaults (window 5, 5 words of noise, sample 0.001) and as many threads as Weft. Weft's usual rates and sizes were
chosen by WordSim-353 and MEN on a part of this same text; so gensim learns at several rates (--peer-rates; 0.025 is its
default), and the best of them by the mean of both sets stands beside Weft. Times are of that run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, parse, write

import weft
from weft.runs.pretrain import learn_vectors
from weft.tasks.word_vectors import evaluate_words, learn_map, open_words, read_pairs
from weft.training.log import read_metrics

SETS = ("EN-WS-353-ALL.txt", "EN-MEN-TR-3k.txt", "EN-SIMLEX-999.txt")
ANALOGIES = "questions-words.txt.xz"
WAYS: dict[str, dict[str, Any]] = {
    "skip-gram": {"kind": "word2vec", "mode": "skip-gram"},
    "cbow": {"kind": "word2vec", "mode": "cbow"},
    "glove": {"kind": "glove"},
}
LEAST = 10  # sentences that both words of a pair must share a place in, to be in the dictionary
DICE = 0.4  # how much of their sentences they must share

# Runs by itself, under any Python that has gensim: lines of words in, times and a text file of vectors out.
PEER = """
import json, sys, time
import gensim
from gensim.models import Word2Vec
text, out, mode, epochs, threads, seed, rate = sys.argv[1:]
sentences = [line.split() for line in open(text, encoding="utf-8")]
model = Word2Vec(sg=int(mode == "skip-gram"), workers=int(threads), seed=int(seed), alpha=float(rate))
begin = time.perf_counter()
model.build_vocab(sentences)
counted = time.perf_counter()
model.train(sentences, total_examples=len(sentences), epochs=int(epochs))
done = time.perf_counter()
model.wv.save_word2vec_format(out, binary=True)
print(json.dumps({"vocabulary_seconds": counted - begin, "seconds": done - counted, "version": gensim.__version__}))
"""


def scores(vectors: Path, data: Path, analogies: bool = True) -> dict[str, Any]:
    """Spearman on the sets of pairs, accuracy on Google's analogies, and how many could be asked."""
    files = [data / "words" / name for name in SETS + ((ANALOGIES,) if analogies else ())]
    found = [one for one in evaluate_words(open_words(vectors), files) if not one.part]
    return {
        one.name: {
            "value": round(one.score.value, 4),
            "low": round(one.score.low, 4),
            "high": round(one.score.high, 4),
            "used": one.used,
            "asked": one.asked,
        }
        for one in found
    }


def show(name: str, found: dict[str, Any]) -> None:
    parts = [f"{key.removesuffix('.txt')[:16]} {value['value']:.3f}" for key, value in found["scores"].items()]
    speed = f"{found['seconds']:8.1f} s  {found['words_per_second']:12,.0f} words/s"
    print(f"{name:22}  {speed}  {'  '.join(parts)}", flush=True)


# ------------------------------------------------------------------------------------------------------ IMDb's words


def reviews(data: Path, most: int | None) -> list[str]:
    found: list[str] = []
    for split in ("train", "test"):
        with lzma.open(data / "imdb" / f"{split}.tsv.xz", "rt", encoding="utf-8") as file:
            next(file)
            found += [line.rstrip("\n").split("\t")[3] for line in file]
    return found[:most]


def cut_words(folder: Path, out: Path, text: Path) -> int:
    """The text as words with spaces between, cut as the folder's own tokenizer does; how many there are."""
    tokenizer = weft.load(folder).tokenizer
    assert tokenizer is not None
    normalize, cut = tokenizer.library.normalizer, tokenizer.library.pre_tokenizer
    assert normalize is not None and cut is not None
    total = 0
    with open(text, encoding="utf-8") as lines, open(out, "w", encoding="utf-8") as file:
        for line in lines:
            words = [word for word, _ in cut.pre_tokenize_str(normalize.normalize_str(line.rstrip("\n")))]
            total += len(words)
            file.write(" ".join(words) + "\n")
    return total


def ours(text: Path, out: Path, way: str, args: argparse.Namespace, data: Path, **plan: Any) -> dict[str, Any]:
    """One run of Weft, timed whole and without what comes before the first step."""
    shutil.rmtree(out, ignore_errors=True)
    plan = {**WAYS[way], "threads": args.threads, **plan}
    if args.epochs and way != "glove":
        plan["epochs"] = args.epochs
    begin = time.perf_counter()
    learn_vectors(vectors=plan, text={"files": [str(text)]}, out=str(out), device=args.device, seed=args.seed)
    whole = time.perf_counter() - begin
    last = read_metrics(out / "run" / "metrics.jsonl")[-1]
    seconds = last["seconds"]
    return {
        "whole_seconds": round(whole, 2),
        "seconds": round(seconds, 2),
        "words_per_second": round(last["tokens"] / seconds),
        "scores": scores(out, data),
    }


def peer(
    python: str, text: Path, out: Path, mode: str, rate: float, args: argparse.Namespace, words: int, data: Path
) -> dict[str, Any]:
    """One run of gensim at this rate."""
    epochs = args.epochs or 5
    command = [python, "-c", PEER, str(text), str(out), mode, *map(str, (epochs, args.threads, args.seed, rate))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = found["seconds"]
    return {
        "version": found["version"],
        "rate": rate,
        "whole_seconds": round(found["vocabulary_seconds"] + seconds, 2),
        "seconds": round(seconds, 2),
        "words_per_second": round(words * epochs / seconds),
        "scores": scores(out, data),
    }


def liked(found: dict[str, Any]) -> float:
    """The mean of WordSim-353 and MEN."""
    values = [one["value"] for name, one in found["scores"].items() if "WS-353" in name or "MEN" in name]
    return sum(values) / len(values)


def words_part(args: argparse.Namespace, data: Path, out: Path) -> dict[str, Any]:
    text = out / "imdb.txt"
    texts = reviews(data, args.reviews)
    text.write_text("\n".join(texts) + "\n", encoding="utf-8")
    python = args.gensim_python or (sys.executable if importlib.util.find_spec("gensim") else None)
    python = None if (args.device or "cpu") != "cpu" else python
    found: dict[str, Any] = {"reviews": len(texts), "threads": args.threads, "rounds": []}
    cut, words = out / "imdb.words.txt", 0
    for turn in range(args.rounds):
        one: dict[str, Any] = {}
        for way in args.ways:
            one[way] = {"weft": ours(text, out / way, way, args, data)}
            show(f"weft {way}", one[way]["weft"])
            if python is not None and way != "glove":
                words = words or cut_words(out / way, cut, text)
                file = out / f"gensim.{way}.bin"
                rates = [peer(python, cut, file, way, rate, args, words, data) for rate in args.peer_rates]
                for each in rates:
                    show(f"gensim {way} {each['rate']:g}", each)
                best = max(rates, key=liked)
                quick = one[way]["weft"]["words_per_second"] / best["words_per_second"]
                one[way] |= {"gensim": best, "gensim_rates": rates, "times_gensim": round(quick, 2)}
                print(f"{'':22}  {quick:.2f} x the speed of gensim at its best rate, {best['rate']:g}", flush=True)
        found["rounds"].append(one)
        print(f"round {turn + 1} of {args.rounds} done", flush=True)
    if python is None:
        print("gensim: not beside it (not installed, or not on this device)")
    for way in args.ways:
        times = sorted(one[way]["times_gensim"] for one in found["rounds"] if "times_gensim" in one[way])
        if len(times) > 1:  # the two take turns, so that what else goes on slows both
            middle = statistics.median(times)
            found[f"times_gensim_{way}"] = {"median": middle, "least": times[0], "most": times[-1]}
            print(f"{way}: {middle:.2f} x gensim, the median of {len(times)} rounds ({times[0]} to {times[-1]})")
    print("GloVe has no peer in this run; gensim's word2vec stands beside it")
    return found


# -------------------------------------------------------------------------------------------------------- sentiment


def sentiment_part(args: argparse.Namespace, data: Path, out: Path) -> dict[str, Any]:
    """Averaged vectors and a linear map: trained on the 25,000 labeled reviews, judged on the others."""
    bases = {way: out / way for way in args.ways if (out / way / "model.safetensors").exists()}
    bases["glove.6B.50d"] = data / "words" / "glove.6B.50d.top30k.txt.xz"
    train, test = (str(data / "imdb" / f"{split}.tsv.xz") for split in ("train", "test"))
    found: dict[str, Any] = {}
    for name, base in bases.items():
        folder = out / f"sentiment-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        begin = time.perf_counter()
        rows = {"files": [train], "on_bad_row": "skip"}  # the file of GloVe begins with a note
        model = weft.finetune(
            rows, task="classify", base=str(base), out=str(folder), device=args.device, seed=args.seed
        )
        seconds = time.perf_counter() - begin
        score = model.evaluate(test).scores["accuracy"]
        found[name] = {"accuracy": round(score.value, 4), "low": score.low, "high": score.high, "seconds": seconds}
        print(f"sentiment from {name:14} accuracy {score.value:.4f} ({score.low:.4f} to {score.high:.4f})", flush=True)
    return found


# ------------------------------------------------------------------------------------------------- English to German


def dictionary(english: list[list[str]], german: list[list[str]]) -> list[tuple[str, str]]:
    """Pairs of words that share most of their sentences, each the other's best, by the coefficient of Dice."""
    sides = []
    for sentences in (english, german):
        counts = Counter(word for sentence in sentences for word in set(sentence))
        words = sorted(word for word, count in counts.items() if count >= LEAST and word.isalpha())
        sides.append((words, {word: number for number, word in enumerate(words)}, counts))
    (first, places, counts), (second, others, other_counts) = sides
    keys = []
    for one, two in zip(english, german, strict=True):
        left = np.array(sorted({places[word] for word in one if word in places}), np.int64)
        right = np.array(sorted({others[word] for word in two if word in others}), np.int64)
        keys.append((left[:, None] * len(second) + right[None]).ravel())
    pairs, together = np.unique(np.concatenate(keys), return_counts=True)
    rows, columns = np.divmod(pairs, len(second))
    sizes = np.array([counts[word] for word in first]), np.array([other_counts[word] for word in second])
    dice = 2 * together / (sizes[0][rows] + sizes[1][columns])
    best = [np.zeros(len(side)) for side in (first, second)]
    np.maximum.at(best[0], rows, dice)
    np.maximum.at(best[1], columns, dice)
    mutual = (dice >= DICE) & (together >= LEAST) & (dice == best[0][rows]) & (dice == best[1][columns])
    return [(first[row], second[column]) for row, column in zip(rows[mutual], columns[mutual], strict=True)]


def map_part(args: argparse.Namespace, data: Path, out: Path) -> dict[str, Any]:
    with zipfile.ZipFile(data / "tatoeba" / "deu-eng.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("deu.txt"))
        rows = [line.split("\t")[:2] for line in archive.read(name).decode("utf-8").splitlines()]
    folders = []
    for side, language in enumerate(("english", "german")):
        text = out / f"{language}.txt"
        # Each sentence once: Tatoeba has many translations of one.
        text.write_text("\n".join(dict.fromkeys(row[side] for row in rows)) + "\n", encoding="utf-8")
        folders.append(out / language)
        shutil.rmtree(folders[-1], ignore_errors=True)
        plan = {"epochs": args.map_epochs, "threads": args.threads, "min_count": 5}
        learn_vectors(vectors=plan, text={"files": [str(text)]}, out=str(folders[-1]), device=args.device)
    sentences: list[list[list[str]]] = []
    for side, folder in enumerate(folders):
        tokenizer = weft.load(folder).tokenizer
        assert tokenizer is not None
        names = {number: word for word, number in tokenizer.tokens.items()}
        ids = tokenizer.ids([row[side] for row in rows], specials=False)
        sentences.append([[names[number] for number in some] for some in ids])
    found = dictionary(*sentences)
    path = out / "dictionary.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in found), encoding="utf-8")
    _, report = learn_map(folders[0], folders[1], read_pairs([path]), holdout=0.2, seed=args.seed)
    print(
        f"English to German: {len(found):,} pairs of words, each the other's best by Dice's coefficient over the "
        f"aligned sentences (at least {DICE}, {LEAST} sentences); {report.learned:,} learned from, "
        f"{report.held_out:,} held out"
    )
    values: dict[str, Any] = {"pairs": len(found), "learned": report.learned, "held_out": report.held_out}
    values["dictionary"] = f"mutual best by Dice >= {DICE} over aligned sentences, in at least {LEAST}"
    for way, one in report.scores.items():
        values[way] = {"precision@1": round(one.at_1.value, 4), "precision@5": round(one.at_5.value, 4)}
        print(f"  {way:6}  precision@1 {one.at_1.value:.3f}  precision@5 {one.at_5.value:.3f}  of {one.asked}")
    return values


PARTS = {"words": words_part, "sentiment": sentiment_part, "map": map_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("WEFT_DATA"), help="where imdb, words, tatoeba lie")
    parser.add_argument("--out", type=Path, help="a folder for runs, kept; without it, one that is removed")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="of word2vec, here and there; 5")
    parser.add_argument("--peer-rates", type=float, nargs="+", default=[0.025, 0.05], help="of gensim")
    parser.add_argument("--map-epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--reviews", type=int, help="the first so many alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gensim-python", help="a Python that has gensim, where this one has not")
    parser.add_argument("--result", type=Path, default=RESULTS / "vectors.json")
    args = parse(parser, epochs=1, map_epochs=1, peer_rates=[0.025], reviews=40, ways=["skip-gram", "glove"], threads=1)
    if args.data is None:
        parser.error("where is the data? set WEFT_DATA or give --data")
    torch.set_num_threads(args.threads)
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        for name in args.only or PARTS:
            found = PARTS[name](args, Path(args.data), out)
            # Each device has its own place in the file, and what is not measured today stays.
            kept = json.loads(args.result.read_text()) if args.result.exists() else {}
            place = kept.setdefault(torch.device(args.device).type, {})
            place["machine"] = machine()
            place[name] = found
            write(args.result, kept)


if __name__ == "__main__":
    main()

"""n-grams beside KenLM (lmplz and its Python package) and NLTK: perplexity, ARPA files both ways, time, queries.

    WEFT_DATA=DIR python benchmarks/ngram.py [--lmplz PATH] [--order 5] [--out benchmarks/results/ngram.json]

DIR holds nltk/brown.zip, books/warandpeace.txt.xz and wikitext2/{valid,test}.txt.xz. Texts are cut into words once, by
Weft's pattern, and written with spaces between them, so that every program counts the same words; of 20 sentences or
paragraphs one is held out. A last table is in the manner of the Penn Treebank: text that was cut into words by its
makers, a line a sentence, a closed vocabulary with <unk> for the rest, ends of sentences counted.
Everything runs on one core; queries are timed by the processor's clock. Without lmplz, kenlm or nltk their part is left
out, and that is said.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import lzma
import math
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from common import RESULTS, parse, write  # noqa: E402

import weft  # noqa: E402
from weft.checkpoint.external import read_arpa, write_arpa  # noqa: E402
from weft.checkpoint.folder import LoadedModel  # noqa: E402
from weft.nn.rows import Ragged  # noqa: E402
from weft.text.tokenizers.training import WORDS

TEN = math.log(10.0)
FEW = 2000  # sentences that NLTK learns from: it is slow
ASKED = {"KneserNeyInterpolated": 150, "MLE": 2000}  # tokens that both are asked about one by one
REPEATS = {"KneserNeyInterpolated": 1, "MLE": 9}  # in turns; the median counts


def brown(data: Path) -> list[str]:
    """The sentences of the Brown corpus, without their tags."""
    found = []
    with zipfile.ZipFile(data / "nltk" / "brown.zip") as archive:
        for name in sorted(archive.namelist()):
            if re.fullmatch(r"brown/c[a-r]\d\d", name):
                for line in archive.read(name).decode().splitlines():
                    found.append(" ".join(word.rpartition("/")[0] for word in line.split()))
    return found


def war_and_peace(data: Path) -> list[str]:
    """The paragraphs of the novel."""
    with lzma.open(data / "books" / "warandpeace.txt.xz", "rt", encoding="utf-8") as file:
        return re.split(r"\n\s*\n", file.read())


def wikitext(data: Path, part: str) -> list[str]:
    """The lines of a part of WikiText-2, as published: cut into words, rare ones <unk>."""
    with lzma.open(data / "wikitext2" / f"{part}.txt.xz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def closed(lines: list[str], size: int) -> Callable[[str], str]:
    """What writes <unk> for all but the most frequent words of these lines."""
    words = Counter(word for line in lines for word in line.split())
    kept = {word for word, _ in words.most_common(size)}
    return lambda line: " ".join(word if word in kept else "<unk>" for word in line.split())


def as_treebank(
    name: str, train: list[str], test: list[str], order: int, size: int, lmplz: str | None
) -> dict[str, Any]:
    """A model of text that was cut into words before, by a closed vocabulary; beside lmplz where it is there."""
    close = closed(train, size)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["WEFT_CACHE"] = str(folder / "cache")
        files = {"train": [close(line) for line in train], "test": [close(line) for line in test]}
        for part, lines in files.items():
            (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        model = weft.pretrain(
            model={"family": "ngram", "order": order},
            tokenizer={"kind": "whitespace"},
            text={"files": [str(folder / "train.txt")], "dev": [str(folder / "test.txt")], "documents": "line"},
            out=str(folder / "run"),
            log=lambda text: None,
        )
        row: dict[str, Any] = {
            "text": name,
            "order": order,
            "words": sum(len(line.split()) for line in files["train"]),
            "vocabulary": model.tokenizer.vocabulary,
            "test_tokens": sum(len(line.split()) + 1 for line in files["test"]),  # ends of sentences among them
            "unknown": sum(line.split().count("<unk>") for line in files["test"]),
            "perplexity": math.exp(model.card.metrics[0].value),
        }
        if lmplz is not None:  # to which <unk> may be no word of a text
            told = {part: [line.replace("<unk>", "<rare>") for line in lines] for part, lines in files.items()}
            (folder / "told.txt").write_text("\n".join(told["train"]) + "\n", encoding="utf-8")
            command = [lmplz, "-o", str(order), "-S", "1G", "-T", scratch, "--text", str(folder / "told.txt")]
            subprocess.run([*command, "--arpa", str(folder / "theirs.arpa")], check=True, capture_output=True)
            row["lmplz_perplexity"] = perplexity(scores(read_arpa(folder / "theirs.arpa"), told["test"]))
        return row


def written(texts: list[str], folder: Path) -> tuple[Path, Path, int]:
    """A text to count and one to be judged by, words apart; and how many words are counted."""
    lines = [" ".join(re.findall(WORDS, text)) for text in texts]
    lines = [line for line in lines if line]
    train, dev = folder / "train.txt", folder / "dev.txt"
    kept = [line for number, line in enumerate(lines) if number % 20 != 19]
    train.write_text("\n".join(kept) + "\n", encoding="utf-8")
    dev.write_text("\n".join(lines[19::20]) + "\n", encoding="utf-8")
    return train, dev, sum(line.count(" ") + 1 for line in kept)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What comes of work, and its seconds: by the clock, and of the processor (its children's too)."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(each.ru_utime + each.ru_stime for each in both)

    clock, processor = time.perf_counter(), used()
    found = work()
    return found, time.perf_counter() - clock, used() - processor


def scores(opened: LoadedModel, lines: list[str]) -> torch.Tensor:
    """The log10 of the chance of every word and of every end, in one call."""
    tokenizer: Any = opened.tokenizer
    start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
    batch = Ragged.of([[start, *ids, end] for ids in tokenizer.ids(lines, specials=False)])
    network: Any = opened.network
    asked = torch.ones(len(batch.tokens), dtype=torch.bool)
    asked[batch.rows.lasts()] = False
    hidden = network(batch.tokens, batch.rows)[asked]
    given = torch.ones(len(batch.tokens), dtype=torch.bool)
    given[batch.rows.firsts()] = False
    return network.target_logprobs(hidden, batch.tokens[given]) / TEN


def kenlm_scores(path: Path, lines: list[str]) -> torch.Tensor:
    model = importlib.import_module("kenlm").Model(str(path))
    told = [score for line in lines for score, _, _ in model.full_scores(line, bos=True, eos=True)]
    return torch.tensor(told, dtype=torch.float64)


def perplexity(logs: torch.Tensor) -> float:
    return float(10 ** -logs.mean())


def one_text(name: str, texts: list[str], order: int, lmplz: str | None, kenlm: bool) -> dict[str, Any]:
    """Ours and lmplz's model of one text."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["WEFT_CACHE"] = str(folder / "cache")
        train, dev, words = written(texts, folder)
        lines = dev.read_text(encoding="utf-8").splitlines()

        def count() -> Any:
            return weft.pretrain(
                model={"family": "ngram", "order": order},
                text={"files": [str(train)], "holdout": 0.0, "documents": "line"},
                out=str(folder / "run"),
                log=lambda text: None,
            )

        model, clock, processor = timed(count)
        line = json.loads((folder / "run" / "run" / "metrics.jsonl").read_text())
        ours, _, seconds = timed(lambda: scores(model.opened, lines))
        found: dict[str, Any] = {
            "text": name,
            "words": words,
            "held_out_tokens": len(ours),
            "entries": list(model.config.entries),
            "bytes": sum(buffer.nbytes for buffer in model.network.buffers()),
            "perplexity": perplexity(ours),
            "seconds": clock,
            "processor_seconds": processor,
            "of_which_counting": line["seconds"],
            "tokens_scored_per_second": len(ours) / seconds,
        }
        _, found["arpa_write_seconds"], _ = timed(lambda: write_arpa(model.opened, folder / "ours.arpa"))
        if kenlm:
            found["our_arpa_in_kenlm_max_difference"] = float(
                (kenlm_scores(folder / "ours.arpa", lines) - ours).abs().max()
            )
        if lmplz is not None:
            command = [lmplz, "-o", str(order), "-S", "1G", "-T", scratch, "--text", str(train)]
            command += ["--arpa", str(folder / "theirs.arpa")]
            _, clock, processor = timed(lambda: subprocess.run(command, check=True, capture_output=True))
            theirs = read_arpa(folder / "theirs.arpa")
            read = scores(theirs, lines)
            witness = kenlm_scores(folder / "theirs.arpa", lines) if kenlm else read
            found |= {
                "lmplz_perplexity": perplexity(witness),
                "relative_difference": abs(perplexity(ours) / perplexity(witness) - 1),
                "lmplz_seconds": clock,
                "lmplz_processor_seconds": processor,
                "lmplz_entries": list(theirs.config.entries),
            }
            if kenlm:
                found["their_arpa_in_weft_max_difference"] = float((witness - read).abs().max())
        return found


def beside_nltk(texts: list[str], order: int) -> list[dict[str, Any]]:
    """Queries by NLTK's models and ours, of the same smoothing on the same few sentences."""
    lm = importlib.import_module("nltk.lm")
    prepare = importlib.import_module("nltk.lm.preprocessing")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["WEFT_CACHE"] = str(folder / "cache")
        train, dev, _ = written(texts[: FEW + FEW // 19], folder)
        sentences = [line.split() for line in train.read_text(encoding="utf-8").splitlines()]
        lines = dev.read_text(encoding="utf-8").splitlines()
        for name, smoothing in (("KneserNeyInterpolated", "kneser-ney"), ("MLE", "maximum-likelihood")):
            theirs = getattr(lm, name)(order)
            _, fitting, _ = timed(
                lambda theirs=theirs: theirs.fit(*prepare.padded_everygram_pipeline(order, sentences))
            )
            asked = [
                (padded[place], padded[place - order + 1 : place])
                for line in lines
                for padded in [["<s>"] * (order - 1) + line.split() + ["</s>"]]
                for place in range(order - 1, len(padded))
            ][: ASKED[name]]
            model, ours, _ = timed(
                lambda smoothing=smoothing: weft.pretrain(
                    model={"family": "ngram", "order": order, "smoothing": smoothing},
                    text={"files": [str(train)], "holdout": 0.0, "documents": "line"},
                    out=str(folder / smoothing),
                    log=lambda text: None,
                )
            )
            scores(model.opened, lines)
            logs, _, bulk = timed(lambda model=model: scores(model.opened, lines))
            network, numbers = model.network, dict(model.tokenizer.tokens)
            unknown = model.tokenizer.id_of("unknown")
            numbers |= {"<s>": model.tokenizer.id_of("start"), "</s>": model.tokenizer.id_of("end")}
            # One <s> begins a sentence of ours, several one of NLTK's.
            alone = [(word, context[max(0, context.count("<s>") - 1) :]) for word, context in asked]

            def one_by_one(
                network: Any = network, alone: Any = alone, get: Any = numbers.get, unknown: Any = unknown
            ) -> list[float]:
                """From words to a probability, as NLTK's `score`; looking up the words is part of both."""
                return [
                    math.exp(network.logprob([get(each, unknown) for each in context], get(word, unknown)))
                    for word, context in alone
                ]

            one_by_one()
            times = [
                (timed(one_by_one), timed(lambda theirs=theirs, asked=asked: [theirs.score(*a) for a in asked]))
                for _ in range(REPEATS[name])
            ]
            single, seconds = (statistics.median(each[way][2] for each in times) for way in (0, 1))
            # NLTK's Kneser-Ney is another formula than ours (and KenLM's); maximum likelihood is one.
            pairs = list(zip(times[0][0][0], times[0][1][0], strict=True)) if name == "MLE" else []
            rows.append(
                {
                    "smoothing": smoothing,
                    "sentences": len(sentences),
                    "nltk_fit_seconds": fitting,
                    "weft_seconds": ours,
                    "nltk_queries_per_second": len(asked) / seconds,
                    "weft_queries_per_second": len(logs) / bulk,
                    "weft_one_by_one_per_second": len(asked) / single,
                    "times": len(logs) / bulk / (len(asked) / seconds),
                    "times_one_by_one": seconds / single,
                    **({"largest_difference": max(abs(a - b) for a, b in pairs)} if pairs else {}),
                }
            )
    return rows


def queries(texts: list[str], order: int) -> dict[str, Any]:
    """The table beside NLTK, printed."""
    rows = beside_nltk(texts, order)
    print("\nqueries per second, order", order, "beside NLTK")
    for row in rows:
        print(
            f"  {row['smoothing']:<20} NLTK {row['nltk_queries_per_second']:>10,.0f}   weft "
            f"{row['weft_queries_per_second']:>12,.0f} ({row['times']:,.1f} x), one by one "
            f"{row['weft_one_by_one_per_second']:,.0f} ({row['times_one_by_one']:,.2f} x)"
        )
    python = f"Python {platform.python_version()}, torch {torch.__version__}"
    return {"machine": f"{platform.machine()} CPU, one core, {python}", "rows": rows}


def there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEFT_DATA", ".")))
    parser.add_argument(
        "--lmplz", default=shutil.which("lmplz"), help="KenLM's program; found on the path unless given"
    )
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=10_000, help="words of the last table's closed vocabulary")
    parser.add_argument("--out", type=Path, default=RESULTS / "ngram.json")
    parser.add_argument("--only", choices=("nltk",), help="this part alone; the others stay in the file as they are")
    given = parse(parser, order=3, vocabulary=50)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core, children too
    torch.set_num_threads(1)
    if given.lmplz is None:
        print("no lmplz (--lmplz PATH): perplexities stand alone", file=sys.stderr)
    missing = [name for name in ("kenlm", "nltk") if not there(name)]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    if given.only and "nltk" not in missing:
        kept = json.loads(given.out.read_text()) if given.out.exists() else {}
        write(given.out, {**kept, "nltk": queries(brown(given.data), given.order)})
        return 0
    texts = {"Brown": brown(given.data), "War and Peace": war_and_peace(given.data)}
    found: dict[str, Any] = {
        "machine": f"{platform.machine()} CPU, one core, Python {platform.python_version()}, torch {torch.__version__}",
        "order": given.order,
        "texts": [],
    }
    for name, text in texts.items():
        row = one_text(name, text, given.order, given.lmplz, "kenlm" not in missing)
        found["texts"].append(row)
        print(f"\n{name}: {row['words']:,} words, {sum(row['entries']):,} n-grams, {row['bytes'] / 1e6:.0f} MB")
        print(f"  perplexity        weft {row['perplexity']:.4f}   lmplz {row.get('lmplz_perplexity', math.nan):.4f}")
        if "relative_difference" in row:
            print(f"  they differ by    {100 * row['relative_difference']:.5f} %")
        print(
            f"  seconds           weft {row['seconds']:.2f} ({row['processor_seconds']:.2f} of the processor; "
            f"counting {row['of_which_counting']:.2f})   lmplz {row.get('lmplz_seconds', math.nan):.2f} "
            f"({row.get('lmplz_processor_seconds', math.nan):.2f})"
        )
        for key in ("our_arpa_in_kenlm_max_difference", "their_arpa_in_weft_max_difference"):
            if key in row:
                print(f"  {key.replace('_', ' ')}: {row[key]:.2g} (log10)")
    if "nltk" not in missing:
        found["nltk"] = queries(texts["Brown"], given.order)
    sentences = [line for line in texts["Brown"] if line]
    parts = {
        "Brown as published": (
            [line for number, line in enumerate(sentences) if number % 20 != 19],
            sentences[19::20],
        ),
        "WikiText-2, valid to test": (wikitext(given.data, "valid"), wikitext(given.data, "test")),
    }
    found["as_treebank"] = []
    print(f"\nas the Penn Treebank is used: vocabulary of {given.vocabulary:,} words and <unk>, ends counted")
    for name, (train, test) in parts.items():
        row = as_treebank(name, train, test, given.order, given.vocabulary, given.lmplz)
        found["as_treebank"].append(row)
        print(
            f"  {name:<26} {row['words']:>9,} words, {row['test_tokens']:,} of test, {row['unknown']:,} unknown   "
            f"Kneser-Ney {row['order']}: weft {row['perplexity']:.2f}   lmplz "
            f"{row.get('lmplz_perplexity', math.nan):.2f}"
        )
    write(given.out, found)
    print(f"\n{given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Multiple choice, cloze with candidates and marked spans from real text; pooling of an LSTM; one vector or attention.

    WEFT_DATA=DIR python benchmarks/forms.py [--weights DIR] [--device cuda] [--only next,cloze,spans,pooling,source]
    python benchmarks/forms.py --smoke

From the Brown corpus (Francis and Kucera, 1964), documents of the test apart from those of the training:
next: which of four sentences follows two others (SWAG's form); the three others come from anywhere. Beside chance:
the nearest by TF-IDF, the nearest by frozen embeddings, the likeliest by a language model of the training documents.
cloze: which name of a passage stands in the gap of the sentence that follows it (ReCoRD's form). Beside chance: the
name that the passage has most often.
spans: whether a word is a noun in both of two sentences or a verb in both (WiC's form); no word is on both sides.
pooling: what an LSTM's label of TREC's questions is read from. source: a convolutional encoder-decoder with and without
attention, Multi30k, loss of held-out pairs after as many steps.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import re
import statistics
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, minilm, parse, write

import weft

Sentence = list[tuple[str, str]]  # words with their tags
Rows = list[dict[str, Any]]
CLOSED = re.compile(r" (?=[.,;:?!)%]|''|n't\b|'s\b)|(?<=[($]) |(?<=``) ")


def brown(data: Path, most: int) -> list[list[Sentence]]:
    """The documents, each a list of sentences."""
    documents = []
    with zipfile.ZipFile(data / "nltk" / "brown.zip") as archive:
        for name in sorted(name for name in archive.namelist() if re.fullmatch(r"brown/c[a-r]\d\d", name))[:most]:
            lines = archive.read(name).decode("latin-1").splitlines()
            rows = [[tuple(token.rsplit("/", 1)) for token in line.split() if "/" in token] for line in lines]
            documents.append([[(word, tag) for word, tag in row] for row in rows if len(row) > 3])
    random.Random(0).shuffle(documents)
    return documents


def text_of(sentence: Sentence) -> str:
    """A sentence as people write it."""
    return CLOSED.sub("", " ".join(word for word, _ in sentence)).replace("``", '"').replace("''", '"')


def split(documents: list[Any]) -> tuple[list[Any], list[Any]]:
    test = max(1, len(documents) // 6)
    return documents[test:], documents[:test]


# -------------------------------------------------------------------------------------------------------------- rows


def next_rows(documents: list[list[Sentence]], count: int, seed: int) -> Rows:
    """Two sentences, and four of which one follows."""
    chance, texts = random.Random(seed), [[text_of(each) for each in document] for document in documents]
    every = list(dict.fromkeys(text for document in texts for text in document))
    rows = []
    for _ in range(count):
        document = chance.choice([each for each in texts if len(each) > 2])
        place = chance.randrange(len(document) - 2)
        others = [text for text in chance.sample(every, 4) if text != document[place + 2]]
        endings = [*others[:3], document[place + 2]]
        chance.shuffle(endings)
        row = {"startphrase": f"{document[place]} {document[place + 1]}", "label": endings.index(document[place + 2])}
        rows.append(row | {f"ending{number}": ending for number, ending in enumerate(endings)})
    return rows


def cloze_rows(documents: list[list[Sentence]], count: int, seed: int) -> Rows:
    """A passage, its names, and a sentence after it with a gap for one of them."""
    chance, rows = random.Random(seed), list[dict[str, Any]]()
    places = [(d, n) for d, document in enumerate(documents) for n in range(5, len(document))]
    chance.shuffle(places)
    for d, n in places:
        names = Counter(w for s in documents[d][n - 5 : n] for w, tag in s if re.fullmatch(r"np(-\w+)?", tag))
        hidden = [word for word, tag in documents[d][n] if tag.startswith("np") and word in names]
        if len(names) < 3 or not hidden:
            continue
        name = chance.choice(hidden)
        query = text_of([("@placeholder", tag) if word == name else (word, tag) for word, tag in documents[d][n]])
        passage = " ".join(text_of(sentence) for sentence in documents[d][n - 5 : n])
        rows.append({"passage": passage, "query": query, "entities": list(names), "answers": [name]})
        rows[-1]["most"] = names.most_common(1)[0][0]
        if len(rows) == count:
            break
    return rows


def sense_rows(documents: list[list[Sentence]], count: int, train: bool, seed: int) -> Rows:
    """A word in two sentences, and whether it is of one part of speech."""
    chance, uses = random.Random(seed), dict[str, dict[str, list[tuple[int, Sentence]]]]()
    for document in documents:
        for sentence in document:
            for place, (word, tag) in enumerate(sentence):
                kind = {"nn": "noun", "nns": "noun", "vb": "verb", "vbz": "verb", "vbd": "verb"}.get(tag)
                if kind and 6 <= len(sentence) <= 30:
                    uses.setdefault(word.lower(), {}).setdefault(kind, []).append((place, sentence))
    both = sorted(word for word, kinds in uses.items() if len(kinds) == 2 and min(map(len, kinds.values())) > 1)
    words, rows = [word for n, word in enumerate(both) if (n % 4 > 0) is train], list[dict[str, Any]]()
    while len(rows) < count:
        word, same = chance.choice(words), len(rows) % 2 == 0
        kinds = chance.sample(sorted(uses[word]), 2)
        kinds = [kinds[0]] * 2 if same else kinds
        sides = chance.sample(uses[word][kinds[0]], 2) if same else [chance.choice(uses[word][kind]) for kind in kinds]
        row: dict[str, Any] = {"word": word, "label": same}
        for number, (place, sentence) in enumerate(sides, 1):
            text = " ".join(w for w, _ in sentence)
            start = len(" ".join(w for w, _ in sentence[:place])) + (place > 0)
            row |= {f"sentence{number}": text, f"start{number}": start, f"end{number}": start + len(sentence[place][0])}
        rows.append(row)
    return rows


# ----------------------------------------------------------------------------------------------------------- figures


def tuned(rows: Rows, task: str, args: argparse.Namespace, steps: int) -> Any:
    """all-MiniLM-L6-v2, fine-tuned for so many steps; a tenth of the training rows chooses among three versions."""
    plan: dict[str, Any] = {"steps": steps, "batch": args.batch, "evaluate_every": max(1, steps // 3)}
    more: Any = {"base": args.weights, "training": plan, "device": args.device, "log": lambda line: None}
    return weft.finetune(rows, task={"name": task, "baseline": False, "length": args.length}, **more)


def share(right: Any) -> float:
    return round(float(np.mean(right)), 4)


def by_tfidf(rows: Rows, endings: list[list[str]]) -> list[int]:
    """The ending that has most in common with what comes before."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(sublinear_tf=True).fit([row["startphrase"] for row in rows])
    before = vectors.transform([row["startphrase"] for row in rows])
    after = [vectors.transform(each) for each in endings]
    return [int((each @ before[row].T).toarray()[:, 0].argmax()) for row, each in enumerate(after)]


def by_embeddings(rows: Rows, endings: list[list[str]], args: argparse.Namespace) -> list[int]:
    model: Any = weft.load(args.weights, task="embed", device=args.device)
    before = np.array([answer.values for answer in model([row["startphrase"] for row in rows])])
    after = np.array([answer.values for answer in model([text for each in endings for text in each])])
    after = after.reshape(len(rows), len(endings[0]), -1)
    return np.einsum("rw,row->ro", before, after).argmax(-1).tolist()


def next_sentence(documents: list[list[Sentence]], args: argparse.Namespace) -> dict[str, Any]:
    train, test = split(documents)
    rows, held = next_rows(train, args.rows, 1), next_rows(test, args.test, 2)
    endings = [[row[f"ending{number}"] for number in range(4)] for row in held]
    labels = [row["label"] for row in held]

    def right(chosen: list[int]) -> float:
        return share([one == two for one, two in zip(chosen, labels, strict=True)])

    figures: dict[str, Any] = {"tfidf": right(by_tfidf(held, endings))}
    figures["frozen embeddings"] = right(by_embeddings(held, endings, args))
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "brown.txt"
        text.write_text("\n\n".join(" ".join(map(text_of, document)) for document in train), encoding="utf-8")
        language = weft.pretrain(
            model={"family": "gpt2", "size": args.size},
            text={"files": [str(text)], "documents": "block"},
            tokenizer={"size": args.vocabulary},
            objective={"length": 128},
            training={"steps": args.language_steps, "batch": args.batch * 2},
            device=args.device,
            out=str(Path(scratch) / "run"),
            log=lambda line: None,
        )
        language.task = "choose"
        for normalize in ("none", "token", "prior"):
            asked: Any = [(row["startphrase"], each) for row, each in zip(held, endings, strict=True)]
            answers: list[Any] = []
            for first in range(0, len(asked), 64):
                answers += language.to(args.device)(asked[first : first + 64], normalize=normalize, slide=True)
            figures[f"language model, normalize {normalize}"] = right([answer.number for answer in answers])
    evaluation = tuned(rows, "choose", args, args.steps).evaluate(held)
    return figures | {name: vars(score) for name, score in evaluation.scores.items()}


def cloze(documents: list[list[Sentence]], args: argparse.Namespace) -> dict[str, Any]:
    train, test = split(documents)
    rows, held = cloze_rows(train, args.rows // 2, 1), cloze_rows(test, args.test, 2)
    most = share([row["most"] in row["answers"] for row in held])
    evaluation = tuned(rows, "choose", args, args.steps).evaluate(held)
    sizes = {"rows": len(rows), "test": len(held)}
    return {**sizes, "most frequent name": most, **{name: vars(score) for name, score in evaluation.scores.items()}}


def spans(documents: list[list[Sentence]], args: argparse.Namespace) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rows, held = (sense_rows(documents, *each) for each in ((args.rows, True, 1), (args.test, False, 2)))
    texts, others = ([f"{row['sentence1']} {row['sentence2']}" for row in each] for each in (rows, held))
    linear = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    linear.fit(texts, [row["label"] for row in rows])
    evaluation = tuned(rows, "spans", args, args.steps).evaluate(held)
    tfidf = share(linear.predict(others) == np.array([row["label"] for row in held]))
    return {"majority": 0.5, "tfidf": tfidf, "accuracy": vars(evaluation.scores["accuracy"])}


def pooling(data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy on TREC's test, by what the label is read from: mean and spread over seeds."""
    parts = []
    with zipfile.ZipFile(data / "nltk/qc.zip") as archive:
        for part in ("train", "test"):
            lines = archive.read(f"qc/{part}.txt").decode("latin-1").splitlines()
            pairs = [line.partition(" ")[::2] for line in lines if line.strip()]
            parts.append([{"text": text, "label": label.split(":")[0]} for label, text in pairs])
    figures = {}
    for kind in ("last", "mean", "max", "attention"):
        scores = []
        for seed in range(args.seeds):
            plan: dict[str, Any] = {"training": {"steps": args.pooling_steps}} if args.pooling_steps else {}
            more: Any = {"device": args.device, "seed": seed, "log": lambda line: None, **plan}
            sizes = {"family": "lstm", "pooling": kind}
            task = {"name": "classify", "baseline": False}
            model = weft.finetune(parts[0], task=task, model=sizes, **more)
            scores.append(model.evaluate(parts[1]).scores["accuracy"].value)
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        figures[kind] = {"accuracy": share(scores), "spread": round(spread, 4), "seeds": args.seeds}
    return figures


def source(data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Held-out loss of Multi30k, German to English, by what the decoder sees of its source."""

    def lines(name: str) -> list[str]:
        return gzip.decompress((data / "multi30k" / f"{name}.gz").read_bytes()).decode().splitlines()

    train, dev = (
        [{"source": s, "target": t} for s, t in zip(lines(f"{part}.de"), lines(f"{part}.en"), strict=True)]
        for part in ("train", "val")
    )
    figures = {}
    for attention in ("none", "dot"):
        model = weft.finetune(
            train,
            dev=dev,
            task={"name": "translate", "metric": "loss"},
            model={"family": "conv-seq2seq", "width": args.width, "layers": 4, "attention": attention},
            training={"steps": args.source_steps, "batch": 2 * args.batch, "evaluate_every": args.source_steps},
            device=args.device,
            log=lambda line: None,
        )
        figures[attention] = {metric.name: round(metric.value, 4) for metric in model.card.metrics}
    return figures


def timed(work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    begin = time.perf_counter()
    return {**work(*given), "seconds": round(time.perf_counter() - begin, 1)}


def results(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    documents = brown(args.data, args.documents)
    works: dict[str, tuple[Callable[..., dict[str, Any]], Any]] = {
        "next": (next_sentence, documents),
        "cloze": (cloze, documents),
        "spans": (spans, documents),
        "pooling": (pooling, args.data),
        "source": (source, args.data),
    }
    for name in args.only.split(","):
        yield name, timed(*works[name], args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--data", type=Path, default=os.environ.get("WEFT_DATA"), help="default: WEFT_DATA")
    parser.add_argument("--weights", type=Path, default=minilm(), help="default: all-MiniLM-L6-v2 as installed")
    parser.add_argument("--device", default=usual)
    parser.add_argument("--only", default="next,cloze,spans,pooling,source")
    parser.add_argument("--result", type=Path, default=RESULTS / "forms.json")
    sizes = {"documents": 500, "rows": 8000, "test": 1000, "steps": 600, "batch": 32, "length": 256, "seeds": 3}
    sizes |= {"language_steps": 1500, "vocabulary": 8000, "pooling_steps": 0, "source_steps": 1500, "width": 256}
    for name, value in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--size", default="4x256", help="of the language model")
    tiny: dict[str, Any] = {"rows": 12, "test": 6, "steps": 2, "batch": 4, "length": 64, "seeds": 1, "width": 16}
    tiny |= {"language_steps": 2, "vocabulary": 300, "pooling_steps": 2, "source_steps": 2, "size": "1x64"}
    args = parse(parser, device="cpu", **tiny)
    if args.data is None or args.weights is None:
        parser.error("give --data DIR (or WEFT_DATA), and --weights DIR of all-MiniLM-L6-v2")
    figures: dict[str, Any] = {"machine": machine(), "rows": args.rows, "test": args.test, "steps": args.steps}
    for name, values in results(args):
        figures[name] = values
        print(f"{name}: {values}", flush=True)
        write(args.result, figures)


if __name__ == "__main__":
    main()

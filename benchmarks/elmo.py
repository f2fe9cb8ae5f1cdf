r"""ELMo's features beside static word vectors, below the same tagger: entities of WikiANN.

    WEFT_DATA=DIR python benchmarks/elmo.py                                            # about 10 minutes on a GPU
    WEFT_DATA=DIR python benchmarks/elmo.py --size 2x128 --vocabulary 4000 --batch 16 --minutes 12 --documents 20000 \
        --epochs 2 --seeds 1          # on a CPU, 40 minutes

A two-way language model (2 layers, 256 wide in each direction) is trained on imdb/unsup.txt, wikitext2, books, Brown
and the words of wikiann_en/train, for --minutes; its held-out loss is printed. Then one tagger, an LSTM that reads both
ways and a linear map, is trained on wikiann_en/train above frozen features:

    elmo             the learned mix of the layers of that model
    elmo, no text    the same with random weights: what the tagger learns from characters without a language model
    word2vec         100 dimensions, cased, learned from the same text
    glove            50 dimensions, lowercase, learned from 6 billion words

Each with its own vocabulary; entity F1 on wikiann_en/test with its interval, mean and range over seeds.
"""

from __future__ import annotations

import argparse
import lzma
import os
import random
import statistics
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, device_name, parse, write

import weft
from weft.checkpoint.external import open_vectors
from weft.checkpoint.folder import save_folder
from weft.runs.pretrain import learn_vectors
from weft.training.run import Run

WAYS = ("elmo", "elmo, no text", "word2vec", "glove")


def lines_of(path: Path) -> list[str]:
    return lzma.decompress(path.read_bytes()).decode("utf-8").splitlines()


def sentences(path: Path) -> list[list[tuple[str, str]]]:
    """Words and tags of a file of WikiANN, without the prefix that its words carry."""
    blocks: list[list[tuple[str, str]]] = [[]]
    for line in lines_of(path):
        if line.strip():
            word, tag = line.split("\t")
            blocks[-1].append((word.removeprefix("en:"), tag))
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def write_texts(data: Path, scratch: Path, most: int | None) -> str:
    """All running text in one file, a document on a line; `most`: a random part of it."""
    documents = [line for line in lines_of(data / "imdb/unsup.txt.xz") if line.strip()]
    for split in ("valid", "test"):
        documents += [line for line in lines_of(data / f"wikitext2/{split}.txt.xz") if len(line) > 20]
    book = "\n".join(lines_of(data / "books/warandpeace.txt.xz"))
    documents += [part.replace("\n", " ") for part in book.split("\n\n") if part.strip()]
    with zipfile.ZipFile(data / "nltk/brown.zip") as archive:
        for name in archive.namelist():
            if len(Path(name).name) == 4:  # ca01 to cr09
                for line in archive.read(name).decode("latin-1").splitlines():
                    if line.strip():
                        documents.append(" ".join(item.rpartition("/")[0] for item in line.split()))
    documents += [" ".join(word for word, _ in block) for block in sentences(data / "wikiann_en/train.xz")]
    documents = random.Random(0).sample(documents, min(len(documents), most or len(documents)))
    (scratch / "text.txt").write_text("\n".join(documents) + "\n", encoding="utf-8")
    return str(scratch / "text.txt")


def write_tags(data: Path, scratch: Path) -> dict[str, str]:
    files = {}
    for split in ("train", "dev", "test"):
        blocks = sentences(data / f"wikiann_en/{split}.xz")
        text = "\n\n".join("\n".join(f"{word} {tag}" for word, tag in block) for block in blocks)
        (scratch / f"{split}.conll").write_text(text + "\n", encoding="utf-8")
        files[split] = str(scratch / f"{split}.conll")
    return files


def glove(data: Path, scratch: Path) -> str:
    lines = [line for line in lines_of(data / "words/glove.6B.50d.top30k.txt.xz") if len(line.split(" ")) == 51]
    (scratch / "glove.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    save_folder(scratch / "glove", open_vectors(scratch / "glove.txt", {}))
    return str(scratch / "glove")


def pretrained(text: str, scratch: Path, given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The folder of a two-way language model, and how its held-out loss fell."""
    begin = time.perf_counter()
    amount = {"steps": given.limit} if given.limit else {"minutes": given.minutes, "evaluate_every": 250}
    model = weft.pretrain(
        model={"family": "elmo", "size": given.size},
        text={"files": [text], "documents": "line", "holdout": 0.01},
        tokenizer={"size": given.vocabulary},
        objective={"length": given.length},
        training={"batch": given.batch, "learning_rate": 2e-3, **amount},
        device=given.device,
        out=str(scratch / "elmo"),
    )
    lines = [line for line in Run(scratch / "elmo").lines() if "validation_loss" in line]
    losses = [line["validation_loss"] for line in lines]
    record: dict[str, Any] = {"parameters": sum(p.numel() for p in model.network.parameters())}
    record |= {"steps": lines[-1]["step"], "tokens": lines[-1]["tokens"], "seconds": time.perf_counter() - begin}
    record |= {"held_out_loss_first": losses[0], "held_out_loss": min(losses)}
    print(
        f"two-way language model: held-out loss {losses[0]:.3f} at the first evaluation, {min(losses):.3f} at best "
        f"({record['tokens']:,} tokens in {record['seconds']:.0f} s)",
        flush=True,
    )
    fresh = weft.new("elmo", model.tokenizer, settings=vars(model.config))
    fresh.save(scratch / "fresh")
    return str(scratch / "elmo"), record


def tagged(way: str, source: str, files: dict[str, str], given: argparse.Namespace, out: Path, seed: int) -> Any:
    """One tagger above frozen features."""
    width = int(given.size.split("x")[1])
    static = {"family": "lstm", "layers": 1, "width": width, "vectors": source}
    model: dict[str, Any] = {"base": source} if way.startswith("elmo") else static
    # All words that have a vector, not only those of the training rows.
    words = {} if way.startswith("elmo") else {"folder": source}
    return weft.finetune(
        files["train"],
        dev=files["dev"],
        task={"name": "tag", "freeze": "encoder" if way.startswith("elmo") else "tokens"},
        model=model,
        tokenizer=words,
        training={"batch": 64, "learning_rate": 2e-3, "head_rate": 1.0, **plan_of(given)},
        seed=seed,
        device=given.device,
        out=str(out),
        log=lambda line: None,
    )


def plan_of(given: argparse.Namespace) -> dict[str, Any]:
    return {"steps": given.limit} if given.limit else {"epochs": given.epochs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the language model")
    parser.add_argument("--epochs", type=float, default=4.0, help="of each tagger")
    parser.add_argument("--seeds", type=int, default=2, help="taggers of each kind")
    parser.add_argument("--size", default="2x256")
    parser.add_argument("--vocabulary", type=int, default=30_000)
    parser.add_argument("--documents", type=int, help="of the text that is learned from; default: all")
    parser.add_argument("--length", type=int, default=64, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=256, help="rows of a step of the language model")
    parser.add_argument("--limit", type=int, help="steps of everything, to try the script out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parse(parser, size="1x16", seeds=1, limit=2, batch=4, vocabulary=300)
    if "WEFT_DATA" not in os.environ:
        parser.error("set WEFT_DATA to the folder that holds imdb, wikitext2, books, nltk, wikiann_en and words")
    data, begin = Path(os.environ["WEFT_DATA"]), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        text, files = write_texts(data, scratch, given.documents), write_tags(data, scratch)
        base, language_model = pretrained(text, scratch, given)
        learn_vectors(
            vectors={"lowercase": False, "min_count": 2, **({"epochs": 1} if given.limit else {})},
            text={"files": [text], "documents": "line"},
            device=given.device,
            out=str(scratch / "word2vec"),
            log=lambda line: None,
        )
        sources = dict(zip(WAYS, (base, scratch / "fresh", scratch / "word2vec", glove(data, scratch)), strict=True))
        results: dict[str, Any] = {
            "device": device_name(),
            "torch": torch.__version__,
            "language_model": language_model,
        }
        results["taggers"] = {}
        for way, source in sources.items():
            scores, started = [], time.perf_counter()
            for seed in range(given.seeds):
                model = tagged(way, str(source), files, given, scratch / f"{way}-{seed}", seed)
                score = model.to(given.device).evaluate(files["test"]).scores["f1"]
                scores.append([score.value, score.low, score.high])
            values = [value for value, _, _ in scores]
            line: dict[str, Any] = {"f1": scores, "mean": statistics.mean(values)}
            line["seconds"] = round(time.perf_counter() - started, 1)
            if way == "elmo":
                line["layer_weights"] = model.opened.network.mix.weights()
            results["taggers"][way] = line
            print(
                f"{way:<14} F1 {line['mean']:.4f} ({min(values):.4f} to {max(values):.4f} over {given.seeds} seeds; "
                f"95 % of the first: {scores[0][1]:.4f} to {scores[0][2]:.4f})  {line['seconds']:.0f} s",
                flush=True,
            )
            write(given.out / "elmo.json", results)
    results["seconds"] = round(time.perf_counter() - begin, 1)
    write(given.out / "elmo.json", results)
    print(f"all in {results['seconds']:.0f} s")


if __name__ == "__main__":
    main()

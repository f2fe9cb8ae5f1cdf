"""Translation on Multi30k by every architecture, its speed beside transformers' generate, and dates as a small example.

    python benchmarks/translate.py --train NAME... --data DIR --out FOLDER  architectures: trained, then judged
    python benchmarks/translate.py --all --data DIR --out FOLDER            all of them, one after the other
    python benchmarks/translate.py --table FOLDER                           what came of it, and the picture by length
    python benchmarks/translate.py --speed MODEL --data DIR --out FILE      sentences/s beside transformers (marian)
    python benchmarks/translate.py --dates --out FILE                       dates on this machine, with a picture

DIR holds multi30k (as `benchmarks/carry.py --sets pairs` gathers it). BLEU is sacreBLEU on raw text, beam 5.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import machine, medians, parse, peer, write

import weft
from weft.metrics.generation import GenerationMetrics
from weft.nn.rows import Rows
from weft.picture import ChartLine, heading, line_chart, page, table
from weft.text.records import read_texts
from weft.text.tokenizers.training import learn

SPECIALS = {"padding": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<s>"}
RECURRENT = {"family": "seq2seq", "cell": "lstm", "width": 512, "layers": 1, "dropout": 0.3, "context": 256}
WIDE = {"width": 256, "heads": 4, "layers": 3, "inner": 1024, "dropout": 0.3, "context": 256}
EPOCHS = {"seq2seq": 20, "conv-seq2seq": 30}  # of the others 50: they have more to gain from them
# What each learns with; everything else is what `weft finetune` does unless told otherwise.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "recurrent, fixed vector": {**RECURRENT, "attention": "none"},
    "recurrent, additive attention": {**RECURRENT, "attention": "additive"},
    "recurrent, dot attention": {**RECURRENT, "attention": "dot"},
    "recurrent, general attention, input feeding": {**RECURRENT, "attention": "general", "feeding": True},
    "convolutional": {"family": "conv-seq2seq", "width": 256, "layers": 4, "dropout": 0.2, "context": 256},
    "transformer": {"family": "transformer", "embedding_dropout": 0.3, **WIDE},
    "marian": {"family": "marian", "activation": "relu", "embedding_dropout": 0.3, **WIDE},
    "t5": {"family": "t5", **WIDE, "dropout": 0.1},
}
RATES = {"seq2seq": 2e-3}  # of the others 1e-3
TINY = {"width": 32, "heads": 2, "layers": 1, "inner": 64}  # to try the script out
EDGES = (8, 11, 14, 17, 21)  # words of a source, for BLEU by length


def files(data: Path, split: str) -> tuple[str, str]:
    folder = data / "multi30k"
    return tuple(str(next(folder.glob(f"{split}.{side}*"))) for side in ("en", "de"))  # type: ignore[return-value]


def lines(path: str) -> list[str]:
    return [document.text for document in read_texts([path])]


# --------------------------------------------------------------------------------------------------- architectures


def train(name: str, data: Path, out: Path, epochs: float | None, tiny: bool = False) -> dict[str, Any]:
    """One architecture from nothing to BLEU on test 2016."""
    sizes = {key: size for key, size in TINY.items() if tiny and key in ARCHITECTURES[name]}
    epochs = epochs or EPOCHS.get(ARCHITECTURES[name]["family"], 50)
    source, target = files(data, "train")
    dev_source, dev_target = files(data, "val")
    vocabulary = out / "vocabulary"
    if not vocabulary.exists():  # one for all, so that only the architecture differs
        texts = [*lines(source), *lines(target)]
        extra = [f"<extra_id_{number}>" for number in range(99, -1, -1)]
        learn(texts, "unigram", 250 if tiny else 8000, specials=SPECIALS, around="t5", extra=extra).save(vocabulary)
    folder = out / name.replace(", ", "-").replace(" ", "-")
    begin = time.perf_counter()
    weft.finetune(
        task={"name": "translate", "metric": "bleu"},
        data={"source": [source], "target": [target], "dev_source": [dev_source], "dev_target": [dev_target]},
        model={**ARCHITECTURES[name], **sizes},
        tokenizer={"folder": str(vocabulary)},
        training={"epochs": epochs, "learning_rate": RATES.get(ARCHITECTURES[name]["family"], 1e-3)},
        out=folder,
    )
    whole = time.perf_counter() - begin
    record = json.loads((folder / "run" / "run.json").read_text())
    steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = max(line.get("seconds", 0.0) for line in steps)
    model = weft.load(folder).to("cuda" if torch.cuda.is_available() else "cpu")
    found = {
        "name": name,
        "machine": machine(),
        "parameters": record["parameters"],
        "epochs": epochs,
        "training FLOPs": flops(model, source, target) * epochs,
        "seconds of training": seconds or whole,
        "seconds in all": whole,
        "words/s": sum(len(text.split()) for path in (source, target) for text in lines(path))
        * epochs
        / (seconds or whole),
        "held out": [line for line in steps if "validation_bleu" in line],
        **judge(model, data),
    }
    write(out / f"{folder.name}.json", found)
    return found


def flops(model: weft.Model, source: str, target: str) -> float:
    """Products and sums of one epoch, forward and backward."""
    read = [len(ids) + 1 for ids in model.tokenizer.ids(lines(source), specials=False)]  # type: ignore[union-attr]
    written = [len(ids) + 1 for ids in model.tokenizer.ids(lines(target), specials=False)]  # type: ignore[union-attr]
    return 3.0 * model.network.operations(Rows.of(read), Rows.of(written))  # type: ignore[operator]


def judge(model: weft.Model, data: Path) -> dict[str, Any]:
    """BLEU on both test sets, of all sentences and by the length of their sources."""
    found: dict[str, Any] = {}
    for split in ("test_2016_flickr", "test_2017_flickr"):
        sources, targets = map(lines, files(data, split))
        begin = time.perf_counter()
        answers: list[Any] = model(sources, beam_size=5)
        seconds = time.perf_counter() - begin
        scores = GenerationMetrics(edges=EDGES)
        scores.add([answer.text for answer in answers], targets, [len(source.split()) for source in sources])
        found[split] = {
            "scores": {key: [score.value, score.low, score.high] for key, score in scores.result().items()},
            "signature": scores.signature,
            "sentences/s": len(sources) / seconds,
            "by length": [[row.low, row.high, row.sentences, row.scores["bleu"].value] for row in scores.by_length()],
        }
    return found


def tabled(folder: Path) -> None:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = [each for each in found if "training FLOPs" in each]
    found.sort(key=lambda each: list(ARCHITECTURES).index(each["name"]))
    header = ["architecture", "parameters", "training FLOPs", "training s", "words/s", "BLEU 2016", "95 %", "BLEU 2017"]
    rows = []
    for each in found:
        value, low, high = each["test_2016_flickr"]["scores"]["bleu"]
        rows.append(
            [
                each["name"] + (f" ({each['note']})" if "note" in each else ""),
                f"{each['parameters'] / 1e6:.1f} M",
                f"{each['training FLOPs']:.2e}",
                f"{each['seconds of training']:.0f}",
                f"{each['words/s']:,.0f}",
                f"{value:.2f}",
                f"{low:.1f} to {high:.1f}",
                f"{each['test_2017_flickr']['scores']['bleu'][0]:.2f}",
            ]
        )
    for row in [header, *rows]:
        print("| " + " | ".join(row) + " |")
    charts = [
        ChartLine(
            each["name"],
            [
                (row[0] if row[1] is None else (row[0] + row[1] - 1) / 2, row[3])
                for row in each["test_2016_flickr"]["by length"]
            ],
        )
        for each in found
    ]
    parts = [table(header, rows), line_chart("BLEU by the length of the source", charts, "words", "BLEU")]
    (folder / "architectures.html").write_text(page("Multi30k, English to German", [heading("test 2016"), *parts]))


# ----------------------------------------------------------------------------------------------------------- speed


def speed(folder: Path, data: Path, device: str, batches: list[int], repeats: int) -> dict[str, Any]:
    """Sentences a second of test 2016 with one set of weights, here and in transformers, in turns."""
    transformers = peer("transformers")
    if transformers is None:
        return {}
    model = weft.load(folder)
    model.network.float()
    with tempfile.TemporaryDirectory() as scratch:
        model.save(Path(scratch) / "model")
        marian = transformers.MarianMTModel.from_pretrained(Path(scratch) / "model").eval().to(device)
    model.to(device)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    sources = lines(files(data, "test_2016_flickr")[0])
    end, padding = tokenizer.id_of("end"), tokenizer.id_of("padding")
    found: dict[str, Any] = {"machine": machine(), "device": device, "threads": torch.get_num_threads()}
    for batch in batches:
        some = sources[: 40 if batch == 1 and device == "cpu" else 320]
        groups = [some[first : first + batch] for first in range(0, len(some), batch)]

        def ours(groups: list[list[str]] = groups) -> list[str]:
            answers: list[Any] = [answer for group in groups for answer in model(group, beam_size=5)]
            return [answer.text for answer in answers]

        @torch.inference_mode()
        def theirs(groups: list[list[str]] = groups) -> list[str]:
            written = []
            for group in groups:
                ids = [[*each, end] for each in tokenizer.ids(group, specials=False)]
                longest = max(map(len, ids))
                tokens = torch.tensor([each + [padding] * (longest - len(each)) for each in ids], device=device)
                real = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in ids], device=device)
                most = 3 * longest + 32
                out = marian.generate(
                    tokens,
                    attention_mask=real,
                    num_beams=5,
                    early_stopping="never",
                    length_penalty=1.0,
                    max_new_tokens=most,
                    do_sample=False,
                )
                written += [tokenizer.decode([t for t in row[1:] if t not in (end, padding)]) for row in out.tolist()]
            return written

        same = sum(a == b for a, b in zip(ours(), theirs(), strict=True))
        settle = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
        seconds = medians({"ours": ours, "theirs": theirs}, repeats, warm=0, settle=settle)
        found[f"batch {batch}"] = {
            "weft sentences/s": len(some) / seconds["ours"],
            "transformers sentences/s": len(some) / seconds["theirs"],
            "times as fast": seconds["theirs"] / seconds["ours"],
            "equal texts": f"{same} of {len(some)}",
        }
        print(batch, found[f"batch {batch}"], file=sys.stderr, flush=True)
    return found


# ----------------------------------------------------------------------------------------------------------- dates


def dates(train_rows: int, steps: int | None) -> dict[str, Any]:
    """A small attention model learns to write dates, on this machine."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from dates import pairs

    rows = pairs(train_rows + train_rows // 20)
    with tempfile.TemporaryDirectory() as scratch:
        train_file, test_file = Path(scratch) / "train.tsv", Path(scratch) / "test.tsv"
        for path, some in ((train_file, rows[:train_rows]), (test_file, rows[train_rows:])):
            path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in some), encoding="utf-8")
        begin = time.perf_counter()
        plan = {"training": {"steps": steps, "epochs": None}} if steps else {}
        model = weft.finetune(str(train_file), "dates", out=Path(scratch) / "run", **plan)
        seconds = time.perf_counter() - begin
        found = model.evaluate(str(test_file))
        score = found.scores["exact"]
        answer: Any = model("3 May 2019", alignments=True)
    return {
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "exact": [score.value, score.low, score.high],
        "examples": found.examples,
        "3 May 2019": answer.text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", choices=ARCHITECTURES, nargs="+")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--speed", type=Path)
    parser.add_argument("--dates", action="store_true")
    parser.add_argument("--data", type=Path, default=Path("runs/carry"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=float, help="instead of those of the table")
    parser.add_argument("--out", type=Path, default=Path("runs/translate"))
    asked = parse(parser, repeats=1)
    if asked.smoke:
        for name in ("recurrent, dot attention", "marian"):
            train(name, asked.data, asked.out, 1, tiny=True)
        tabled(asked.out)
        print(speed(asked.out / "marian", asked.data, asked.device, [4], asked.repeats), dates(100, 1))
        return
    if asked.table:
        tabled(asked.table)
        return
    if asked.train or asked.all:
        asked.out.mkdir(parents=True, exist_ok=True)
        for name in ARCHITECTURES if asked.all else asked.train:
            print(json.dumps(train(name, asked.data, asked.out, asked.epochs)), flush=True)
        return
    if asked.speed:
        found = speed(asked.speed, asked.data, asked.device, [int(n) for n in asked.batches.split(",")], asked.repeats)
    else:
        found = dates(20_000, None)
    write(asked.out, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

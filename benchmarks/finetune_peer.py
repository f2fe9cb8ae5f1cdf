"""What transformers reaches with a plain PyTorch loop, from the weights and on the data our fine-tuning starts from.

    python benchmarks/finetune_peer.py WORK SEED --data DIR --weights DIR --out FILE.json [--limit ROWS]
    python benchmarks/finetune_peer.py --all --seeds 5 --processes 12 --data DIR --weights DIR --out FILE.json
    python benchmarks/finetune_peer.py --alone WORK --data DIR --weights DIR --out FILE.json

The first trains one model and judges it. `--all` runs such processes side by side on one GPU, largest works first, and
writes what is known after each; the seconds of runs that share a machine say nothing about speed. `--alone` times one
run that has the machine to itself, after a short one that warms it up. `benchmarks/carry.py` gathers DIR and weights.

Needs torch, transformers and numpy; the measures are written out below, as scikit-learn, seqeval and the script of
SQuAD 1.1 define them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import platform
import re
import string
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import parse, peer, write
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

transformers = peer("transformers")
if transformers is not None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
BATCH, JUDGED_BATCH = 32, 128
DECAY, WARM_UP, CLIP = 0.01, 0.06, 1.0
QUESTION, STEP, LONGEST_ANSWER = 64, 128, 30  # tokens: of a question, from window to window, of an answer
UNJUDGED = -100  # the target that cross_entropy leaves out


@dataclass(frozen=True, kw_only=True)
class Work:
    """One data set and how it is trained and judged; `measure` is the score that stands for it."""

    kind: str
    train: tuple[str, ...]
    judged: str
    epochs: int
    measure: str
    learning_rate: float = 5e-5
    length: int = 256
    prefix: str = ""  # what each word of a file of tags begins with


def glue(name: str, epochs: int, measure: str, kind: str = "classify") -> Work:
    return Work(
        kind=kind, train=(f"glue/{name}/train.tsv",), judged=f"glue/{name}/dev.tsv", epochs=epochs, measure=measure
    )


# Largest first: the order in which they are started.
WORKS = {
    "sst2": glue("sst2", 3, "accuracy"),
    "imdb": Work(
        kind="classify",
        train=("imdb/train.tsv",),
        judged="imdb/test.tsv",
        epochs=2,
        learning_rate=3e-5,
        length=512,
        measure="accuracy",
    ),
    "squad": Work(
        kind="answer",
        train=("squadshifts/new_wiki_v1.0.json", "squadshifts/reddit_v1.0.json"),
        judged="xquad/xquad.en.json",
        epochs=2,
        learning_rate=3e-5,
        length=384,
        measure="f1",
    ),
    "wikiann_en": Work(
        kind="tag", train=("wikiann_en/train",), judged="wikiann_en/test", epochs=3, measure="f1", prefix="en:"
    ),
    "cola": glue("cola", 5, "mcc"),
    "stsb": glue("stsb", 5, "pearson", kind="regress"),
    "conll2000": Work(
        kind="tag",
        train=("nltk/conll2000.zip:conll2000/train.txt",),
        judged="nltk/conll2000.zip:conll2000/test.txt",
        epochs=3,
        measure="f1",
    ),
    "mrpc": glue("mrpc", 5, "f1"),
    "wnut17": Work(
        kind="tag", train=("wnut17/wnut17train.conll",), judged="wnut17/emerging.test.annotated", epochs=5, measure="f1"
    ),
    "rte": glue("rte", 5, "accuracy"),
}


# Reading


def place(folder: Path, name: str) -> Path | None:
    """Where a file of the data lies, as it is or with .xz; a file inside an archive is named `a.zip:inside`."""
    path = folder / name.partition(":")[0]
    return next((found for found in (path, path.with_name(path.name + ".xz")) if found.is_file()), None)


def read_text(folder: Path, name: str) -> str:
    """A file of the data; a byte-order mark is dropped (MRPC has one)."""
    path, inside = place(folder, name), name.partition(":")[2]
    if path is None:
        raise SystemExit(f"{folder / name}: neither this file nor {Path(name).name}.xz is there")
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            data = archive.read(inside)
    else:
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return data.decode("utf-8-sig").replace("\r\n", "\n")


# For each table: whether it has a header, and its text, its second text or None, and its target.
COLUMNS: dict[str, tuple[bool, Callable[[list[str]], tuple[str, str | None, float]]]] = {
    "sst2": (True, lambda row: (row[0], None, int(row[1]))),
    "cola": (False, lambda row: (row[3], None, int(row[1]))),
    "mrpc": (True, lambda row: (row[3], row[4], int(row[0]))),
    "rte": (True, lambda row: (row[1], row[2], int(row[3] == "entailment"))),
    "stsb": (True, lambda row: (row[7], row[8], float(row[9]))),
    "imdb": (True, lambda row: (row[3], None, int(row[2] == "pos"))),
}


def read_table(name: str, text: str) -> list[tuple[str, str | None, float]]:
    """Lines split at tabs and nothing else: quotes in them are unbalanced."""
    header, columns = COLUMNS[name]
    return [columns(line.split("\t")) for line in text.split("\n")[header:] if line]


def read_tags(text: str, prefix: str) -> list[tuple[list[str], list[str]]]:
    """Words and tags of each sentence: first and last column, a line of spaces or tabs between sentences."""
    sentences: list[tuple[list[str], list[str]]] = []
    fresh = True
    for line in text.split("\n"):
        columns = line.split()
        if columns:
            if fresh:
                sentences.append(([], []))
            sentences[-1][0].append(columns[0].removeprefix(prefix))
            sentences[-1][1].append(columns[-1])
        fresh = not columns
    return sentences


def read_questions(text: str) -> list[dict[str, Any]]:
    return [
        {"context": paragraph["context"], "question": entry["question"], "answers": entry["answers"]}
        for article in json.loads(text)["data"]
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    ]


def read_rows(name: str, folder: Path, file: str) -> list[Any]:
    work, text = WORKS[name], read_text(folder, file)
    if work.kind == "tag":
        return read_tags(text, work.prefix)
    return read_questions(text) if work.kind == "answer" else read_table(name, text)


# Encoding


@dataclass(frozen=True)
class Encoded:
    """A row as the network takes it; `row` says which one, and `places` is for reading the output back."""

    ids: list[int]
    types: list[int]
    target: Any
    row: int
    places: Any = None


def encode_texts(tokenizer: Any, rows: list[Any], length: int) -> list[Encoded]:
    first, second, targets = zip(*rows, strict=True)
    found = tokenizer(list(first), list(second) if second[0] is not None else None, truncation=True, max_length=length)
    rowwise = zip(found["input_ids"], found["token_type_ids"], targets, strict=True)
    return [Encoded(ids, types, target, row) for row, (ids, types, target) in enumerate(rowwise)]


def encode_tags(tokenizer: Any, rows: list[Any], length: int, labels: dict[str, int]) -> list[Encoded]:
    """A word is judged at its first piece; `places` are those pieces, with the word of each."""
    found = tokenizer([words for words, _ in rows], is_split_into_words=True, truncation=True, max_length=length)
    encoded = []
    for row, (_, tags) in enumerate(rows):
        ids, words = found["input_ids"][row], found.word_ids(row)
        places = [
            (at, word) for at, word in enumerate(words) if word is not None and (at == 0 or words[at - 1] != word)
        ]
        target = [UNJUDGED] * len(ids)
        for at, word in places:
            target[at] = labels.get(tags[word], UNJUDGED)
        encoded.append(Encoded(ids, found["token_type_ids"][row], target, row, places))
    return encoded


def windows(tokens: int, room: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each window over a text, a fixed step apart, as in the code published with BERT."""
    for begin in range(0, max(tokens, 1), min(STEP, room)):
        yield begin, min(begin + room, tokens)
        if begin + room >= tokens:
            return


def encode_questions(tokenizer: Any, rows: list[Any], length: int) -> list[Encoded]:
    """A row for each window: `places` is where the context's tokens begin, and their characters.

    The target is the first answer; a window that does not hold all of it points at the first token.
    """
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    found = tokenizer(contexts, add_special_tokens=False, return_offsets_mapping=True, truncation=False)
    pieces = {
        context: (ids, offsets)
        for context, ids, offsets in zip(contexts, found["input_ids"], found["offset_mapping"], strict=True)
    }
    questions = tokenizer(
        [row["question"].strip() for row in rows], add_special_tokens=False, truncation=True, max_length=QUESTION
    )["input_ids"]
    encoded = []
    for number, (row, question) in enumerate(zip(rows, questions, strict=True)):
        ids, offsets = pieces[row["context"]]
        answer = row["answers"][0]
        begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [at for at, (left, right) in enumerate(offsets) if right > begin and left < end]
        head = [tokenizer.cls_token_id, *question, tokenizer.sep_token_id]
        for left, right in windows(len(ids), length - len(head) - 1):
            target = (0, 0)
            if inside and left <= inside[0] and inside[-1] < right:
                target = (inside[0] - left + len(head), inside[-1] - left + len(head))
            tail = [*ids[left:right], tokenizer.sep_token_id]
            types = [0] * len(head) + [1] * len(tail)
            encoded.append(Encoded(head + tail, types, target, number, (len(head), offsets[left:right])))
    return encoded


# Training


def collate(rows: list[Encoded], padding: int, device: torch.device) -> dict[str, Tensor]:
    """A batch padded to its longest row."""
    shape = len(rows), max(len(row.ids) for row in rows)
    ids, types, mask = np.full(shape, padding), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)], types[at, : len(row.ids)], mask[at, : len(row.ids)] = row.ids, row.types, 1
    arrays = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def loss_of(kind: str, output: Any, rows: list[Encoded]) -> Tensor:
    """The usual loss of each kind, in float32."""
    if kind == "answer":
        targets = torch.tensor([row.target for row in rows], device=output.start_logits.device)
        start = cross_entropy(output.start_logits.float(), targets[:, 0])
        return (start + cross_entropy(output.end_logits.float(), targets[:, 1])) / 2
    scores = output.logits.float()
    if kind == "tag":
        longest = scores.shape[1]
        padded = [row.target + [UNJUDGED] * (longest - len(row.target)) for row in rows]
        return cross_entropy(scores.flatten(0, 1), torch.tensor(padded, device=scores.device).flatten())
    targets = torch.tensor([row.target for row in rows], device=scores.device)
    return mse_loss(scores.squeeze(-1), targets) if kind == "regress" else cross_entropy(scores, targets)


def open_model(work: Work, weights: Path, labels: int) -> Any:
    if work.kind == "answer":
        return transformers.AutoModelForQuestionAnswering.from_pretrained(weights, dtype=torch.float32)
    tag = work.kind == "tag"
    published = transformers.AutoModelForTokenClassification if tag else transformers.AutoModelForSequenceClassification
    return published.from_pretrained(weights, num_labels=labels, dtype=torch.float32)


def train(work: Work, model: Any, rows: list[Encoded], padding: int, seed: int) -> int:
    """The plain loop; hands back the number of steps."""
    device = model.device
    steps = work.epochs * math.ceil(len(rows) / BATCH)
    optimizer = torch.optim.AdamW(
        model.parameters(), work.learning_rate, weight_decay=DECAY, fused=device.type == "cuda" or None
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARM_UP * steps), steps)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(work.epochs):
        order = torch.randperm(len(rows), generator=generator).tolist()
        for begin in range(0, len(order), BATCH):
            batch = [rows[at] for at in order[begin : begin + BATCH]]
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                output = model(**collate(batch, padding, device))
            loss_of(work.kind, output, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    return steps


# Judging


def best_spans(output: Any, rows: list[Encoded]) -> list[tuple[float, int, int]]:
    """For each window the span of its context with the greatest sum of start and end: score, first and last token."""
    size = output.start_logits.shape[1]
    context = torch.zeros(output.start_logits.shape, dtype=torch.bool)
    for at, row in enumerate(rows):
        context[at, row.places[0] : len(row.ids) - 1] = True
    outside = ~context.to(output.start_logits.device)
    start = output.start_logits.float().masked_fill(outside, -math.inf)
    end = output.end_logits.float().masked_fill(outside, -math.inf)
    allowed = torch.ones(size, size, dtype=torch.bool, device=start.device).triu().tril(LONGEST_ANSWER - 1)
    scores = (start[:, :, None] + end[:, None, :]).masked_fill(~allowed, -math.inf)  # B T T
    best, where = scores.flatten(1).max(dim=1)
    pairs = zip(best.tolist(), where.tolist(), rows, strict=True)
    return [(score, at // size - row.places[0], at % size - row.places[0]) for score, at, row in pairs]


@torch.inference_mode()
def predict(work: Work, model: Any, encoded: list[Encoded], padding: int, rows: list[Any], names: list[str]) -> Any:
    """What the model says of each row: a label, a number, tags or a text."""
    model.eval()
    if work.kind == "tag":
        said: list[Any] = [["O"] * len(words) for words, _ in rows]  # words that were cut off stay outside
    else:
        said = [""] * len(rows)
    greatest = [-math.inf] * len(rows)
    ordered = sorted(encoded, key=lambda row: len(row.ids))  # so that little is padded
    for begin in range(0, len(ordered), JUDGED_BATCH):
        batch = ordered[begin : begin + JUDGED_BATCH]
        output = model(**collate(batch, padding, model.device))
        if work.kind == "answer":
            for row, (score, first, last) in zip(batch, best_spans(output, batch), strict=True):
                if score > greatest[row.row]:
                    offsets = row.places[1]
                    text = rows[row.row]["context"][offsets[first][0] : offsets[last][1]]
                    greatest[row.row], said[row.row] = score, text
            continue
        scores = output.logits.squeeze(-1) if work.kind == "regress" else output.logits.argmax(-1)
        for row, values in zip(batch, scores.tolist(), strict=True):
            if work.kind == "tag":
                for at, word in row.places:
                    said[row.row][word] = names[values[at]]
            else:
                said[row.row] = values
    return said


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """Entities of BIO tags as seqeval's default mode reads them: an I after O or after another type begins one too."""
    found, begin, kind = set(), 0, ""
    for at, tag in enumerate([*tags, "O"]):
        letter, _, after = tag.partition("-")
        goes_on = letter == "I" and bool(kind) and (after or "_") == kind
        if kind and not goes_on:
            found.add((kind, begin, at - 1))
        if not goes_on:
            begin, kind = at, "" if letter == "O" else after or "_"
    return found


def entity_scores(truth: list[list[str]], said: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 over all entities of all sentences; an entity counts where span and type are right."""
    pairs = [(spans(true), spans(guess)) for true, guess in zip(truth, said, strict=True)]
    right = sum(len(true & guess) for true, guess in pairs)
    precision = right / max(sum(len(guess) for _, guess in pairs), 1)
    recall = right / max(sum(len(true) for true, _ in pairs), 1)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"f1": f1, "precision": precision, "recall": recall}


def normalized(text: str) -> list[str]:
    """An answer's words as SQuAD 1.1 compares them: without case, punctuation and articles."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def word_f1(true: list[str], guess: list[str]) -> float:
    common = sum((Counter(true) & Counter(guess)).values())
    return 2 * common / (len(true) + len(guess)) if common else 0.0


def answer_scores(rows: list[Any], said: list[str]) -> dict[str, float]:
    """Exact match and F1, each against the answer that fits best."""
    exact, overlap = 0.0, 0.0
    for row, text in zip(rows, said, strict=True):
        answers, guess = [normalized(answer["text"]) for answer in row["answers"]], normalized(text)
        exact += max(true == guess for true in answers)
        overlap += max(word_f1(true, guess) for true in answers)
    return {"f1": overlap / len(rows), "exact": exact / len(rows)}


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Pearson's, and of two columns of zeros and ones Matthews'; 0 where a side is constant."""
    left, right = left - left.mean(), right - right.mean()
    size = math.sqrt((left @ left) * (right @ right))
    return float(left @ right) / size if size else 0.0


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, equal ones sharing the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def scores_of(work: Work, rows: list[Any], said: list[Any]) -> dict[str, float]:
    """The measures of a kind of work."""
    if work.kind == "tag":
        return entity_scores([tags for _, tags in rows], said)
    if work.kind == "answer":
        return answer_scores(rows, said)
    true, guess = np.array([row[2] for row in rows], dtype=float), np.array(said, dtype=float)
    if work.kind == "regress":
        return {"pearson": correlation(true, guess), "spearman": correlation(ranks(true), ranks(guess))}
    right = float(((true == 1) & (guess == 1)).sum())
    f1 = 2 * right / (true.sum() + guess.sum()) if right else 0.0
    return {"accuracy": float((true == guess).mean()), "f1": float(f1), "mcc": correlation(true, guess)}


# Runs


def clock() -> float:
    """Seconds, once the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def settings(work: Work) -> dict[str, Any]:
    """What a reader needs in order to do the same."""
    told = asdict(work) | {
        "batch": BATCH,
        "optimizer": f"AdamW, weight decay {DECAY} on every parameter, gradient clipped at {CLIP}",
        "schedule": f"linear, warm-up over {WARM_UP:.0%} of the steps",
        "precision": "bf16 autocast in training, float32 when judged" if torch.cuda.is_available() else "float32",
        "rows": "shuffled, padded to the longest of the batch",
    }
    if work.kind == "answer":
        told["windows"] = (
            f"each begins {STEP} tokens after the one before (as in the code published with BERT; not an overlap of "
            f"{STEP}), questions cut at {QUESTION}; trained on the first answer, a window without it points at the "
            f"first token; judged by the best start + end over all windows, at most {LONGEST_ANSWER} tokens"
        )
    if work.kind == "tag":
        told["tags"] = "a word is trained and judged at its first piece; F1 as seqeval's default mode"
    return told


def run(name: str, seed: int, data: Path, weights: Path, limit: int | None) -> dict[str, Any]:
    """Train one model and judge it; `seconds` are those of tokenizing and training, without reading and judging."""
    work = WORKS[name]
    rows = [row for file in work.train for row in read_rows(name, data, file)[:limit]]
    judged = read_rows(name, data, work.judged)[:limit]
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    names = sorted({tag for _, tags in rows for tag in tags}) if work.kind == "tag" else []
    labels = {tag: at for at, tag in enumerate(names)}

    def encode(chosen: list[Any]) -> list[Encoded]:
        if work.kind == "answer":
            return encode_questions(tokenizer, chosen, work.length)
        if work.kind == "tag":
            return encode_tags(tokenizer, chosen, work.length, labels)
        return encode_texts(tokenizer, chosen, work.length)

    torch.manual_seed(seed)  # the new head's weights, and dropout
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = open_model(work, weights, 1 if work.kind == "regress" else len(names) or 2).to(device)
    began = clock()
    encoded = encode(rows)
    tokenized = clock()
    steps = train(work, model, encoded, tokenizer.pad_token_id, seed)
    trained = clock()
    test = encode(judged)
    scores = scores_of(work, judged, predict(work, model, test, tokenizer.pad_token_id, judged, names))
    return {
        "work": name,
        "seed": seed,
        "score": scores[work.measure],
        "scores": scores,
        "seconds": trained - began,
        "seconds tokenizing": tokenized - began,
        "seconds judging": clock() - trained,
        "rows": [len(rows), len(judged)],
        "windows": [len(encoded), len(test)],
        "steps": steps,
        "real tokens": work.epochs * sum(len(row.ids) for row in encoded),
        "settings": settings(work),
        "machine": {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def summary(runs: list[dict[str, Any]], processes: int) -> dict[str, Any]:
    """The finished runs of one work, by seed."""
    runs = sorted(runs, key=lambda run: run["seed"])
    first = runs[0]
    return {
        "measure": first["settings"]["measure"],
        "seeds": [run["score"] for run in runs],
        "mean": float(np.mean([run["score"] for run in runs])),
        "seconds": [run["seconds"] for run in runs],
        "which seeds": [run["seed"] for run in runs],
        "scores": {measure: [run["scores"][measure] for run in runs] for measure in first["scores"]},
        "means": {measure: float(np.mean([run["scores"][measure] for run in runs])) for measure in first["scores"]},
        "processes": processes,
        **{key: first[key] for key in ("rows", "windows", "steps", "real tokens", "settings", "machine")},
    }


def run_all(works: list[str], asked: argparse.Namespace) -> int:
    """A pool of processes, one for each work and seed; hands back how many failed."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
    environment = os.environ | threads | {"TOKENIZERS_PARALLELISM": "false"}
    finished: dict[str, list[dict[str, Any]]] = {}
    failed, began = 0, time.perf_counter()

    def start(name: str, seed: int, out: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, __file__, name, str(seed), "--data", str(asked.data)]
        command += ["--weights", str(asked.weights)]
        command += ["--out", str(out), *(["--limit", str(asked.limit)] if asked.limit else [])]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.processes) as pool:
        started = {
            pool.submit(start, name, seed, Path(folder) / f"{name}-{seed}.json"): (name, seed)
            for name in works
            for seed in range(asked.seeds)
        }
        for ended in as_completed(started):
            name, seed = started[ended]
            out, passed = Path(folder) / f"{name}-{seed}.json", time.perf_counter() - began
            if ended.result().returncode or not out.is_file():
                failed += 1
                why = f"exit {ended.result().returncode}\n{ended.result().stderr[-2000:]}"
                print(f"{passed:6.0f} s  {name} {seed} failed: {why}", flush=True)
                continue
            result = json.loads(out.read_text(encoding="utf-8"))
            finished.setdefault(name, []).append(result)
            print(f"{passed:6.0f} s  {name} {seed}: {result['score']:.4f}", flush=True)
            write(asked.out, {key: summary(finished[key], asked.processes) for key in WORKS if key in finished})
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="?", choices=[*WORKS])
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=int, help="only so many rows of each file, to try the script")
    parser.add_argument("--all", action="store_true", help="every work whose files are there")
    parser.add_argument("--works", help="with --all: only these, with commas between them")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--alone", choices=[*WORKS], help="time this work with nothing beside it")
    asked = parse(parser, limit=8)
    if transformers is None:
        return
    data, weights = asked.data, asked.weights
    if data is None or weights is None or asked.out is None:
        parser.error("give --data, --weights and --out")
    if asked.smoke:  # one of each kind, in this process
        for name in ("sst2", "stsb", "wnut17", "squad"):
            write(asked.out, run(name, 0, data, weights, asked.limit))
        return
    if sum((asked.work is not None, asked.all, asked.alone is not None)) != 1:
        parser.error("give one of: a work and a seed, --all, --alone WORK")
    if asked.all:
        chosen = asked.works.split(",") if asked.works else [*WORKS]
        if unknown := set(chosen) - set(WORKS):
            parser.error(f"--works: no such work: {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
        there = [name for name in WORKS if all(place(data, file) for file in (*WORKS[name].train, WORKS[name].judged))]
        if absent := [name for name in chosen if name not in there]:
            print(f"left out, their files are not in {data}: {', '.join(absent)}", flush=True)
        sys.exit(run_all([name for name in there if name in chosen], asked) > 0)
    if asked.alone:
        # A batch an epoch first, so that the GPU's libraries are loaded.
        run(asked.alone, asked.seed, data, weights, min(asked.limit or BATCH, BATCH))
    result = run(asked.alone or asked.work, asked.seed, data, weights, asked.limit)
    write(asked.out, result | {"alone": bool(asked.alone)})
    print(json.dumps({key: result[key] for key in ("work", "seed", "scores", "seconds", "steps", "windows")}))


if __name__ == "__main__":
    main()

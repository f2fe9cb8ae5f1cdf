"""Every verb of the command line on small models, in an order in which each finds what it needs.

Inputs lie in the working folder; all that is written goes to OUT.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--size", "1x64", "--steps", "2", "--batch", "2", "--length", "64"]
TEXT = ["--text", "weaver.txt", "--vocabulary", "300", *SMALL]
WORDS = ["--text", "weaver.txt", "--min-count", "1", "--width", "8"]
TINY = ["--model", "bert", "--size", "1x64", "--steps", "30", "--batch", "16", "--lr", "0.003"]
ROWS = ["--data", "reviews.csv"]

# A verb with its arguments; OUT is put before what begins with "/".
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("models",),
    ("recipes",),
    ("tokenizer", "learn", "--text", "weaver.txt", "--size", "300", "--out", "/tok"),
    ("tokenizer", "show", "/tok", "the loom"),
    ("new", "--model", "gpt2", "--size", "1x64", "--tokenizer", "/tok", "--out", "/fresh"),
    ("info", "/fresh"),
    ("pretrain", "--model", "gpt2", *TEXT, "--tensorboard", "--out", "/gpt"),
    ("pretrain", "--model", "bert", "--objective", "mlm+nsp", *TEXT, "--out", "/bert"),
    ("pretrain", "--model", "ngram", "--text", "weaver.txt", "--vocabulary", "300", "--out", "/ngram"),
    ("resume", "/gpt"),
    ("curves", "/gpt", "/bert", "--out", "/curves.html"),
    ("generate", "/gpt", "The weaver", "--max-tokens", "3"),
    ("suggest", "/gpt", "/ngram", "The weaver"),
    ("choose", "/gpt", "The weaver", "--choice", "sang.", "--choice", "loom the."),
    ("perplexity", "/gpt", "--text", "weaver.txt"),
    ("arpa", "write", "/ngram", "/ngram.arpa.gz"),
    ("arpa", "read", "/ngram.arpa.gz", "--out", "/from-arpa"),
    ("fill", "/bert", "the [MASK] of the loom"),
    ("embed", "/bert", "the loom", "--out", "/vectors.npy"),
    ("rank", "/bert", "--query", "an old loom", "--texts", "weaver.txt", "--top", "2"),
    ("central", "/bert", "--context", "weaver.txt", "--top", "2"),
    ("next", "/bert", "The loom was old.", "It sang all night."),
    ("finetune", "--task", "classify", *ROWS, *TINY, "--out", "/reviews"),
    ("predict", "/reviews", *ROWS, "--out", "/predictions.csv"),
    ("predict", "/reviews", *ROWS, "--out", "/predictions.parquet"),
    ("bench", "/reviews", "--lengths", "8", "--batch", "1", "--seconds", "1", "--backends", "torch", "--no-memory"),
    ("evaluate", "/reviews", *ROWS, "--out", "/evaluation.html"),
    ("finetune", "--task", "answer", "--data", "questions.jsonl", "--base", "/bert", "--steps", "1", "--out", "/qa"),
    ("answer", "/qa", "--context", "weaver.txt", "Who sang?"),
    ("finetune", "dates", "--data", "dates.tsv", "--steps", "1", "--out", "/dates"),
    ("translate", "/dates", "3 May 2019", "--out", "/translations.tsv"),
    ("summarize", "/dates", "3 May 2019"),
    ("rewrite", "/dates", "3 May 2019"),
    ("finetune", "captions", "--data", "captions.jsonl", "--steps", "1", "--out", "/captions"),
    ("describe", "/captions", "--data", "captions.jsonl", "--beam-size", "1"),
    ("finetune", "--task", "forecast", "--data", "sales.csv", "--steps", "1", "--out", "/forecast"),
    ("forecast", "/forecast", "--data", "sales.csv", "--plot", "/forecast.html"),
    ("distill", "/reviews", *ROWS, "--student", "1x64", "--steps", "1", "--out", "/student"),
    ("prune", "/reviews", "--vocabulary", "200", "--text", "weaver.txt", "--out", "/pruned"),
    ("export", "/reviews", "--to", "onnx", "--out", "/onnx"),
    ("export", "/gpt", "--to", "ctranslate2", "--out", "/ct2"),
    ("export", "/reviews", "--to", "transformers", "--out", "/published"),
    ("predict", "/onnx", *ROWS, "--out", "/onnx.jsonl"),
    ("generate", "/ct2", "The weaver", "--max-tokens", "3"),
    ("evaluate", "/onnx", *ROWS),
    ("quantize", "/reviews", *ROWS, "--kinds", "onnx-int8,bf16", "--texts", "4", "--seconds", "0.2", "--out", "/int8"),
    ("compare", "/reviews", "/onnx", *ROWS, "--texts", "4", "--seconds", "0.2", "--out", "/comparison.html"),
    ("ladder", "--text", "weaver.txt", "--tokens", "512", "--size", "tiny", "--models", "unigram", "--out", "/lad"),
    ("vectors", "learn", *WORDS, "--out", "/w2v"),
    ("vectors", "learn", *WORDS, "--seed", "1", "--out", "/w3v"),
    ("vectors", "near", "/w2v", "weaver"),
    ("vectors", "analogy", "/w2v", "weaver", "loom", "miller"),
    ("vectors", "odd", "/w2v", "weaver", "miller", "dyer", "river"),
    ("vectors", "cosine", "/w2v", "weaver", "miller"),
    ("vectors", "evaluate", "/w2v", "--data", "pairs.tsv"),
    ("vectors", "convert", "/w2v", "/w2v.bin"),
    ("vectors", "map", "/w2v", "/w3v", "--pairs", "dictionary.tsv", "--out", "/map"),
    ("look", "attention", "/bert", "the loom", "--out", "/attention.html"),
    ("look", "attention", "/gpt", "--live", "/live.html"),
    ("look", "attention", "/gpt", "the loom", "--walk", "--out", "/head.html"),
    ("look", "attribution", "/reviews", "A warm blanket.", "--out", "/attribution.html"),
    ("look", "lens", "/gpt", "the loom", "--out", "/lens.html"),
    ("look", "walk", "softmax", "--out", "/softmax.html"),
    ("look", "positions", "/bert", "--out", "/positions.svg"),
    ("look", "map", "/w2v", "--method", "tsne", "--out", "/map.html"),
    ("look", "words", "/bert", "loom", "--texts", "weaver.txt", "--out", "/words.html"),
    ("look", "probe", "/bert", *ROWS, "--task", "classify", "--out", "/probe.json"),
    ("look", "gradients", "/gpt", "--text", "the old loom", "--out", "/gradients.png"),
    ("look", "generation", "/gpt", "The weaver", "--max-tokens", "3", "--out", "/tree.html"),
    ("look", "next", "/gpt", "/ngram", "--text", "The weaver", "--out", "/next.html"),
    ("look", "tokens", "The weaver", "--tokenizer", "/tok", "--out", "/tokens.html"),
    ("cache", "list"),
    ("cache", "clear"),
)
# These say "no" on small or untrained models, which is an answer too.
MAY_REFUSE = ("quantize",)


def write_inputs(folder: Path) -> None:
    """What the commands read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("weaver.txt", "reviews.csv", "questions.jsonl"):
        (folder / name).write_bytes((EXAMPLES / name).read_bytes())
    for name, count, out in (("dates.py", "40", "dates.tsv"), ("captions.py", "20", "captions.jsonl")):
        made = subprocess.run([sys.executable, str(EXAMPLES / name), count], capture_output=True, check=True)
        (folder / out).write_bytes(made.stdout)
    subprocess.run([sys.executable, str(EXAMPLES / "sales.py"), str(folder / "sales.csv")], check=True)
    (folder / "pairs.tsv").write_text("weaver\tmiller\t8\nloom\triver\t2\nthread\tcloth\t7\n")
    words = sorted({word for word in (folder / "weaver.txt").read_text().lower().split() if word.isalpha()})
    (folder / "dictionary.tsv").write_text("".join(f"{word}\t{word}\n" for word in words))


def arguments_of(command: tuple[str, ...], out: Path) -> list[str]:
    return [f"{out}{argument}" if argument.startswith("/") else argument for argument in command]

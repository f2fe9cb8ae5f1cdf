"""What comes from outside and is wrong: one line that says what, where, which value and what would be right."""

from __future__ import annotations

import difflib
import os
import re
import traceback
from collections.abc import Iterable
from itertools import islice


class UserError(Exception):
    """A mistake in a file, a flag or a value that the user gave; shown without a traceback, exit status 2."""

    def _render_traceback_(self) -> list[str]:
        """For notebooks: the lines of the user's own code, and the message."""
        ours = os.path.dirname(__file__) + os.sep
        calls = [call for call in traceback.extract_tb(self.__traceback__) if not call.filename.startswith(ours)]
        places = [f"line {call.lineno}: {call.line}" for call in calls if "IPython" not in call.filename and call.line]
        return [*places, f"UserError: {self}"]


class NotFinite(UserError):
    """A model puts out NaN or infinity where a number is expected."""

    def __init__(self, folder: object = None) -> None:
        what = "the model's output is not a number; its weights are damaged or of no use"
        super().__init__(what if folder is None else f"{folder}: {what}")


# A proposal is looked for among so many choices, for a word of so many letters: a file may name any number of columns.
COMPARED, LONGEST_WORD = 2000, 200

# What other libraries call our things, in small letters with hyphens: options, verbs, tasks, objectives and models.
# The first of our words that is a choice where the slip was made is the one that is proposed.
SYNONYMS: dict[str, tuple[str, ...]] = {
    # options
    **dict.fromkeys(("rate", "step-size"), ("learning-rate",)),
    **dict.fromkeys(("batch-size", "per-device-train-batch-size", "train-batch-size"), ("batch",)),
    **dict.fromkeys(("max-length", "max-seq-length", "max-seq-len", "block-size", "seq-len", "context"), ("length",)),
    **dict.fromkeys(("tokens", "max-new-tokens", "num-tokens"), ("max-tokens",)),
    **dict.fromkeys(("num-epochs", "num-train-epochs", "n-epochs", "epoch"), ("epochs",)),
    **dict.fromkeys(("max-steps", "num-steps", "iterations", "iters"), ("steps",)),
    **dict.fromkeys(("output", "output-dir", "output-file", "save-to", "save-dir", "to"), ("out",)),
    **dict.fromkeys(("model-name-or-path", "model-name", "pretrained", "checkpoint"), ("base", "model")),
    **dict.fromkeys(("train", "train-file", "train-data", "input", "input-file", "file"), ("data", "text")),
    **dict.fromkeys(("validation", "validation-file", "val", "valid", "eval-file", "test-file"), ("dev", "data")),
    **dict.fromkeys(("text-column", "text-col", "label-column", "label-col"), ("column",)),
    **dict.fromkeys(("do-lower-case", "uncased", "lower"), ("lowercase",)),
    **dict.fromkeys(("vocab-size", "vocab"), ("vocabulary", "size")),
    **dict.fromkeys(("sep", "separator"), ("delimiter",)),
    **dict.fromkeys(("gpu", "cuda", "no-cuda"), ("device",)),
    **dict.fromkeys(("fp16", "bf16", "fp32", "dtype", "amp"), ("precision",)),
    **dict.fromkeys(("num-beams", "beam", "beam-width", "beams"), ("beam-size",)),
    **dict.fromkeys(("num-return-sequences", "num-samples", "n-best"), ("n",)),
    **dict.fromkeys(("random-seed", "random-state"), ("seed",)),
    **dict.fromkeys(("early-stopping", "early-stopping-patience"), ("patience",)),
    **dict.fromkeys(("force", "replace"), ("overwrite",)),
    **dict.fromkeys(("doc-stride",), ("stride",)),
    **dict.fromkeys(("hidden-size", "dim", "d-model", "n-embd", "embedding-dim", "vector-size"), ("width", "size")),
    **dict.fromkeys(("num-layers", "n-layer", "num-hidden-layers"), ("layers", "size")),
    **dict.fromkeys(("num-attention-heads", "n-head"), ("heads",)),
    **dict.fromkeys(("intermediate-size", "ffn-dim", "d-ff"), ("inner",)),
    # verbs
    **dict.fromkeys(("fine-tune", "fit", "train"), ("finetune", "learn", "data", "text")),
    **dict.fromkeys(("classify", "infer", "inference", "label"), ("classify", "predict")),
    **dict.fromkeys(("eval", "test", "score", "benchmark", "validate"), ("evaluate", "regress")),
    **dict.fromkeys(("quantise", "quantisation", "quantization"), ("quantize",)),
    **dict.fromkeys(("complete", "chat", "sample", "write", "continue"), ("generate",)),
    **dict.fromkeys(("encode", "embedding", "embeddings", "vectorize"), ("embed",)),
    **dict.fromkeys(("fill-mask", "mask", "unmask"), ("fill",)),
    **dict.fromkeys(("search", "similarity", "retrieve"), ("rank",)),
    **dict.fromkeys(("convert", "onnx", "ctranslate2"), ("export",)),
    **dict.fromkeys(("ppl",), ("perplexity",)),
    **dict.fromkeys(("tokenize", "tokenise", "tokenizers"), ("tokenizer",)),
    **dict.fromkeys(("compress", "distil", "distillation"), ("distill",)),
    **dict.fromkeys(("init", "create"), ("new",)),
    # tasks and objectives
    **dict.fromkeys(("clm", "causal", "causal-lm", "autoregressive", "next-token"), ("next",)),
    **dict.fromkeys(("masked", "masked-lm", "masked-language-modeling"), ("mlm",)),
    **dict.fromkeys(("span-corruption", "denoising"), ("spans",)),
    **dict.fromkeys(("ner", "token-classification", "pos", "chunking", "entities"), ("tag",)),
    **dict.fromkeys(("qa", "question-answering", "extractive-qa", "squad", "ask"), ("answer",)),
    **dict.fromkeys(
        ("sentiment", "sentiment-analysis", "text-classification", "classification", "sequence-classification"),
        ("classify", "predict"),
    ),
    **dict.fromkeys(("multi-label", "multi-label-classification"), ("multilabel",)),
    **dict.fromkeys(("regression",), ("regress",)),
    **dict.fromkeys(("nli", "entailment", "sts", "sentence-pair", "paraphrase-identification"), ("pair",)),
    **dict.fromkeys(("translation", "mt", "machine-translation", "text2text", "seq2seq"), ("seq2seq", "translate")),
    **dict.fromkeys(("summarization", "summary", "summarise"), ("summarize",)),
    **dict.fromkeys(("paraphrase", "paraphrasing", "grammar", "simplify"), ("rewrite",)),
    **dict.fromkeys(("caption", "captioning", "image-captioning"), ("describe",)),
    # models
    **dict.fromkeys(("bart", "pegasus"), ("transformer",)),
    **dict.fromkeys(("mbart", "m2m100", "nllb", "marianmt"), ("marian",)),
    **dict.fromkeys(("flan-t5", "mt5", "byt5", "ul2"), ("t5",)),
    **dict.fromkeys(("electra", "modernbert", "mobilebert", "tinybert", "minilm"), ("bert",)),
    **dict.fromkeys(("deberta", "camembert", "longformer"), ("roberta",)),
    **dict.fromkeys(("xlm", "xlm-r", "mbert"), ("xlm-roberta",)),
    **dict.fromkeys(("llama", "mistral", "qwen", "gemma", "opt", "pythia", "gpt-neo", "gpt3", "phi"), ("gpt2",)),
    **dict.fromkeys(("gpt", "gpt1"), ("openai-gpt",)),
    **dict.fromkeys(("fasttext", "word2vec", "glove", "gensim", "skipgram"), ("vectors",)),
    **dict.fromkeys(("bilstm", "elmo"), ("lstm",)),
    **dict.fromkeys(("kenlm", "n-gram", "kneser-ney"), ("ngram",)),
    **dict.fromkeys(("fairseq", "vaswani"), ("transformer",)),
    **dict.fromkeys(("textcnn",), ("cnn",)),
}

# What we have in another place, as it is written there.
ELSEWHERE = {
    **dict.fromkeys(("quantize", "int8", "load-in-8bit"), "a smaller model is made by: weft quantize"),
    **dict.fromkeys(("onnx", "to-onnx"), "an ONNX folder is made by: weft export"),
    **dict.fromkeys(("resume", "resume-from-checkpoint"), "a run is continued by: weft resume"),
    **dict.fromkeys(("eval", "do-eval", "do-predict"), "a model is judged by: weft evaluate"),
    **dict.fromkeys(("warmup", "warmup-steps", "warmup-ratio"), "write it as --set training.warmup=0.1"),
    **dict.fromkeys(("weight-decay", "wd"), "write it as --set training.weight_decay=0.01"),
    **dict.fromkeys(("scheduler", "lr-scheduler-type", "lr-schedule"), "write it as --set training.schedule=linear"),
    **dict.fromkeys(("max-grad-norm", "clip", "clip-norm"), "write it as --set training.clip=1.0"),
    **dict.fromkeys(("eval-steps", "eval-every"), "write it as --set training.evaluate_every=100"),
    **dict.fromkeys(("save-steps", "save-every"), "write it as --set training.save_every=100"),
    **dict.fromkeys(("logging-steps", "log-every"), "write it as --set training.log_every=10"),
    **dict.fromkeys(("gradient-accumulation-steps", "accumulate"), "write it as --set training.pass_tokens=4096"),
    **dict.fromkeys(("num-workers", "threads", "num-threads"), "write it as --set training.threads=4"),
    **dict.fromkeys(("dropout",), "write it as --set model.dropout=0.1"),
    **dict.fromkeys(("do-lower-case", "uncased", "lowercase"), "write it as --set tokenizer.lowercase=true"),
    **dict.fromkeys(("label-smoothing",), "write it as --set task.smoothing=0.1"),
    **dict.fromkeys(("test-size", "val-split", "validation-split"), "write it as --set data.holdout=0.1"),
    **dict.fromkeys(("sbert", "sentence-transformers", "mpnet"), "give it as --base all-MiniLM-L6-v2"),
}


def _plain(word: str) -> str:
    """A word as SYNONYMS has it: --max_length is max-length."""
    return word.lstrip("-").replace("_", "-").casefold()


def _meant(word: str, choices: Iterable[str]) -> str:
    """'; did you mean ...?' where one of the choices is our word for it."""
    plain = {_plain(choice): choice for choice in choices}
    name = next((name for name in SYNONYMS.get(_plain(word), ()) if name in plain), None)
    return "" if name is None else f"; did you mean {plain[name]!r}?"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """'; did you mean ...?' where a choice means the same as the word, or is spelled nearly so; else nothing."""
    choices = list(islice(choices, COMPARED))
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6) if len(word) <= LONGEST_WORD else []
    return _meant(word, choices) or (f"; did you mean {near[0]!r}?" if near else "")


def hint(word: str, choices: Iterable[str]) -> str:
    """As `did_you_mean`; what we have in another place is better than what is spelled nearly so."""
    choices = list(choices)
    elsewhere = ELSEWHERE.get(_plain(word))
    return _meant(word, choices) or (f"; {elsewhere}" if elsewhere else did_you_mean(word, choices))


def listed(names: Iterable[str], most: int = 6) -> str:
    """'a, b, c and 12 more': every name when there are few, a count of the rest when there are many."""
    names = list(names)
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def refuse(*cases: tuple[bool, str]) -> None:
    """Raise the message of the first case that is true."""
    for wrong, message in cases:
        if wrong:
            raise UserError(message)


def one_of(value: str, choices: Iterable[str], what: str) -> str:
    """The value itself when it is a choice; else an error that lists the choices."""
    choices = list(choices)
    if value in choices:
        return value
    raise UserError(f"{what} {shown(value)!r} is not one of {listed(choices, 20)}{did_you_mean(value, choices)}")


def shown(text: str | bytes, most: int = 60) -> str:
    """Text from outside, fit for one line of an error: control characters escaped, cut where it is long."""
    if isinstance(text, bytes):  # as libraries hand out names that are not UTF-8
        text = text[: 4 * most + 4].decode("utf-8", "backslashreplace")
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: most + 1])
    return line if len(text) <= most else line[:most] + "..."


# What steers a terminal or turns the order of letters: C0 and C1 controls, and overrides of writing direction.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str, keep: str = "") -> str:
    """Text from outside, fit for a terminal: control characters, but for those to `keep`, are spelled out."""
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], text)

"""Sound files of every kind that Weft reads, made small, and how each of them is used: the targets of the attack."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import warnings
import zipfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import weft
from tests.compress.models import BY_TASK, Case, tokenizer_for
from tests.compress.models import drawn as drawn_for
from tests.tasks.small import kinds, model_for, questions, sentences, vocabulary, write_conll, write_rows
from tests.tasks.written import worded, write_sides, write_table
from tests.text.bilingual import bilingual
from tests.text.samples import folder_of, lines
from weft.checkpoint.card import record_hashes
from weft.checkpoint.families import FAMILIES
from weft.cli.main import run
from weft.exporters.export import write_ct2
from weft.quantization.quantize import write_candidate
from weft.tasks.model import Model
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.training import learn

TEXTS = ["the cat is now", "a house", "Ada goes to Rome today", "", "naïve 你好 🙂 oak " * 30]
NO_LAYERS = ("ngram", "vectors", "mlp", "cnn")  # families without --size
BYTE_KINDS = ("bpe", "word-bytes")  # of tokenizers: no vocabulary is smaller than the 256 bytes


@dataclass(frozen=True)
class Sample:
    """One sound folder or file: how it is made and used, which of its files are attacked, and who reads it."""

    name: str
    reader: str  # its row in the table of outcomes
    make: Callable[[Path], object]  # fills this folder
    use: Callable[[Path], Any]  # reads it, works with it and returns what can be compared
    files: str = "*"  # the attacked ones
    checked: bool = False  # hashes stand beside it: a changed file must be refused
    quick: bool = True  # short enough for every run of the tests


class Refused(Exception):
    """A call of the command line that ended with exit status 2."""


def call(*arguments: str | Path) -> str:
    """What a call of the command line prints; every other end is an exception."""
    out = io.StringIO()
    with redirect_stdout(out):
        status = run([str(argument) for argument in arguments])
    if status == 2:
        raise Refused
    assert status == 0, f"exit status {status}"
    return out.getvalue()


# -------------------------------------------------------------------------------------------------------------- models


def answers(model: Model) -> Any:
    """What a model answers to a few texts, whatever it is made for."""
    task = model.task
    if task == "describe":
        width = model.config.features
        return model([[0.1 * n for n in range(width)], [0.0] * width], max_tokens=4)
    if task == "forecast":
        return model([[0.1 * n for n in range(model.config.context)]])
    if task in ("complete", "suggest"):
        return model([text for text in TEXTS if text][:3], max_tokens=4)
    if task in ("translate", "summarize", "rewrite"):
        return model(TEXTS[:3], max_tokens=6)
    if task == "fill":
        mask = "[MASK]" if model.tokenizer is None else model.tokenizer.roles.mask
        return model([f"the {mask} is now"])
    if task == "choose":
        return model([{"prompt": "the dog eats", "options": ["some bone", "some hay", "grass"]}])
    if task == "spans":
        return model(["the [[ cat ]] is now", "a [[ house ]] and {{ a dog }}"])
    if task in ("pair", "next"):
        return model([("the mouse is now", "a dog"), ("a horse", "")])
    if task == "answer":
        return model([("where lives Ada ?", "Ada lives in Rome . Bo lives in Oslo ."), ("who?", "Nobody.")])
    return model(TEXTS[:3] + TEXTS[4:])


def use_model(path: Path) -> Any:
    try:
        model = weft.load(path)
    except weft.UserError as error:
        if "not as it was exported" in str(error):  # what the hashes refuse must do no harm without them either
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers(weft.load(path, trust=True))
        raise
    if model.task == "fill" and model.opened.family.generates:  # T5 without the tokens that mark gaps
        model = weft.load(path, task="translate")
    return answers(model)


def make_family(name: str, path: Path) -> None:
    family = FAMILIES[name]
    size = 290 if family.tokenizer in BYTE_KINDS else 90
    tokenizer = learn(lines(60), family.tokenizer, size, specials=family.specials, around=family.around)
    settings: dict[str, Any] = {"context": 32, **({"features": 6} if family.numbers else {})}
    if name == "ngram":
        (path.parent / "text.txt").write_text("\n".join(lines(80)))
        call("pretrain", "--model", "ngram", "--text", path.parent / "text.txt", "--out", path)
        return
    if family.series:
        weft.new(name, size="1x64", settings=settings, seed=1).save(path)
        return
    if name in NO_LAYERS:
        settings["width"] = 32
        settings.pop("context")
    weft.new(name, tokenizer, size=None if name in NO_LAYERS else "1x64", settings=settings, seed=1).save(path)


def make_sharded(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_family("bert", path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, path / shard)
    table = {name: shard for shard, held in shards.items() for name in held}
    index = {"metadata": {"total_size": sum(each.nbytes for each in tensors.values())}, "weight_map": table}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def make_published_elmo(path: Path) -> None:
    from tests.models.test_elmo import arrays, write

    write(path, arrays())


def task_model(task: str) -> Model:
    case: Case = BY_TASK[task]
    return drawn_for(case, tokenizer_for(case), 1)


def make_task(task: str, path: Path) -> None:
    task_model(task).save(path)


def make_choice(path: Path) -> None:
    made = weft.new("bert", vocabulary(), size="1x64", settings={"context": 48}, heads={"choose": 1}, seed=1)
    Model(replace(made.opened, card=replace(made.card, task="choose")), "choose").save(path)


def make_spans(path: Path) -> None:
    model_for("spans", 2, vocabulary(), ("no", "yes")).save(path)


def make_forecaster(path: Path) -> None:
    from tests.tasks.test_forecast import quiet, weekly

    task: dict[str, Any] = {"name": "forecast", "horizon": 3, "window": 10}
    model: dict[str, Any] = {"family": "gru", "width": 8, "layers": 1}
    weft.finetune(weekly(2, 60), task=task, model=model, training={"steps": 2, "threads": 1}, out=path, **quiet())
    shutil.rmtree(path / "run")


def make_export(task: str, kind: str, path: Path) -> None:
    model = task_model(task)
    path.mkdir()
    texts = {"answer": [("where lives Ada ?", "Ada lives in Rome .")], "fill": ["the [MASK] is now"]}
    write_candidate(kind, path, model, texts.get(task, [row["text"] for row in kinds(8)]))
    record_hashes(path)


def make_ct2(family: str, precision: str, path: Path) -> None:
    from tests.backends.engines import drawn

    model = drawn(family)
    path.mkdir()
    write_ct2(path, model.opened, model.task, precision)
    record_hashes(path)


# ---------------------------------------------------------------------------------------------------------- tokenizers


def use_tokenizer(path: Path) -> Any:
    tokenizer = load_tokenizer(path)
    encoded = tokenizer.ids([*TEXTS, *lines(3)])
    return [encoded, [tokenizer.decode(ids) for ids in encoded]]


def use_sides(path: Path) -> Any:
    from weft.text.tokenizers.sentencepiece import read_sides

    return [[side.ids(TEXTS), [side.decode(ids) for ids in side.ids(TEXTS)]] for side in read_sides(path)]


def make_learned(kind: str, path: Path) -> None:
    learn(lines(80), kind, 300 if kind in BYTE_KINDS else 120).save(path)


def make_wordpiece_files(path: Path) -> None:
    tokens = learn(lines(80), "wordpiece", 120).tokens
    folder_of(path, vocab__txt="\n".join(tokens) + "\n", tokenizer_config__json={"do_lower_case": True})


def make_bpe_files(path: Path) -> None:
    whole = path.parent / "whole"
    learn(lines(80), "bpe", 300).save(whole)
    model = json.loads((whole / "tokenizer.json").read_text())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    merged = "#version: 0.2\n" + "\n".join(merges) + "\n"
    folder_of(path, vocab__json=model["vocab"], merges__txt=merged, config__json={"model_type": "gpt2"})


def make_sentencepiece(kind: str, path: Path) -> None:
    from tests.text.test_sentencepiece import trained

    folder_of(path, spiece__model=trained(model_type=kind, vocab_size=200), config__json={"model_type": "t5"})


def make_deberta_pieces(path: Path) -> None:
    from tests.text.test_sentencepiece import trained

    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    numbers = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    model = trained(model_type="unigram", vocab_size=200, **names, **numbers)
    settings = {"vocab_type": "spm", "do_lower_case": True, "split_by_punct": True}
    folder_of(path, spm__model=model, config__json={"model_type": "deberta-v2"}, tokenizer_config__json=settings)


def make_japanese(path: Path) -> None:
    from tests.text.test_japanese import folder_of

    folder_of(path, mecab_kwargs={"mecab_dic": "ipadic"}, subword_tokenizer_type="wordpiece")


# -------------------------------------------------------------------------------------------------------------- tables


def bed_of(path: Path) -> Path:
    """The folder that all samples stand in, from the folder of a case or a sample."""
    return path.parent / "bed" if (path.parent / "bed").exists() else path.parent


def use_table(task: str, file: str, path: Path) -> Any:
    """Rows through a model: what `weft predict --data` writes."""
    call("predict", bed_of(path) / f"task-{task}", "--data", path / file, "--out", "predictions.jsonl")
    return Path("predictions.jsonl").read_text()


def use_labeled(file: str, path: Path) -> Any:
    """Rows with what is right: columns are found, labels counted and checked."""
    call("evaluate", bed_of(path) / "task-classify", "--data", path / file, "--json")


def use_text(path: Path) -> Any:
    call("tokenizer", "learn", "--kind", "wordpiece", "--size", "200", "--text", path, "--out", "learned")


def make_table(suffix: str, path: Path) -> None:
    """The same rows of texts and labels in each of the formats."""
    path.mkdir()
    rows = kinds(20)
    file = path / f"data{suffix}"
    text = "text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows)
    match suffix:
        case ".csv":
            file.write_text(text)
        case ".tsv":
            file.write_text(text.replace(",", "\t").replace('"', ""))
        case ".csv.gz":
            file.write_bytes(gzip.compress(text.encode(), mtime=0))
        case ".json":
            file.write_text(json.dumps(rows, indent=1))
        case ".jsonl":
            write_rows(file, rows)
        case ".zip":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("a/data.csv", text)
                archive.writestr("a/more.csv", text)
        case ".xlsx":
            from tests.data.messy import excel

            excel(file, [(row["text"], row["label"]) for row in rows])
        case ".parquet" | ".arrow":
            import pyarrow
            import pyarrow.feather
            import pyarrow.parquet

            table = pyarrow.Table.from_pylist(rows)
            (pyarrow.parquet.write_table if suffix == ".parquet" else pyarrow.feather.write_feather)(table, file)


def make_conll(path: Path) -> None:
    path.mkdir()
    write_conll(path / "data.conll", sentences(12))


def make_squad(path: Path) -> None:
    paragraphs = [
        {
            "context": row["context"],
            "qas": [
                {
                    "id": str(number),
                    "question": row["question"],
                    "answers": [{"text": row["answer"], "answer_start": row["context"].index(row["answer"])}],
                }
            ],
        }
        for number, row in enumerate(questions(6))
    ]
    folder_of(path, data__json={"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}]})


def make_pairs(path: Path) -> None:
    path.mkdir()
    write_table(path / "data.tsv", worded(12))


def make_sides(path: Path) -> None:
    path.mkdir()
    write_sides(path, worded(12))


def make_choices(path: Path) -> None:
    from tests.tasks.test_choice import meals

    copa = "premise,choice1,choice2,question,label\n" + "The man fell.,He slipped.,He sang.,cause,0\n" * 6
    folder_of(path, copa__csv=copa)
    write_rows(path / "data.jsonl", meals(12))


def make_marked(path: Path) -> None:
    from tests.tasks.test_spans import FORMS

    path.mkdir()
    write_rows(path / "context.jsonl", [FORMS[0][0]] * 6)
    write_rows(path / "data.jsonl", [values for values, _ in FORMS[3:6]] * 3)


def use_all(task: str, path: Path) -> Any:
    """Every table of a folder."""
    model = bed_of(path) / f"task-{task}"
    return [call("predict", model, "--data", file, "--jsonl") for file in sorted(path.iterdir())]


def make_series(path: Path) -> None:
    """The same two series in long rows, in columns, and each in a row of its own."""
    from tests.tasks.test_forecast import weekly

    rows = weekly(2, 40)
    long = "store,day,sales\n" + "".join(f"{row['store']},{row['day']},{row['sales']}\n" for row in rows)
    both = zip(rows[:40], rows[40:], strict=True)
    wide = "day;north;south\n" + "".join(f"{one['day']};{one['sales']};{two['sales']}\n" for one, two in both)
    folder_of(path, long__csv=long, wide__csv=wide)
    write_rows(path / "rows.jsonl", [{"values": [row["sales"] for row in part]} for part in (rows[:40], rows[40:])])


def use_series(path: Path) -> Any:
    """A model reads each of the tables; then one learns from the first."""
    model = bed_of(path) / "task-forecast"
    answers = [call("forecast", model, "--data", file, "--jsonl") for file in sorted(path.iterdir())]
    small = ("--model", "linear", "--horizon", "3", "--no-baseline", "--steps", "1")
    call("finetune", "--task", "forecast", "--data", path / "long.csv", *small, "--out", "out")
    return answers


def make_languages(path: Path) -> None:
    """Texts of two languages, and sentence pairs."""
    pairs = [(one, two) for one, two in worded(40)]
    folder_of(path, pairs__tsv="".join(f"{one}\t{two}\n" for one, two in pairs))
    for number, name in enumerate(("en", "de")):
        (path / f"{name}.txt").write_text("\n".join(pair[number] for pair in pairs) + "\n")


def use_languages(path: Path) -> Any:
    texts = ("--text", f"en={path / 'en.txt'}", "--text", f"de={path / 'de.txt'}")
    small = ("--model", "xlm", *TINY, "--kind", "word", "--length", "16", "--steps", "1")
    call("pretrain", *small, *texts, "--pairs", f"en-de={path / 'pairs.tsv'}", "--out", "out")


def use_pair_files(path: Path) -> Any:
    call(
        "evaluate",
        bed_of(path) / "task-translate",
        "--source",
        path / "t.en",
        "--target",
        path / "t.de",
        "--beam-size",
        "1",
    )  # noqa: E501


# -------------------------------------------------------------------------------------------------- vectors and counts


def make_vectors(style: str, path: Path) -> None:
    make_family("vectors", path.parent / f"{path.name}-model")
    path.mkdir()
    model = path.parent / f"{path.name}-model"
    call("vectors", "convert", model, path / f"vectors.{style}", "--format", style)


def use_vectors(path: Path) -> Any:
    file = next((each for each in path.iterdir()), path / "vectors.text")
    return call("vectors", "near", file, "looms", "--jsonl")


def make_words(path: Path) -> None:
    """Words by which vectors are judged, and words with their translations."""
    words = ("The", "looms", "rivers", "models", "letters", "children", "threads", "patterns")
    pairs = "".join(f"{word}\t{word}\n" for word in words)
    similar = "".join(f"{one}\t{two}\t{len(one)}.5\n" for one, two in zip(words, words[1:], strict=False))
    folder_of(path, pairs__tsv=pairs, similar__tsv=similar)


def use_words(path: Path) -> Any:
    vectors = bed_of(path) / "family-vectors"
    call("vectors", "map", vectors, vectors, "--pairs", path / "pairs.tsv", "--out", "map")
    return call("vectors", "evaluate", vectors, "--data", path / "similar.tsv", "--jsonl")


def make_arpa(path: Path) -> None:
    model = path.parent / f"{path.name}-model"
    make_family("ngram", model)
    path.mkdir()
    call("arpa", "write", model, path / "model.arpa")


def use_arpa(path: Path) -> Any:
    call("arpa", "read", path / "model.arpa", "--out", "model")
    return call("suggest", "model", "The looms")


# ---------------------------------------------------------------------------------------------------------------- runs


TINY = ("--size", "1x64", "--set", "model.context=16", "--batch", "4")


def make_run(path: Path) -> None:
    """A run that was stopped half way: its last checkpoint is what resume goes on from."""
    text = path.parent / f"{path.name}.txt"
    text.write_text("\n".join(lines(40)))
    every = ("--set", "training.evaluate_every=2", "--set", "training.save_every=2")
    call("pretrain", "--model", "gpt2", *TINY, "--text", text, "--steps", "4", *every, "--out", path)
    shutil.rmtree(path / "run" / "checkpoints" / "step-4")


def use_run(path: Path) -> Any:
    call("resume", path)
    return call("generate", path, "The looms", "--max-tokens", "3", "--jsonl")


def use_curves(path: Path) -> Any:
    call("curves", path, "--out", "curves.html")


def make_cache(path: Path) -> None:
    """What pretraining has kept, as $WEFT_CACHE."""
    import os

    before = os.environ.get("WEFT_CACHE")
    os.environ["WEFT_CACHE"] = str(path)
    try:
        make_run(path.parent / f"{path.name}-run")
    finally:
        os.environ.pop("WEFT_CACHE")
        if before is not None:
            os.environ["WEFT_CACHE"] = before


def use_cache(path: Path) -> Any:
    import os

    os.environ["WEFT_CACHE"] = str(path)
    text = bed_of(path) / "cache-run.txt"
    call("cache", "list")
    call("pretrain", "--model", "gpt2", *TINY, "--text", text, "--steps", "1", "--out", "again")


def make_recipe(path: Path) -> None:
    from weft.runs.recipes import shipped

    path.mkdir()
    (path / "recipe.toml").write_text(shipped()["demo-bert"])


def use_recipe(path: Path) -> Any:
    text = bed_of(path) / "run.txt"
    call(
        "pretrain",
        path / "recipe.toml",
        "--size",
        "1x64",
        "--steps",
        "1",
        "--batch",
        "4",
        "--text",
        text,
        "--out",
        "out",
    )


# --------------------------------------------------------------------------------------------------------------- table


TASKS = ("classify", "multilabel", "regress", "pair", "tag", "answer", "translate", "embed", "complete", "fill")
TABLES = (".csv", ".tsv", ".csv.gz", ".json", ".jsonl", ".zip", ".xlsx", ".parquet", ".arrow")
LEARNED = ("wordpiece", "bpe", "unigram", "word", "whitespace", "character", "word-bytes")
ONNX = ("onnx-fp32", "onnx-fp16", "onnx-int8", "onnx-int8-static", "onnx-int4")


def samples() -> list[Sample]:
    """All of them; those that others stand on come first."""
    named: list[Sample] = [Sample(f"task-{task}", "model", partial(make_task, task), use_model) for task in TASKS]
    named += [
        Sample("task-choose", "model", make_choice, use_model),
        Sample("task-spans", "model", make_spans, use_model),
        Sample("task-forecast", "model", make_forecaster, use_model),
    ]
    named += [Sample(f"family-{name}", "model", partial(make_family, name), use_model) for name in FAMILIES]
    named += [Sample("sharded", "model", make_sharded, use_model)]
    named += [Sample("elmo-published", "hdf5", make_published_elmo, use_model)]
    named += [Sample("bf16", "model", partial(make_export, "classify", "bf16"), use_model)]
    for kind in ONNX:
        named.append(Sample(kind, kind, partial(make_export, "classify", kind), use_model, checked=True))
    for task in ("tag", "answer", "embed", "fill"):
        named.append(
            Sample(f"onnx-{task}", "onnx-fp32", partial(make_export, task, "onnx-fp32"), use_model, checked=True)
        )  # noqa: E501
    for precision in ("fp32", "int8"):
        for family in ("gpt2", "transformer", "marian", "t5"):
            name = f"ctranslate2-{precision}"
            named.append(
                Sample(f"{name}-{family}", name, partial(make_ct2, family, precision), use_model, "**/*", True)
            )
    named += [Sample(f"tokenizer-{kind}", "tokenizer", partial(make_learned, kind), use_tokenizer) for kind in LEARNED]
    named += [
        Sample("tokenizer-vocab", "tokenizer", make_wordpiece_files, use_tokenizer),
        Sample("tokenizer-merges", "tokenizer", make_bpe_files, use_tokenizer),
        Sample("sentencepiece-unigram", "tokenizer", partial(make_sentencepiece, "unigram"), use_tokenizer),
        Sample("sentencepiece-bpe", "tokenizer", partial(make_sentencepiece, "bpe"), use_tokenizer),
        Sample("sentencepiece-deberta", "tokenizer", make_deberta_pieces, use_tokenizer),
        Sample("tokenizer-japanese", "tokenizer", make_japanese, use_tokenizer),
        Sample("marian", "tokenizer", bilingual, use_sides),
    ]
    for suffix in TABLES:
        name, file = suffix.strip(".").replace(".", "-"), f"data{suffix}"
        named.append(
            Sample(f"table-{name}", "table", partial(make_table, suffix), partial(use_table, "classify", file))
        )
        named.append(Sample(f"labeled-{name}", "table", partial(make_table, suffix), partial(use_labeled, file)))
    named += [
        Sample("text-zip", "text", partial(make_table, ".zip"), use_text),
        Sample("text-jsonl", "text", partial(make_table, ".jsonl"), use_text),
        Sample("conll", "table", make_conll, partial(use_table, "tag", "data.conll")),
        Sample("squad", "table", make_squad, partial(use_table, "answer", "data.json")),
        Sample("pairs", "table", make_pairs, partial(use_table, "translate", "data.tsv")),
        Sample("sides", "table", make_sides, use_pair_files),
        Sample("choices", "table", make_choices, partial(use_all, "choose")),
        Sample("marked", "table", make_marked, partial(use_all, "spans")),
        Sample("series", "table", make_series, use_series),
        Sample("languages", "text", make_languages, use_languages),
        Sample("vectors-text", "vectors", partial(make_vectors, "text"), use_vectors),
        Sample("vectors-binary", "vectors", partial(make_vectors, "binary"), use_vectors),
        Sample("words", "vectors", make_words, use_words),
        Sample("arpa", "arpa", make_arpa, use_arpa),
        Sample("run", "run", make_run, use_run, files="run/**/*"),
        Sample("curves", "run", make_run, use_curves, files="run/*.json*"),
        Sample("cache", "cache", make_cache, use_cache, files="**/*"),
        Sample("recipe", "recipe", make_recipe, use_recipe),
    ]
    return named


def built(sample: Sample, bed: Path) -> Path:
    path = bed / sample.name
    sample.make(path)
    return path

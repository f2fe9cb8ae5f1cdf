"""`weft vectors`: word vectors learned from text, asked, judged, written in other formats, and mapped onto others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.checks import check_data, check_device, check_run, find_model
from weft.cli.show import DOCUMENTS, leaving_at_once, progress, sections_of, table
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.vectors.space import Near, WordSpace

app = typer.Typer(help="Learn word vectors, ask them, judge them, and map one language's onto another's.")

Vectors = Annotated[str, typer.Argument(metavar="VECTORS", help="A folder of word vectors, or a file of them.")]
Most = Annotated[int, typer.Option(help="How many words.")]
Jsonl = Annotated[bool, typer.Option("--jsonl", help="Print JSON, one object a line.")]


@app.command("learn")
def learn(
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="After --text, further files.")] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Files, folders or globs to learn from; may be repeated.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run folder to write; new or empty.")] = None,
    kind: Annotated[str | None, typer.Option(help="word2vec or glove; word2vec.")] = None,
    mode: Annotated[str | None, typer.Option(help="Of word2vec: skip-gram or cbow; skip-gram.")] = None,
    width: Annotated[int | None, typer.Option(help="Numbers of a vector; 100.")] = None,
    window: Annotated[int | None, typer.Option(help="Words on either side that are near; 5, of glove 10.")] = None,
    negatives: Annotated[int | None, typer.Option(help="Words of noise for each true neighbor; 5.")] = None,
    sample: Annotated[float | None, typer.Option(help="Words with a larger share are thinned out; 0.001.")] = None,
    minimum_count: Annotated[int | None, typer.Option(help="Words that are rarer are unknown; 5.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="The so many most frequent words alone.")] = None,
    lowercase: Annotated[bool | None, typer.Option(help="Make all letters small first; yes.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Times through the text; 5, of glove 25.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--rate", "--lr", "--learning-rate", help="The first learning rate.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="The text column of csv, tsv, jsonl and parquet files.")] = None,
    documents: Annotated[str | None, typer.Option(help=DOCUMENTS)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU when there is one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides all that is drawn; 0.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE of the recipe, such as vectors.ceiling=10.")
    ] = None,
) -> None:
    """Learn word vectors from text: word2vec (skip-gram, CBOW) or GloVe.

    The folder is a model folder: weft embed, weft finetune --base and --vectors take it. Ctrl-C saves; weft resume
    goes on.

    Example: weft vectors learn --kind word2vec --text corpus.txt --out runs/w2v
    """
    from weft.config import merged, settings_of
    from weft.runs.word_vectors_recipe import vectors_recipe

    names = list(files or [])
    if names and text is None:
        raise UserError(f"{names[0]}: text is named by --text")
    flags: dict[str, dict[str, Any]] = {
        "": {"out": out, "device": device, "seed": seed},
        "text": {"files": None if text is None else [*text, *names], "column": column, "documents": documents},
        "vectors": {
            "kind": kind,
            "mode": mode,
            "width": width,
            "window": window,
            "negatives": negatives,
            "sample": sample,
            "minimum_count": minimum_count,
            "vocabulary": vocabulary,
            "lowercase": lowercase,
            "epochs": epochs,
            "learning_rate": learning_rate,
        },
    }
    plan = vectors_recipe(None, merged(settings_of(settings or []), sections_of(flags)))
    check_run(plan.out, {})
    if not plan.text.files:
        raise UserError("no text: give --text FILE")
    check_data(plan.text.files)
    check_device(plan.device)
    with leaving_at_once():
        from weft.runs.word_vectors import learn_vectors

    learn_vectors(plan, progress=progress)


def _opened(vectors: str) -> WordSpace:
    if not Path(vectors).is_file() and Path(vectors).suffix not in (".txt", ".bin", ".vec", ".gz", ".xz", ".zip"):
        find_model(vectors)
    with leaving_at_once():
        from weft.tasks.word_vectors import open_words

    return open_words(vectors)


def _print(found: list[Near], jsonl: bool) -> None:
    for near in found:
        if jsonl:
            print(json.dumps({"word": near.word, "score": near.score}, ensure_ascii=False))
        else:
            print(f"{near.score:7.4f}  {escaped(near.word)}")


@app.command("near")
def near(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="One or several words.")],
    most: Most = 10,
    through: Annotated[
        Path | None, typer.Option(metavar="MAP", help="A map (weft vectors map): words of its other language.")
    ] = None,
    retrieval: Annotated[str, typer.Option(help="Through a map: csls or cosine.")] = "csls",
    jsonl: Jsonl = False,
) -> None:
    """The words nearest to a word; through a map, the nearest words of another language.

    Example: weft vectors near runs/w2v king --most 5

    Example: weft vectors near runs/english king --through runs/map
    """
    space = _opened(vectors)
    led: Any = None
    if through is not None:
        from weft.tasks.word_vectors import open_map

        led = open_map(through, space)
    for number, word in enumerate(words):
        found = space.near(word, most) if led is None else led.near(word, most, retrieval)
        if len(words) > 1 and not jsonl:
            print("\n" * (number > 0) + escaped(word))
        _print(found, jsonl)


@app.command("analogy")
def analogy(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="KING MAN WOMAN", help="king - man + woman.")],
    most: Most = 10,
    multiply: Annotated[bool, typer.Option("--multiply", help="3CosMul: cosines multiplied, not added.")] = False,
    jsonl: Jsonl = False,
) -> None:
    """What is to the third word as the first is to the second: king - man + woman.

    Example: weft vectors analogy runs/w2v king man woman
    """
    if len(words) != 3:
        raise UserError(f"three words are expected, as in king man woman, not {len(words)}")
    first, second, third = words
    _print(_opened(vectors).analogy(first, second, third, most, multiply), jsonl)


@app.command("odd")
def odd(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Three words or more.")],
    jsonl: Jsonl = False,
) -> None:
    """Which of some words does not belong: the one least like the others comes first.

    Example: weft vectors odd runs/w2v breakfast cereal dinner car
    """
    _print(_opened(vectors).odd(words), jsonl)


@app.command("cosine")
def cosine(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="WORD WORD", help="Two words.")],
) -> None:
    """How alike two words are, from -1 to 1.

    Example: weft vectors cosine runs/w2v king queen
    """
    if len(words) != 2:
        raise UserError(f"two words are expected, not {len(words)}")
    print(f"{_opened(vectors).cosine(words[0], words[1]):.4f}")


@app.command("evaluate")
def evaluate(
    vectors: Vectors,
    data: Annotated[list[str], typer.Option(help="Word pairs with scores, or analogies; may be repeated.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="Further files.")] = None,
    multiply: Annotated[bool, typer.Option("--multiply", help="Analogies by 3CosMul.")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Judge vectors by pairs of words (WordSim-353, SimLex-999, MEN) and by analogies (Google's).

    Example: weft vectors evaluate runs/w2v --data words/EN-WS-353-ALL.txt --data words/questions-words.txt.xz
    """
    space = _opened(vectors)
    from weft.tasks.word_vectors import judge_words

    found = judge_words(space, [*data, *(more or [])], multiply)
    if jsonl:
        for one in found:
            values = {"name": one.name, one.measure: one.score.value, "low": one.score.low, "high": one.score.high}
            values |= {"used": one.used, "asked": one.asked, "missing": list(one.missing)}
            print(json.dumps(values, ensure_ascii=False))
        return
    cells = [
        [one.name, one.measure, *(f"{value:.4f}" for value in _numbers(one)), f"{one.used:,}", f"{one.asked:,}"]
        for one in found
    ]
    print(table(["data", "score", "value", "low", "high", "used", "of"], cells))
    for one in found:
        if one.words() and not one.part:  # of analogies the whole says it for all sections
            print(escaped(one.words(), keep="\n"))


def _numbers(one: Any) -> tuple[float, float, float]:
    return one.score.value, one.score.low, one.score.high


@app.command("convert")
def convert(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A folder of word vectors, or a file of them.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="The file to write.")],
    format: Annotated[
        str | None, typer.Option(help="text or binary (word2vec's), or glove; by the name: .bin is binary.")
    ] = None,
) -> None:
    """Write word vectors in word2vec's text or binary format, or in GloVe's.

    Example: weft vectors convert runs/w2v vectors.bin --format binary
    """
    with leaving_at_once():
        from weft.tasks.word_vectors import convert as written

    words, width = written(source, target, format)
    print(f"{target}: {words:,} words of {width} numbers")


@app.command("map")
def learn_map(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Vectors of one language.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Vectors of the other.")],
    pairs: Annotated[list[str], typer.Option(help="A word and its translation a line, a tab between.")],
    out: Annotated[Path | None, typer.Option(help="The folder of the map; new or empty.")] = None,
    normalize: Annotated[bool, typer.Option(help="Make every vector 1 long first.")] = True,
    center: Annotated[bool, typer.Option(help="Take the mean off first.")] = True,
    holdout: Annotated[float, typer.Option(help="Share of the words that are kept to judge by.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Decides which those are.")] = 0,
    jsonl: Jsonl = False,
) -> None:
    """Learn the rotation of one language's vectors into another's from pairs of words, and judge it.

    Example: weft vectors map runs/english runs/german --pairs dictionary.tsv --out runs/map
    """
    with leaving_at_once():
        from weft.tasks.word_vectors import learn_map as learned
        from weft.tasks.word_vectors import read_pairs

    _, found = learned(
        source, target, read_pairs(pairs), out, normalize=normalize, center=center, holdout=holdout, seed=seed
    )
    rows = [
        {"search": way, "precision": f"@{at}", "value": score.value, "low": score.low, "high": score.high}
        for way, one in found.scores.items()
        for at, score in ((1, one.at_1), (5, one.at_5))
    ]
    if jsonl:
        for row in rows:
            print(json.dumps(row))
        return
    print(f"learned from {found.learned:,} pairs, judged by {found.held_out:,}")
    if found.left_out:
        from weft.errors import listed

        print(f"{found.left_out:,} pairs left out, since words are missing: {escaped(listed(found.missing))}")
    cells = [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    if rows:
        print(table(["search", "precision", "value", "low", "high"], cells))

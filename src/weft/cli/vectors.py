"""`weft vectors`: word vectors learned from text, asked, judged, written in other formats, and mapped onto others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.checks import check_data, check_device, check_run, find_model
from weft.cli.options import Flags, Given, Jsonl, group
from weft.cli.show import leaving_at_once, print_rows, progress, table
from weft.errors import UserError, escaped, listed

if TYPE_CHECKING:
    from weft.vectors.space import Near, WordSpace

Vectors = Annotated[str, typer.Argument(metavar="VECTORS", help="A folder of word vectors, or a file of them.")]
Top = Annotated[int, typer.Option(help="Words to show.")]


def learn(
    settings: Annotated[Given, Flags("weft.runs.recipes:VectorsRecipe", example="vectors.ceiling=10")],
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="After --text: further files.")] = None,
) -> None:
    """Learn word vectors from text: word2vec (skip-gram, CBOW) or GloVe.

    The folder is a model folder: weft embed, weft finetune --base and --vectors take it. Ctrl-C saves; weft resume
    continues.

    Example: weft vectors learn --kind word2vec --text corpus.txt --out runs/w2v
    """
    from weft.runs.recipes import vectors_recipe

    text = settings.get("text", {})
    if files and "files" not in text:
        raise UserError(f"{files[0]}: text files are given by --text")
    if files:
        text["files"] = [*text["files"], *files]
    recipe = vectors_recipe(None, settings)
    check_run(recipe.out, {})
    if not recipe.text.files:
        raise UserError("no text: give --text FILE")
    check_data(recipe.text.files)
    check_device(recipe.device)
    with leaving_at_once():
        from weft.runs.word_vectors import learn_vectors

    learn_vectors(recipe, progress=progress)


def _opened(vectors: str) -> WordSpace:
    if not Path(vectors).is_file() and Path(vectors).suffix not in (".txt", ".bin", ".vec", ".gz", ".xz", ".zip"):
        find_model(vectors)
    with leaving_at_once():
        from weft.tasks.word_vectors import open_words

    return open_words(vectors)


def _print(words: list[Near], jsonl: bool) -> None:
    for word in words:
        if jsonl:
            print(json.dumps({"word": word.word, "score": word.score}, ensure_ascii=False))
        else:
            print(f"{word.score:7.4f}  {escaped(word.word)}")


def near(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="One or several words.")],
    top: Top = 10,
    through: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A map (weft vectors map) to the words of another language.")
    ] = None,
    retrieval: Annotated[
        str, typer.Option(metavar="[csls|cosine]", help="How words are searched through a map.")
    ] = "csls",
    jsonl: Jsonl = False,
) -> None:
    """Show the words nearest to a word; through a map, the nearest words of another language.

    Example: weft vectors near runs/w2v king --top 5

    Example: weft vectors near runs/english king --through runs/map
    """
    space = _opened(vectors)
    mapped: Any = None
    if through is not None:
        from weft.tasks.word_vectors import open_map

        mapped = open_map(through, space)
    for number, word in enumerate(words):
        nearest = space.near(word, top) if mapped is None else mapped.near(word, top, retrieval)
        if len(words) > 1 and not jsonl:
            print("\n" * (number > 0) + escaped(word))
        _print(nearest, jsonl)


def analogy(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="KING MAN WOMAN", help="king - man + woman.")],
    top: Top = 10,
    multiply: Annotated[
        bool, typer.Option("--multiply", help="3CosMul: multiply the cosines instead of adding them.")
    ] = False,
    jsonl: Jsonl = False,
) -> None:
    """Solve an analogy: king - man + woman.

    Example: weft vectors analogy runs/w2v king man woman
    """
    if len(words) != 3:
        raise UserError(f"three words are expected, as in king man woman, not {len(words)}")
    first, second, third = words
    _print(_opened(vectors).analogy(first, second, third, top, multiply), jsonl)


def odd(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Three words or more.")],
    jsonl: Jsonl = False,
) -> None:
    """Show which word does not belong: the least similar to the others comes first.

    Example: weft vectors odd runs/w2v breakfast cereal dinner car
    """
    _print(_opened(vectors).odd(words), jsonl)


def cosine(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(metavar="WORD WORD", help="Two words.")],
) -> None:
    """Show the cosine of two words, from -1 to 1.

    Example: weft vectors cosine runs/w2v king queen
    """
    if len(words) != 2:
        raise UserError(f"two words are expected, not {len(words)}")
    print(f"{_opened(vectors).cosine(words[0], words[1]):.4f}")


def evaluate(
    vectors: Vectors,
    data: Annotated[list[str], typer.Option(metavar="FILE", help="Word pairs with scores, or analogies; repeatable.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="Further files.")] = None,
    multiply: Annotated[bool, typer.Option("--multiply", help="Solve analogies by 3CosMul.")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Evaluate vectors on pairs of words (WordSim-353, SimLex-999, MEN) and on analogies (Google's).

    Example: weft vectors evaluate runs/w2v --data words/EN-WS-353-ALL.txt --data words/questions-words.txt.xz
    """
    space = _opened(vectors)
    from weft.tasks.word_vectors import judge_words

    scores = judge_words(space, [*data, *(more or [])], multiply)
    if jsonl:
        for one in scores:
            values = {"name": one.name, one.measure: one.score.value, "low": one.score.low, "high": one.score.high}
            values |= {"used": one.used, "asked": one.asked, "missing": list(one.missing)}
            print(json.dumps(values, ensure_ascii=False))
        return
    cells = [
        [one.name, one.measure, *(f"{value:.4f}" for value in _numbers(one)), f"{one.used:,}", f"{one.asked:,}"]
        for one in scores
    ]
    print(table(["data", "score", "value", "low", "high", "used", "of"], cells))
    for one in scores:
        if one.words() and not one.part:  # of analogies the whole says it for all sections
            print(escaped(one.words(), keep="\n"))


def _numbers(one: Any) -> tuple[float, float, float]:
    return one.score.value, one.score.low, one.score.high


def convert(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A folder of word vectors, or a file of them.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="File to write.")],
    format: Annotated[
        str | None,
        typer.Option(metavar="[text|binary|glove]", help="Format of the file. Default: binary for .bin, else text."),
    ] = None,
) -> None:
    """Write word vectors in word2vec's text or binary format, or in GloVe's.

    Example: weft vectors convert runs/w2v vectors.bin --format binary
    """
    with leaving_at_once():
        from weft.tasks.word_vectors import convert as written

    words, width = written(source, target, format)
    print(f"{target}: {words:,} words of {width} numbers")


def learn_map(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Vectors of one language.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Vectors of the other.")],
    pairs: Annotated[
        list[str], typer.Option(metavar="FILE", help="A word and its translation per line, a tab between.")
    ],
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder of the map, new or empty.")] = None,
    normalize: Annotated[bool, typer.Option(help="Scale every vector to length 1 first.")] = True,
    center: Annotated[bool, typer.Option(help="Subtract the mean first.")] = True,
    holdout: Annotated[float, typer.Option(metavar="SHARE", help="Share of the words held out for evaluation.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the held-out words.")] = 0,
    jsonl: Jsonl = False,
) -> None:
    """Learn the rotation of one language's vectors into another's from pairs of words, and evaluate it.

    Example: weft vectors map runs/english runs/german --pairs dictionary.tsv --out runs/map
    """
    with leaving_at_once():
        from weft.tasks.word_vectors import learn_map as learned
        from weft.tasks.word_vectors import read_pairs

    _, report = learned(
        source, target, read_pairs(pairs), out, normalize=normalize, center=center, holdout=holdout, seed=seed
    )
    rows = [
        {"search": way, "precision": f"@{at}", "value": score.value, "low": score.low, "high": score.high}
        for way, one in report.scores.items()
        for at, score in ((1, one.at_1), (5, one.at_5))
    ]
    if not jsonl:
        print(f"learned from {report.learned:,} pairs, evaluated on {report.held_out:,}")
        if report.left_out:
            print(f"{report.left_out:,} pairs left out, since words are missing: {escaped(listed(report.missing))}")
    print_rows(rows, jsonl)


app = group(
    "Learn word vectors, query and evaluate them, and map one language to another.",
    learn=learn,
    near=near,
    analogy=analogy,
    odd=odd,
    cosine=cosine,
    evaluate=evaluate,
    convert=convert,
    map=learn_map,
)

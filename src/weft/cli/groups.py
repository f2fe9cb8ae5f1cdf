"""`weft tokenizer`, `vectors`, `arpa`: vocabularies, word vectors and n-gram files, each with verbs of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from weft.cli.inputs import check_data, check_device, check_run, find_model
from weft.cli.options import Flags, Given, Json, Jsonl, OutFolder, group
from weft.cli.show import leaving_at_once, print_rows, progress, table
from weft.errors import UserError, escaped, listed, shown

if TYPE_CHECKING:
    from weft.vectors.space import Near, WordSpace


def learn_tokenizer(
    out: OutFolder,
    source: Annotated[Given, Flags("weft.runs.recipes:TextSection", without=("dev",))],
    more: Annotated[list[str] | None, Argument(metavar="[FILE]...", help="After --text: further files.")] = None,
    kind: Annotated[
        str | None, Option(metavar="KIND", help="wordpiece (default), bpe, unigram, word, whitespace or character.")
    ] = None,
    model: Annotated[
        str | None, Option(metavar="NAME", help="Use the kind and special tokens of this family (see: weft models).")
    ] = None,
    size: Annotated[int, Option(help="Tokens, special ones included.")] = 8000,
    lowercase: Annotated[bool | None, Option(help="Lowercase the text. Default: as published for the kind.")] = None,
    minimum_count: Annotated[int | None, Option(help="Lowest count of a piece. Default: 2, for characters 1.")] = None,
) -> None:
    """Learn a vocabulary. The same text gives the same vocabulary, byte for byte.

    Example: weft tokenizer learn --kind wordpiece --size 8000 --text corpus/*.txt --out tok/
    """
    from weft.files import whole_folder
    from weft.text.records import read_texts
    from weft.text.rows import Skipped
    from weft.text.tokenizers.training import learn as learn_from

    files, special = source.pop("files", None), dict[str, Any]()
    if files is None:
        raise UserError("no text: give --text FILE")
    if model is not None:
        from weft.checkpoint.families import find_size

        family = find_size(model)[0]
        kind, special = kind or family.tokenizer, {"specials": family.specials, "around": family.around}
    skipped = Skipped()
    seen = 0

    def texts() -> Iterator[str]:
        nonlocal seen
        for document in read_texts([*files, *(more or [])], skipped=skipped, **source):
            seen += 1
            tick(1)
            yield document.text

    # The folder is tried first, so that a name that cannot be written does not cost the learning.
    with whole_folder(out) as inside, progress("reading", "documents") as tick:
        tokenizer = learn_from(
            texts(), kind or "wordpiece", size, lowercase=lowercase, minimum_count=minimum_count, **special
        )
        tokenizer.save(inside)
    for line in skipped.lines():
        print(f"weft: note: {line}", file=sys.stderr)
    less = "" if tokenizer.vocabulary == size else f" ({size} were asked for; the text has no more)"
    print(f"{out}: {tokenizer.kind}, {tokenizer.vocabulary} tokens{less}, from {seen} documents")


def show_tokens(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A tokenizer or model folder, or one of its files.")],
    text: Annotated[str, Argument(metavar="TEXT", help="Any text.")],
    pair: Annotated[str | None, Option(help="A second text, as for a pair task.")] = None,
    as_json: Json = False,
) -> None:
    """Show the tokens of a text: their ids, their characters, and the decoded text.

    Example: weft tokenizer show tok/ "The weaver sang."
    """
    from weft.text.tokenizers.published import load_tokenizer

    if not folder.exists():
        raise UserError(f"{str(folder)!r} is neither a tokenizer folder nor a file of one")
    tokenizer = load_tokenizer(folder)
    encoded = tokenizer.encode(text, pair)
    back = tokenizer.decode(encoded.ids)
    if as_json:
        values = {"ids": encoded.ids, "tokens": encoded.tokens, "offsets": encoded.offsets, "decoded": back}
        print(json.dumps(values, ensure_ascii=False))
        return
    unknown = tokenizer.id_of("unknown")
    sources = (text, pair or "")
    rows = []
    tokens = zip(encoded.ids, encoded.tokens, encoded.offsets, encoded.sequences, strict=True)  # each is built anew
    for place, (number, token, (start, end), side) in enumerate(tokens):
        piece = ["special", ""] if side is None else [repr(sources[side][start:end]), f"{start}-{end}"]
        rows.append([str(place), str(number), shown(token), *piece])
    print(table(["place", "id", "token", "text", "characters"], rows))
    missed = sum(number == unknown for number in encoded.ids)
    print(f"{len(rows)} tokens, {missed} unknown, of {tokenizer.vocabulary} ({tokenizer.kind}); back: {back!r}")


tokenizer = group(
    "Learn a vocabulary from text, and show what it does to a text.", learn=learn_tokenizer, show=show_tokens
)


Vectors = Annotated[str, Argument(metavar="VECTORS", help="A folder of word vectors, or a file of them.")]
Top = Annotated[int, Option(help="Words to show.")]


def learn_vectors(
    settings: Annotated[Given, Flags("weft.runs.recipes:VectorsRecipe", example="vectors.ceiling=10")],
    files: Annotated[list[str] | None, Argument(metavar="[FILE]...", help="After --text: further files.")] = None,
) -> None:
    """Learn word vectors from text: word2vec (skip-gram, CBOW) or GloVe.

    The folder is a model folder: weft embed, weft finetune --base and --vectors take it. Ctrl-C saves; weft resume
    continues.

    Example: weft vectors learn --kind word2vec --text corpus.txt --out runs/w2v
    """
    from weft.runs.recipes import VectorsRecipe, read_recipe

    text = settings.get("text", {})
    if files and "files" not in text:
        raise UserError(f"{files[0]}: text files are given by --text")
    if files:
        text["files"] = [*text["files"], *files]
    recipe = read_recipe(None, settings, VectorsRecipe)
    check_run(recipe.out, {})
    if not recipe.text.files:
        raise UserError("no text: give --text FILE")
    check_data(recipe.text.files)
    check_device(recipe.device)
    with leaving_at_once():
        from weft.runs.word_vectors import learn_vectors as learn

    learn(recipe, progress=progress)


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
    words: Annotated[list[str], Argument(metavar="WORD...", help="One or several words.")],
    top: Top = 10,
    through: Annotated[
        Path | None, Option(metavar="FOLDER", help="A map (weft vectors map) to the words of another language.")
    ] = None,
    retrieval: Annotated[str, Option(metavar="[csls|cosine]", help="How words are searched through a map.")] = "csls",
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
    words: Annotated[list[str], Argument(metavar="KING MAN WOMAN", help="king - man + woman.")],
    top: Top = 10,
    multiply: Annotated[
        bool, Option("--multiply", help="3CosMul: multiply the cosines instead of adding them.")
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
    words: Annotated[list[str], Argument(metavar="WORD...", help="Three words or more.")],
    jsonl: Jsonl = False,
) -> None:
    """Show which word does not belong: the least similar to the others comes first.

    Example: weft vectors odd runs/w2v breakfast cereal dinner car
    """
    _print(_opened(vectors).odd(words), jsonl)


def cosine(vectors: Vectors, words: Annotated[list[str], Argument(metavar="WORD WORD", help="Two words.")]) -> None:
    """Show the cosine of two words, from -1 to 1.

    Example: weft vectors cosine runs/w2v king queen
    """
    if len(words) != 2:
        raise UserError(f"two words are expected, not {len(words)}")
    print(f"{_opened(vectors).cosine(words[0], words[1]):.4f}")


def evaluate(
    vectors: Vectors,
    data: Annotated[list[str], Option(metavar="FILE", help="Word pairs with scores, or analogies; repeatable.")],
    more: Annotated[list[str] | None, Argument(metavar="[FILE]...", help="Further files.")] = None,
    multiply: Annotated[bool, Option("--multiply", help="Solve analogies by 3CosMul.")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Evaluate vectors on pairs of words (WordSim-353, SimLex-999, MEN) and on analogies (Google's).

    Example: weft vectors evaluate runs/w2v --data words/EN-WS-353-ALL.txt --data words/questions-words.txt.xz
    """
    space = _opened(vectors)
    from weft.tasks.word_vectors import evaluate_words

    scores = evaluate_words(space, [*data, *(more or [])], multiply)
    if jsonl:
        for one in scores:
            values = {"name": one.name, one.measure: one.score.value, "low": one.score.low, "high": one.score.high}
            values |= {"used": one.used, "asked": one.asked, "missing": list(one.missing)}
            print(json.dumps(values, ensure_ascii=False))
        return
    cells = []
    for one in scores:
        numbers = [f"{value:.4f}" for value in (one.score.value, one.score.low, one.score.high)]
        cells.append([one.name, one.measure, *numbers, f"{one.used:,}", f"{one.asked:,}"])
    print(table(["data", "score", "value", "low", "high", "used", "of"], cells))
    for one in scores:
        if one.words() and not one.part:  # of analogies the whole says it for all sections
            print(escaped(one.words(), keep="\n"))


def convert(
    source: Annotated[str, Argument(metavar="FROM", help="A folder of word vectors, or a file of them.")],
    target: Annotated[Path, Argument(metavar="TO", help="File to write.")],
    format: Annotated[
        str | None,
        Option(metavar="[text|binary|glove]", help="Format of the file. Default: binary for .bin, else text."),
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
    source: Annotated[str, Argument(metavar="SOURCE", help="Vectors of one language.")],
    target: Annotated[str, Argument(metavar="TARGET", help="Vectors of the other.")],
    pairs: Annotated[list[str], Option(metavar="FILE", help="A word and its translation per line, a tab between.")],
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Folder of the map, new or empty.")] = None,
    normalize: Annotated[bool, Option(help="Scale every vector to length 1 first.")] = True,
    center: Annotated[bool, Option(help="Subtract the mean first.")] = True,
    holdout: Annotated[float, Option(metavar="SHARE", help="Share of the words held out for evaluation.")] = 0.1,
    seed: Annotated[int, Option(help="Seed of the held-out words.")] = 0,
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


vectors = group(
    "Learn word vectors, query and evaluate them, and map one language to another.",
    learn=learn_vectors,
    near=near,
    analogy=analogy,
    odd=odd,
    cosine=cosine,
    evaluate=evaluate,
    convert=convert,
    map=learn_map,
)


def write(
    model: Annotated[str, Argument(metavar="MODEL", help="The folder of an n-gram model.")],
    out: Annotated[Path, Argument(metavar="FILE", help="File to write; compressed if its name ends in .gz.")],
) -> None:
    """Write an n-gram model as an ARPA file.

    Example: weft arpa write runs/5gram 5gram.arpa.gz
    """
    with leaving_at_once():
        from weft.checkpoint.ngram import write_arpa
        from weft.tasks.model import load

    loaded = load(model)
    with progress("writing", "n-grams") as tick:
        write_arpa(loaded.opened, out, tick)
    print(
        f"{out}: {sum(loaded.config.entries):,} n-grams up to order {loaded.config.order}, {out.stat().st_size:,} bytes"
    )


def read(
    file: Annotated[Path, Argument(metavar="FILE", help="An ARPA file, plain or compressed.")], out: OutFolder
) -> None:
    """Make a model folder from an ARPA file; texts are split at spaces, as the tools that write such files do.

    Example: weft arpa read 5gram.arpa.gz --out runs/from-kenlm
    """
    with leaving_at_once():
        from weft.checkpoint.folder import save_folder
        from weft.checkpoint.ngram import read_arpa
        from weft.progress import to_stderr

    with progress("reading", "lines") as tick:
        model = read_arpa(file, to_stderr, tick)
    save_folder(out, model)
    entries = ", ".join(f"{count:,} of order {order}" for order, count in enumerate(model.config.entries, 1))
    print(f"{out}: ngram, {entries}")


arpa = group("Write and read n-gram models as ARPA files, as KenLM and SRILM do.", write=write, read=read)

"""`weft tokenizer`: learn a vocabulary from text, and see what one does to a text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.options import Flags, Given, Json, OutFolder, group
from weft.cli.show import progress, table
from weft.errors import UserError, shown


def learn(
    out: OutFolder,
    source: Annotated[Given, Flags("weft.runs.recipes:TextSection", without=("dev",))],
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="After --text: further files.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="wordpiece (default), bpe, unigram, word, whitespace or character."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use the kind and special tokens of this family (see: weft models)."),
    ] = None,
    size: Annotated[int, typer.Option(help="Tokens, special ones included.")] = 8000,
    lowercase: Annotated[
        bool | None, typer.Option(help="Lowercase the text. Default: as published for the kind.")
    ] = None,
    minimum_count: Annotated[
        int | None, typer.Option(help="Lowest count of a piece. Default: 2, for characters 1.")
    ] = None,
) -> None:
    """Learn a vocabulary. The same text gives the same vocabulary, byte for byte.

    Example: weft tokenizer learn --kind wordpiece --size 8000 --text corpus/*.txt --out tok/
    """
    from weft.files import whole_folder
    from weft.text.records import read_texts
    from weft.text.row_problems import Skipped
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


def show(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A tokenizer or model folder, or one of its files.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Any text.")],
    pair: Annotated[str | None, typer.Option(help="A second text, as for a pair task.")] = None,
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


app = group("Learn a vocabulary from text, and show what it does to a text.", learn=learn, show=show)

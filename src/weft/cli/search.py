"""`weft rank`, `weft central`, `weft next`: search, the heart of a text, and what follows what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.budget import by_budget
from weft.cli.inputs import from_input, load_model, print_json
from weft.cli.options import Folder, Given, Jsonl, Runtime, Texts
from weft.cli.show import one_line, print_rows, progress
from weft.cli.words import Layers, Pooling
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.tasks.answers import Ranked
    from weft.tasks.rank import Index, Rerank
SearchedFiles = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Texts to search: txt (one per line), csv, tsv, jsonl, parquet, SQuAD."),
]
PairFiles = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Evaluate instead: files of queries with their right texts."),
]


def rank(
    folder: Folder,
    runtime: Runtime,
    query: Annotated[list[str] | None, typer.Option(help="A search query; repeatable.")] = None,
    queries: Annotated[Path | None, typer.Option(help="A file of queries, one per line.")] = None,
    texts: SearchedFiles = None,
    column: Annotated[str, typer.Option(metavar="NAME", help="Text column of a table.")] = "text",
    pairs: PairFiles = None,
    query_column: Annotated[str, typer.Option(metavar="NAME", help="Query column of --pairs.")] = "question",
    text_column: Annotated[str, typer.Option(metavar="NAME", help="Text column of --pairs.")] = "context",
    top: Annotated[int, typer.Option(help="Texts per query.")] = 10,
    rerank: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A pair model that reorders the best texts.")
    ] = None,
    candidates: Annotated[int, typer.Option(help="Texts that --rerank reads per query.")] = 50,
    positive: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Label of a matching pair in --rerank. Default: its last label.")
    ] = None,
    pooling: Pooling = None,
    layers: Layers = "last",
    jsonl: Jsonl = False,
) -> None:
    """Search texts by meaning: the nearest vectors, then the order of a pair model if --rerank is given.

    With --pairs the texts of all rows are searched for each row's query, and the scores measure how high its own text
    is ranked.

    Example: weft rank runs/bert --query "an old loom" --texts corpus/weaver.txt --top 3
    """
    from weft.text.records import read_texts

    wanted = [*(query or []), *(text.text for text in read_texts(queries, format="txt"))] if queries else query or []
    if pairs and (wanted or texts):
        raise UserError("--pairs brings its own queries and texts: leave out --query, --queries and --texts")
    if not pairs and not (wanted and texts):
        raise UserError("give --query or --queries, and --texts; or --pairs to evaluate a model")
    if candidates < 1 or top < 1:
        raise UserError(f"--top and --candidates must be 1 or more, not {min(top, candidates)}")
    if pairs:
        pool, right = _pool(pairs, query_column, text_column)
    else:
        pool, right = [document.text for document in read_texts(texts or [], column=column)], []
    model = load_model(folder, "rank", **runtime)
    reranker = None if rerank is None else _reranker(rerank, positive, runtime)
    from weft.tasks.rank import Index

    with progress("embedding", "texts") as tick:
        index = Index(model.opened, pool, pooling=pooling, layers=layers, on_progress=tick)
    if pairs:
        _judge(index, right, reranker, candidates, jsonl)
        return
    for number, (asked, answer) in enumerate(_answers(index, wanted, top, reranker, candidates)):
        if jsonl:
            print_json(answer, query=asked)
            continue
        if len(wanted) > 1:
            print("\n" * (number > 0) + escaped(asked))
        for place, hit in enumerate(answer.hits, 1):
            print(f"{place:>3}  {hit.score:.4f}  {escaped(one_line(hit.text))}")


def _pool(pairs: list[str], query_column: str, text_column: str) -> tuple[list[str], list[tuple[str, int]]]:
    """The different texts of some pairs, and every query with the place of its text."""
    from weft.text.records import read_records

    places: dict[str, int] = {}
    right = []
    for record in read_records(pairs, columns=(query_column, text_column)):
        query, text = (_text(record.values, name, record.where) for name in (query_column, text_column))
        right.append((query, places.setdefault(text, len(places))))
    return list(places), right


def _answers(
    index: Index, queries: list[str], top: int, rerank: Rerank | None, candidates: int
) -> Iterator[tuple[str, Ranked]]:
    """The answer to each query, as soon as those of its batch are answered."""
    for batch in by_budget(queries, lambda query: 1, 64):
        yield from zip(batch, index.ask(batch, top=top, rerank=rerank, candidates=candidates), strict=True)


def _text(values: dict[str, Any], column: str, where: str) -> str:
    text = values[column]
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}: column {column!r} holds no text")
    return text


def _reranker(folder: str, positive: str | None, runtime: Given) -> Rerank:
    from weft.tasks.rank import pair_scores

    return pair_scores(load_model(folder, "pair", **runtime), positive)


def _judge(index: Index, rights: list[tuple[str, int]], rerank: Rerank | None, candidates: int, jsonl: bool) -> None:
    """How high the right texts come, before and after re-ranking."""
    from weft.metrics.vectors import RankingMetrics
    from weft.tasks.rank import places

    before, after = RankingMetrics(at=10), RankingMetrics(at=10)
    with progress("searching", "queries") as tick:
        for place in places(index, rights, rerank=rerank, candidates=candidates):
            before.add(place.embedding)
            after.add(place.pair)
            tick(1)
    stages = {"embedding": before.result(), **({} if rerank is None else {"pair": after.result()})}
    rows = [
        {"stage": stage, "score": name, "value": score.value, "low": score.low, "high": score.high}
        for stage, scores in stages.items()
        for name, score in scores.items()
    ]
    if not jsonl:
        print(f"{len(rights):,} queries, {len(index.texts):,} texts")
    print_rows(rows, jsonl)


def central(
    folder: Folder,
    runtime: Runtime,
    texts: Texts = None,
    context: Annotated[Path | None, typer.Option(help="A file that is one text.")] = None,
    top: Annotated[int, typer.Option(help="Sentences to show.")] = 3,
    pooling: Pooling = None,
    layers: Layers = "last",
    jsonl: Jsonl = False,
) -> None:
    """Show the most central sentences of a text: those most similar to all others, in the order of the text.

    Example: weft central runs/bert --context corpus/weaver.txt --top 3
    """
    if texts and context is not None:
        raise UserError("give texts or --context, not both")
    given = from_input(texts) if context is None else [_whole(context)]
    model = load_model(folder, "central", **runtime)
    for number, text in enumerate(given):
        answer: Any = model(text, top=top, pooling=pooling, layers=layers)
        if jsonl:
            print_json(answer)
            continue
        if number:
            print()
        for sentence in answer.sentences:
            place = f"{sentence.start}-{sentence.end}"
            print(f"{sentence.score:.4f}  {place:>13}  {escaped(one_line(sentence.text))}")


def _whole(path: Path) -> str:
    """The text of a file as it is, so that offsets are those of the file."""
    from weft.files import MEGABYTE, read_text

    return read_text(path, 1024 * MEGABYTE)


def follows(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT TEXT]", help="Two sentences. Default: lines of standard input, a tab between the two."
        ),
    ] = None,
    jsonl: Jsonl = False,
) -> None:
    """Predict whether the second sentence follows the first, with BERT's next sentence head.

    Example: weft next runs/bert "The loom was old." "It sang all night."
    """
    model: Any = load_model(folder, "next", **runtime)
    for batch in by_budget(_pairs(texts), lambda pair: max(len(pair[0]) + len(pair[1]), 4096), 1 << 20):
        for (first, second), answer in zip(batch, model(batch), strict=True):
            if jsonl:
                print_json(answer, first=first, second=second)
                continue
            print(f"{answer.probability:.4f}  {'follows' if answer.follows else 'does not follow'}", end="")
            print("  (truncated to fit)" if answer.truncated else "")


def _pairs(texts: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    given = list(texts or [])
    if given and given != ["-"]:
        if len(given) != 2:
            raise UserError(f"two sentences are expected, not {len(given)}")
        yield given[0], given[1]
        return
    for number, line in enumerate(from_input(None), 1):
        first, tab, second = line.partition("\t")
        if not tab or "\t" in second:
            raise UserError(f"standard input line {number}: two sentences with one tab between them are expected")
        yield first, second

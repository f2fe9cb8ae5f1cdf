"""`weft generate`, `fill`, `answer`, `embed`, `rank`, `central`, `next`: texts, answers and vectors out of a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from weft.budget import by_budget
from weft.cli.inputs import check_choices, from_input, load_model, print_json
from weft.cli.options import GENERATION, Flags, Folder, Given, Jsonl, Runtime, Texts
from weft.cli.show import Ticker, one_line, print_rows, progress
from weft.errors import UserError, escaped, refuse
from weft.files import MEGABYTE, read_text

if TYPE_CHECKING:
    from weft.tasks.complete import Stream
    from weft.tasks.embed import Index, Rerank


POOLINGS = ("mean", "first", "max")
Pooling = Annotated[
    str | None, Option(metavar="[mean|first|max]", help="How token vectors become one. Default: as the folder says.")
]
Layers = Annotated[
    str,
    Option(
        metavar="LAYERS", help="last, a number (0: the embeddings), last4-sum, last4-mean, last4-concat or all-mean."
    ),
]


def generate(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, without=("coverage", "alignments"))],
    runtime: Runtime,
    prompts: Annotated[
        list[str] | None,
        Argument(metavar="[PROMPT]...", help="Prompts; - reads lines of standard input. Default: an empty one."),
    ] = None,
    template: Annotated[
        str | None,
        Option(metavar="NAME", help="Template of the prompts: translate, summarize, answer, or a text with {text}."),
    ] = None,
    example: Annotated[
        list[str] | None, Option(metavar="TEXT=>ANSWER", help="An example that the template shows before; repeatable.")
    ] = None,
    context: Annotated[str | None, Option(help="The text that the questions of a template are about.")] = None,
    stream: Annotated[bool, Option("--stream", help="Print the text while it is generated.")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Continue prompts with a language model. An encoder-decoder prints its output for the prompt.

    Without --beam-size or a sampling option (--temperature, --top-k, --top-p, --min-p, --typical) decoding is greedy.
    Default of --max-tokens: the rest of the context, or 256 if the context has no limit.

    Example: weft generate runs/gpt "The weaver said" --max-tokens 40 --top-p 0.9
    """
    given = list(from_input(prompts)) if prompts else [""]
    _check_generate(given, options, template, bool(example) or context is not None, stream, jsonl)
    model = load_model(folder, "complete", **runtime)
    chosen = None
    if template is not None:
        from weft.tasks.choose import example_of, prompt_of, template_of

        chosen, shots = template_of(template), [example_of(text) for text in example or []]
        given = [prompt_of(chosen, text, context=context, examples=shots) for text in given]
        options = {**chosen.decoding, **options}  # as the template's paper decodes
    if stream:
        _print_stream(model.stream(given[0], **options), "" if model.opened.family.reads else given[0])
        return
    with progress("generating", "tokens") as tick:
        answers: list[Any] = model(given, on_progress=tick, **options)
    finish = chosen.finish if chosen is not None else str
    prefixes = [""] * len(given) if chosen is not None or model.opened.family.reads else given
    for prompt, prefix, answer in zip(given, prefixes, answers, strict=True):
        if jsonl:
            print_json(answer, prompt=prompt)
            continue
        for text in answer.best or [answer]:
            print(f"{prefix}{finish(text.text)}")
            score = f", score: {text.score:.4f}" if answer.best else ""
            print(f"[{len(text.tokens)} tokens, finish_reason: {text.finish_reason}{score}]", file=sys.stderr)


def _check_generate(
    given: list[str], options: Given, template: str | None, parts: bool, stream: bool, jsonl: bool
) -> None:
    whole = "--stream does not go with --template: its answer is known when the text is complete"
    refuse(
        (stream and template is not None, whole),
        (stream and len(given) != 1, f"--stream takes one prompt, not {len(given)}"),
        (stream and jsonl, "--stream prints a text in pieces, --jsonl a whole object: give one of them"),
        ("logprobs" in options and not jsonl, "--logprobs are printed as JSON: give --jsonl too"),
        (template is None and parts, "--example and --context are parts of a --template: give --template too"),
    )


def _print_stream(pieces: Stream, prompt: str) -> None:
    """Print a text while it is generated; a mistake is raised before anything is printed."""
    first = True
    for piece in pieces:
        print(f"{prompt}{piece}" if first else piece, end="", flush=True)
        first = False
    print("" if not first else prompt)
    answer = pieces.answer
    print(f"[{len(answer.tokens)} tokens, finish_reason: {answer.finish_reason}]", file=sys.stderr)


def fill(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[
        list[str] | None,
        Argument(metavar="[TEXT]...", help='Texts with gaps: "the [MASK] of the loom"; for T5 <extra_id_0>.'),
    ] = None,
    top: Annotated[int, Option(help="Words per gap; T5 gives only the best.")] = 5,
    jsonl: Jsonl = False,
) -> None:
    """Fill the gaps of a text with the likeliest words.

    Example: weft fill runs/bert "the [MASK] of the loom"

    Example: weft fill runs/t5 "The <extra_id_0> of the <extra_id_1> was old."
    """
    model = load_model(folder, "fill", **runtime)
    for text in from_input(texts):
        answer: Any = model(text, top=top)
        if jsonl:
            print_json(answer, input=text)
            continue
        print(answer.text)
        for number, gap in enumerate(answer.gaps, 1):
            print(f"  gap {number}: " + escaped(", ".join(f"{word.word} {word.probability:.3f}" for word in gap)))


def answer(
    folder: Folder,
    runtime: Runtime,
    questions: Annotated[list[str] | None, Argument(metavar="QUESTION...", help="Questions.")] = None,
    context: Annotated[
        Path | None, Option(help="File with the text to search, of any length; - reads standard input.")
    ] = None,
    top: Annotated[int, Option(help="Candidate answers to show.")] = 3,
    jsonl: Jsonl = False,
) -> None:
    """Answer questions from a text, or report that it holds no answer.

    Example: weft answer runs/qa --context contract.txt "When does it end?"
    """
    if not questions or not all(question.strip() for question in questions):
        raise UserError("no question: give one or more after the model")
    if context is None:
        raise UserError("no text to search: give --context FILE, or - for standard input")
    if not 1 <= top <= 20:
        raise UserError(f"--top must be between 1 and 20, not {top}")
    text = sys.stdin.read() if str(context) == "-" else read_text(context, 256 * MEGABYTE)
    if not text.strip():
        raise UserError(f"{context}: holds no text")
    model = load_model(folder, "answer", **runtime)
    replies: list[Any] = model([(question, text) for question in questions], top=top)
    for question, reply in zip(questions, replies, strict=True):
        if jsonl:
            print_json(reply, question=question)
            continue
        line = f"{one_line(reply.text) or '(no answer)'}  {reply.score:.4f}"
        print(escaped(line + (f"  at {reply.start}-{reply.end}" if reply.text else "")))
        for choice in reply.best:
            print(escaped(f"  {choice.score:.4f}  {choice.start}-{choice.end}  {one_line(choice.text)}"))
        windows = f"{reply.n_windows:,} window{'s' * (reply.n_windows > 1)}"
        truncated = "the text was truncated" if reply.truncated else "nothing was truncated"
        print(f"[{reply.n_tokens:,} tokens in {windows}; {truncated}]", file=sys.stderr)


def embed(
    folder: Folder,
    runtime: Runtime,
    texts: Texts = None,
    pooling: Pooling = None,
    layers: Layers = "last",
    normalize: Annotated[bool | None, Option(help="Scale vectors to length 1. Default: as the folder says.")] = None,
    out: Annotated[Path | None, Option(help="Write a .npy array instead of JSON lines.")] = None,
) -> None:
    """Turn texts into vectors.

    A text of any length is read completely, in windows.

    Example: weft embed all-MiniLM-L6-v2 --out vectors.npy < texts.txt
    """
    if out is not None and out.suffix != ".npy":
        raise UserError(f"{out}: an array is written as .npy")
    check_choices(("--pooling", pooling, POOLINGS))
    model = load_model(folder, "embed", **runtime)
    from weft.tasks.embed import Embedder

    embedder = Embedder(model.opened, pooling=pooling, normalize=normalize, layers=layers)
    windows = 0

    def vectors(tick: Ticker) -> Iterator[Any]:
        nonlocal windows
        for chunk in embedder.chunks(from_input(texts)):
            tick(len(chunk.vectors))
            windows += sum(chunk.n_windows)
            if out is None:
                for vector in chunk.answers():
                    print(json.dumps(asdict(vector)))
            yield chunk.vectors.numpy()

    with progress("embedding", "texts") as tick:
        if out is not None:
            count = save_array(out, vectors(tick), embedder.width)
            print(f"{out}: {count} vectors of {embedder.width} numbers, {windows} windows", file=sys.stderr)
            return
        for _ in vectors(tick):
            pass


def save_array(path: Path, blocks: Iterable[Any], width: int) -> int:
    """A float32 array from blocks of rows, written whole or not at all, never held whole; how many rows it has."""
    from numpy.lib import format

    from weft.files import whole_file

    count = 0
    with whole_file(path) as file:

        def header() -> None:
            file.seek(0)  # numpy leaves room for the number of rows to grow
            format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, width)})

        header()
        begin = file.tell()
        for block in blocks:
            file.write(block.astype("<f4").tobytes())
            count += len(block)
        header()
        assert file.tell() == begin
    return count


SearchedFiles = Annotated[
    list[str] | None,
    Option(metavar="FILE", help="Texts to search: txt (one per line), csv, tsv, jsonl, parquet, SQuAD."),
]
PairFiles = Annotated[
    list[str] | None, Option(metavar="FILE", help="Evaluate instead: files of queries with their right texts.")
]


def rank(
    folder: Folder,
    runtime: Runtime,
    query: Annotated[list[str] | None, Option(help="A search query; repeatable.")] = None,
    queries: Annotated[Path | None, Option(help="A file of queries, one per line.")] = None,
    texts: SearchedFiles = None,
    column: Annotated[str, Option(metavar="NAME", help="Text column of a table.")] = "text",
    pairs: PairFiles = None,
    query_column: Annotated[str, Option(metavar="NAME", help="Query column of --pairs.")] = "question",
    text_column: Annotated[str, Option(metavar="NAME", help="Text column of --pairs.")] = "context",
    top: Annotated[int, Option(help="Texts per query.")] = 10,
    rerank: Annotated[str | None, Option(metavar="MODEL", help="A pair model that reorders the best texts.")] = None,
    candidates: Annotated[int, Option(help="Texts that --rerank reads per query.")] = 50,
    positive: Annotated[
        str | None, Option(metavar="LABEL", help="Label of a matching pair in --rerank. Default: its last label.")
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
    least, complete = min(top, candidates), bool(wanted and texts)
    both = "--pairs brings its own queries and texts: leave out --query, --queries and --texts"
    refuse(
        (bool(pairs and (wanted or texts)), both),
        (not pairs and not complete, "give --query or --queries, and --texts; or --pairs to evaluate a model"),
        (least < 1, f"--top and --candidates must be 1 or more, not {least}"),
    )
    if pairs:
        pool, right = _pool(pairs, query_column, text_column)
    else:
        pool, right = [document.text for document in read_texts(texts or [], column=column)], []
    model = load_model(folder, "rank", **runtime)
    reranker = None if rerank is None else _reranker(rerank, positive, runtime)
    from weft.tasks.embed import Index

    with progress("embedding", "texts") as tick:
        index = Index(model.opened, pool, pooling=pooling, layers=layers, on_progress=tick)
    if pairs:
        _judge(index, right, reranker, candidates, jsonl)
        return
    for batch in by_budget(enumerate(wanted), lambda query: 1, 64):
        answers = index.ask([query for _, query in batch], top=top, rerank=reranker, candidates=candidates)
        for (number, asked), answer in zip(batch, answers, strict=True):
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
        for column in (query_column, text_column):
            if not isinstance(record.values[column], str) or not record.values[column].strip():
                raise UserError(f"{record.where}: column {column!r} holds no text")
        place = places.setdefault(record.values[text_column], len(places))
        right.append((record.values[query_column], place))
    return list(places), right


def _reranker(folder: str, positive: str | None, runtime: Given) -> Rerank:
    from weft.tasks.embed import pair_scores

    return pair_scores(load_model(folder, "pair", **runtime), positive)


def _judge(index: Index, rights: list[tuple[str, int]], rerank: Rerank | None, candidates: int, jsonl: bool) -> None:
    """How high the right texts come, before and after re-ranking."""
    from weft.metrics.vectors import RankingMetrics
    from weft.tasks.embed import places

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
    context: Annotated[Path | None, Option(help="A file that is one text.")] = None,
    top: Annotated[int, Option(help="Sentences to show.")] = 3,
    pooling: Pooling = None,
    layers: Layers = "last",
    jsonl: Jsonl = False,
) -> None:
    """Show the most central sentences of a text: those most similar to all others, in the order of the text.

    Example: weft central runs/bert --context corpus/weaver.txt --top 3
    """
    if texts and context is not None:
        raise UserError("give texts or --context, not both")
    given = from_input(texts) if context is None else [read_text(context, 1024 * MEGABYTE)]  # offsets are the file's
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


def next_(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[
        list[str] | None,
        Argument(metavar="[TEXT TEXT]", help="Two sentences. Default: lines of standard input, a tab between the two."),
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

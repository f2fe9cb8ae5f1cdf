"""`weft generate`, `fill`, `answer`, `embed`, `rank`, `central`, `next`, `choose`, `suggest`."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import weft
from weft.budget import by_budget
from weft.cli import inputs, late
from weft.cli.inputs import one_line, table
from weft.cli.options import GENERATION, Flags, Folder, Given, Jsonl, Runtime, Texts, argument, flag
from weft.cli.vector_output import COLUMNS, VectorBlock, save_vectors, text_blocks, token_blocks
from weft.errors import UserError, escaped, listed, refuse
from weft.files import MEGABYTE, read_text
from weft.progress import live as progress
from weft.progress import to_stderr

if TYPE_CHECKING:
    from weft.tasks.answers import Suggestions
    from weft.tasks.embed import Index, Rerank


Pooling = Annotated[str | None, flag("How token vectors become one. Default: as the folder says.", "[mean|first|max]")]
Layers = Annotated[
    str,
    flag(
        "last, second-to-last, a number (0: embeddings), last4-sum, last4-mean, last4-concat, all-mean, weighted, "
        "weighted:0.1,0.9,...",
        "LAYERS",
    ),
]


def generate(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, without=("coverage", "alignments"))],
    runtime: Runtime,
    prompts: Annotated[
        list[str] | None, argument("[PROMPT]...", "Prompts; - is standard input. Default: empty.")
    ] = None,
    template: Annotated[str | None, flag("translate, summarize, answer, or a text with {text}.", "TEMPLATE")] = None,
    example: Annotated[list[str] | None, flag("An example for the template; repeatable.", "TEXT=>ANSWER")] = None,
    context: Annotated[str | None, flag("The text that the questions of a template are about.")] = None,
    stream: Annotated[bool, flag("Print the text while it is generated.", None, "--stream")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Continue prompts with a language model. An encoder-decoder prints its output for the prompt.

    Without --beam-size or a sampling option (--temperature, --top-k, --top-p, --min-p, --typical) decoding is greedy.
    Default of --max-tokens: the rest of the context, or 256 if the context has no limit.

    Example: weft generate runs/gpt "The weaver said" --max-tokens 40 --top-p 0.9
    Example: weft generate runs/gpt "The weaver worked at the lo" --complete-word --max-tokens 8
    """
    given = list(inputs.from_input(prompts)) if prompts else [""]
    whole = "--stream does not go with --template: its answer is known when the text is complete"
    parts = bool(example) or context is not None
    refuse(
        (stream and template is not None, whole),
        (stream and len(given) != 1, f"--stream takes one prompt, not {len(given)}"),
        (stream and jsonl, "--stream prints a text in pieces, --jsonl a whole object: give one of them"),
        ("logprobs" in options and not jsonl, "--logprobs are printed as JSON: give --jsonl too"),
        (template is None and parts, "--example and --context are parts of a --template: give --template too"),
    )
    model = inputs.load_model(folder, "complete", chosen=True, **runtime)
    chosen = None
    if template is not None:
        chosen = late.templates.template_of(template)
        shots = [late.templates.example_of(text) for text in example or []]
        given = [late.templates.prompt_of(chosen, text, context=context, examples=shots) for text in given]
        options = {**chosen.decoding, **options}  # as the template's paper decodes
    shows_prompt = chosen is None and not model.opened.family.reads
    if stream:
        _print_stream(model.stream(given[0], **options), given[0] if shows_prompt else "")
        return
    with progress("generating", "tokens") as tick:
        answers: list[Any] = model(given, on_progress=tick, **options)
    for prompt, answer in inputs.to_print(given, answers, "prompt", jsonl):
        for text in answer.best or [answer]:
            print(f"{prompt}{text.text}" if shows_prompt else text.text if chosen is None else chosen.finish(text.text))
            _print_finish(text, f", score: {text.score:.4f}" if answer.best else "")


def _print_finish(text: Any, score: str = "") -> None:
    to_stderr(f"[{len(text.tokens)} tokens, finish_reason: {text.finish_reason}{score}]")


def _print_stream(pieces: Any, prompt: str) -> None:
    """Print a text while it is generated; a mistake is raised before anything is printed."""
    first = True
    for piece in pieces:
        print(f"{prompt}{piece}" if first else piece, end="", flush=True)
        first = False
    print("" if not first else prompt)
    _print_finish(pieces.answer)


def fill(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[list[str] | None, argument("[TEXT]...", 'Texts such as "the [MASK] of a loom".')] = None,
    top: Annotated[int, flag("Words per gap; T5 gives only the best.")] = 5,
    jsonl: Jsonl = False,
) -> None:
    """Fill the gaps of a text with the likeliest words.

    Example: weft fill runs/bert "the [MASK] of the loom"
    Example: weft fill runs/t5 "The <extra_id_0> of the <extra_id_1> was old."
    """
    model = inputs.load_model(folder, "fill", **runtime)
    for text in inputs.from_input(texts):
        answer: Any = model(text, top=top)
        if jsonl:
            inputs.print_json(answer, input=text)
            continue
        print(answer.text)
        for number, gap in enumerate(answer.gaps, 1):
            print(f"  gap {number}: " + escaped(", ".join(f"{word.word} {word.probability:.3f}" for word in gap)))


def answer(
    folder: Folder,
    runtime: Runtime,
    questions: Annotated[list[str] | None, argument("QUESTION...", "Questions.")] = None,
    context: Annotated[Path | None, flag("File with the text to search, of any length; - is standard input.")] = None,
    top: Annotated[int, flag("Candidate answers to show.")] = 3,
    jsonl: Jsonl = False,
) -> None:
    """Answer questions from a text, or report that it holds no answer.

    Example: weft answer runs/qa --context contract.txt "When does it end?"
    """
    asked = bool(questions) and all(question.strip() for question in questions or ())
    refuse(
        (not asked, "no question: give one or more after the model"),
        (context is None, "no text to search: give --context FILE, or - for standard input"),
        (not 1 <= top <= 20, f"--top must be between 1 and 20, not {top}"),
    )
    assert questions and context is not None
    text = sys.stdin.read() if str(context) == "-" else read_text(context, 256 * MEGABYTE)
    if not text.strip():
        raise UserError(f"{context}: holds no text")
    model = inputs.load_model(folder, "answer", chosen=True, **runtime)
    replies: list[Any] = model([(question, text) for question in questions], top=top)
    for _, reply in inputs.to_print(questions, replies, "question", jsonl):
        line = f"{one_line(reply.text) or '(no answer)'}  {reply.score:.4f}"
        print(escaped(line + (f"  at {reply.start}-{reply.end}" if reply.text else "")))
        for choice in reply.best:
            print(escaped(f"  {choice.score:.4f}  {choice.start}-{choice.end}  {one_line(choice.text)}"))
        windows = f"{reply.n_windows:,} window{'s' * (reply.n_windows > 1)}"
        truncated = "the text was truncated" if reply.truncated else "nothing was truncated"
        to_stderr(f"[{reply.n_tokens:,} tokens in {windows}; {truncated}]")


def embed(
    folder: Folder,
    runtime: Runtime,
    texts: Texts = None,
    per: Annotated[str, flag("What gets a vector.", "[text|token|word]")] = "text",
    pooling: Pooling = None,
    layers: Layers = "last",
    normalize: Annotated[bool | None, flag("Scale vectors to length 1. Default: as the folder says.")] = None,
    out: Annotated[Path | None, flag("Write .npy (texts only), .npz or .jsonl instead of printing JSON lines.")] = None,
) -> None:
    """Turn texts, or each of their tokens or words, into vectors.

    A text of any length is read completely, in windows. Tokens and words are written with the number of their text and
    with the characters where they start and end.

    Example: weft embed all-MiniLM-L6-v2 --out vectors.npy < texts.txt
    Example: weft embed runs/bert "The loom sang." --per word --layers last4-concat --out words.npz
    """
    known = (".npy", ".npz", ".jsonl") if per == "text" else (".npz", ".jsonl")
    if out is not None and out.suffix not in known:
        raise UserError(f"{out}: vectors of a {per} are written as {listed(known)}")
    model = inputs.load_model(folder, "embed", chosen=True, **runtime)
    options: Given = {"pooling": pooling, "layers": layers}
    options |= {} if normalize is None else {"normalize": normalize}
    with progress("embedding", "texts") as tick:
        blocks: Iterator[VectorBlock]
        if per == "text":
            embedder = late.embed.Embedder(model.opened, **options)
            blocks = text_blocks(embedder.chunks(inputs.from_input(texts)), tick)
        else:
            embedder = late.embed.TokenEmbedder(model.opened, per, **options)
            blocks = token_blocks(embedder.texts(inputs.from_input(texts)), tick)
        if out is None:
            for block in blocks:
                for row in block.rows:
                    inputs.print_json(row)
            return
        count, windows = save_vectors(out, blocks, embedder.width, COLUMNS[per])
    to_stderr(f"{out}: {count} vectors of {embedder.width} numbers, {windows} window{'s' * (windows != 1)}")


def rank(
    folder: Folder,
    runtime: Runtime,
    query: Annotated[list[str] | None, flag("A search query; repeatable.")] = None,
    queries: Annotated[Path | None, flag("A file of queries, one per line.")] = None,
    texts: Annotated[list[str] | None, flag("Texts to search: txt, csv, tsv, jsonl, parquet, SQuAD.", "FILE")] = None,
    column: Annotated[str, flag("Text column of a table.", "NAME")] = "text",
    pairs: Annotated[list[str] | None, flag("Evaluate instead: queries with their right texts.", "FILE")] = None,
    query_column: Annotated[str, flag("Query column of --pairs.", "NAME")] = "question",
    text_column: Annotated[str, flag("Text column of --pairs.", "NAME")] = "context",
    top: Annotated[int, flag("Texts per query.")] = 10,
    rerank: Annotated[str | None, flag("A pair model that reorders the best texts.", "MODEL")] = None,
    candidates: Annotated[int, flag("Texts that --rerank reads per query.")] = 50,
    positive: Annotated[str | None, flag("Label of a match in --rerank. Default: its last.", "LABEL")] = None,
    pooling: Pooling = None,
    layers: Layers = "last",
    jsonl: Jsonl = False,
) -> None:
    """Search texts by meaning: the nearest vectors, then the order of a pair model if --rerank is given.

    With --pairs the texts of all rows are searched for each row's query, and the scores measure how high its own text
    is ranked.

    Example: weft rank runs/bert --query "an old loom" --texts corpus/weaver.txt --top 3
    """
    wanted = list(query or [])
    if queries:
        wanted += [text.text for text in late.records.read_texts(queries, format="txt")]
    least, complete = min(top, candidates), bool(wanted and texts)
    both = "--pairs brings its own queries and texts: leave out --query, --queries and --texts"
    refuse(
        (bool(pairs and (wanted or texts)), both),
        (not pairs and not complete, "give --query or --queries, and --texts; or --pairs to evaluate a model"),
        (least < 1, f"--top and --candidates must be 1 or more, not {least}"),
    )
    pool, right = _pool(pairs, query_column, text_column) if pairs else ([], [])
    if not pairs:
        pool = [document.text for document in late.records.read_texts(texts or [], column=column)]
    model = inputs.load_model(folder, "rank", chosen=True, **runtime)
    reranker = None if rerank is None else _reranker(rerank, positive, runtime)
    with progress("embedding", "texts") as tick:
        index = late.embed.Index(model.opened, pool, pooling=pooling, layers=layers, on_progress=tick)
    if pairs:
        _judge(index, right, reranker, candidates, jsonl)
        return
    for batch in by_budget(wanted, lambda query: 1, 64):
        answers = index.ask(batch, top=top, rerank=reranker, candidates=candidates)
        for asked, answer in inputs.to_print(batch, answers, "query", jsonl):
            if len(wanted) > 1:
                print("\n" * (asked is not wanted[0]) + escaped(asked))
            for place, hit in enumerate(answer.hits, 1):
                print(f"{place:>3}  {hit.score:.4f}  {escaped(one_line(hit.text))}")


def _pool(pairs: list[str], query_column: str, text_column: str) -> tuple[list[str], list[tuple[str, int]]]:
    """The different texts of some pairs, and every query with the place of its text."""
    places: dict[str, int] = {}
    right = []
    for record in late.records.read_records(pairs, columns=(query_column, text_column)):
        for column in (query_column, text_column):
            if not isinstance(record.values[column], str) or not record.values[column].strip():
                raise UserError(f"{record.where}: column {column!r} holds no text")
        place = places.setdefault(record.values[text_column], len(places))
        right.append((record.values[query_column], place))
    return list(places), right


def _reranker(folder: str, positive: str | None, runtime: Given) -> Rerank:
    return late.embed.pair_scores(inputs.load_model(folder, "pair", **runtime), positive)


def _judge(index: Index, rights: list[tuple[str, int]], rerank: Rerank | None, candidates: int, jsonl: bool) -> None:
    """How high the right texts come, before and after re-ranking."""
    from weft.metrics.numeric import RankingMetrics

    before, after = RankingMetrics(at=10), RankingMetrics(at=10)
    with progress("searching", "queries") as tick:
        for place, reranked in late.embed.places(index, rights, rerank=rerank, candidates=candidates):
            before.add(place)
            after.add(reranked)
            tick(1)
    stages = {"embedding": before.result(), **({} if rerank is None else {"pair": after.result()})}
    rows = [
        {"stage": stage, "score": name, "value": score.value, "low": score.low, "high": score.high}
        for stage, scores in stages.items()
        for name, score in scores.items()
    ]
    if not jsonl:
        print(f"{len(rights):,} queries, {len(index.texts):,} texts")
    inputs.print_rows(rows, jsonl)


def central(
    folder: Folder,
    runtime: Runtime,
    texts: Texts = None,
    context: Annotated[Path | None, flag("A file that is one text.")] = None,
    top: Annotated[int, flag("Sentences to show.")] = 3,
    pooling: Pooling = None,
    layers: Layers = "last",
    jsonl: Jsonl = False,
) -> None:
    """Show the most central sentences of a text: those most similar to all others, in the order of the text.

    Example: weft central runs/bert --context corpus/weaver.txt --top 3
    """
    if texts and context is not None:
        raise UserError("give texts or --context, not both")
    given = (
        inputs.from_input(texts) if context is None else [read_text(context, 1024 * MEGABYTE)]
    )  # offsets are the file's
    model = inputs.load_model(folder, "central", chosen=True, **runtime)
    for number, text in enumerate(given):
        answer: Any = model(text, top=top, pooling=pooling, layers=layers)
        if jsonl:
            inputs.print_json(answer)
            continue
        if number:
            print()
        for sentence in answer.sentences:
            place = f"{sentence.start}-{sentence.end}"
            print(f"{sentence.score:.4f}  {place:>13}  {escaped(one_line(sentence.text))}")


def next_(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[list[str] | None, argument("[TEXT TEXT]", "Default: lines of standard input with a tab.")] = None,
    jsonl: Jsonl = False,
) -> None:
    """Predict whether the second sentence follows the first, with BERT's next sentence head.

    Example: weft next runs/bert "The loom was old." "It sang all night."
    """
    model: Any = inputs.load_model(folder, "next", **runtime)
    pairs = inputs.pairs_of(texts, "a sentence, then the next one")
    for batch in by_budget(pairs, lambda pair: max(len(pair[0]) + len(pair[1]), 4096), 1 << 20):
        for (first, second), answer in zip(batch, model(batch), strict=True):
            if jsonl:
                inputs.print_json(answer, first=first, second=second)
                continue
            print(f"{answer.probability:.4f}  {'follows' if answer.follows else 'does not follow'}", end="")
            print("  (truncated to fit)" if answer.truncated else "")


def choose(
    folder: Folder,
    runtime: Runtime,
    prompts: Annotated[list[str] | None, argument("PROMPT...", "Prompts, or contexts.")] = None,
    choice: Annotated[list[str] | None, flag("An option; repeatable.")] = None,
    data: Annotated[list[str] | None, flag("Evaluate instead: rows with prompt, options and answer.", "FILE")] = None,
    normalize: Annotated[str, flag("Normalize scores by length, or by --prior.", "[none|token|byte|prior]")] = "none",
    prior: Annotated[str, flag("A prompt without a question.")] = "Answer:",
    between: Annotated[str | None, flag("Between prompt and choice. Default: a space if neither has one.")] = None,
    slide: Annotated[bool, flag("Read the last part of a prompt that is too long.", None, "--slide")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Choose among the options for a prompt.

    A model fine-tuned with --task choose scores each option with its head. A language model scores it by its
    probability as the continuation of the prompt; --normalize, --prior, --between and --slide are for it. With --data
    the share of rows whose answer was chosen is printed, with its interval, beside guessing (chance) and always taking
    the most frequent place (majority).

    Example: weft choose runs/gpt "The weaver" --choice "sang." --choice "loom the." --normalize byte
    Example: weft choose runs/copa --data copa-dev.jsonl
    """
    refuse(
        (bool(data and (prompts or choice)), "--data brings its own prompts and choices: leave the others out"),
        (not data and not prompts, "no prompt: give one after the model, or --data"),
        (not data and not choice, "no choices: give --choice at least twice"),
    )
    inputs.check_models(folder, **runtime)
    inputs.check_data(data)
    options: Given = {"normalize": normalize, "prior": prior, "between": between, "slide": slide}
    if data:
        _evaluate_choices(folder, runtime, data, options, jsonl)
        return
    model, given = inputs.load_model(folder, "choose", **runtime), prompts or []
    answers: list[Any] = model(given, choices=choice, **options)
    for prompt, answer in inputs.to_print(given, answers, "prompt", jsonl):
        if len(given) > 1:
            print("\n" * (answer is not answers[0]) + escaped(prompt))
        rows = [option.cells() | {"chosen": "yes" * (option.number in answer.chosen)} for option in answer.options]
        print(table(list(rows[0]), [list(row.values()) for row in rows]))
        if answer.truncated:
            to_stderr(f"weft: note: {answer.n_tokens} tokens are too many: the prompt was read in part")


def _evaluate_choices(folder: str, runtime: Given, data: list[str], options: Given, jsonl: bool) -> None:
    questions = late.choose.read_questions(data)
    model = inputs.load_model(folder, "choose", **runtime)

    def on_answer(question: Any, answer: Any) -> None:
        tick(1)
        if jsonl:
            prompt, asked, *choices = question.texts
            inputs.print_json(answer, prompt=prompt, question=asked, choices=choices, right=question.target)

    with progress("choosing", "questions") as tick:
        task: Any = model.task_object
        scores = late.choose.evaluate_choices(task, model.opened, questions, on_answer=on_answer, **options)
    with redirect_stdout(sys.stderr if jsonl else sys.stdout):
        inputs.print_scores(scores)
        by = "" if task.head in model.opened.heads else f", normalize: {options['normalize']}"
        print(f"{len(questions):,} questions{by}")


BAR = 8  # characters of a bar that is full
BLOCKS = " ▏▎▍▌▋▊▉█"


def suggest(
    given: Annotated[list[str], argument("MODEL... TEXT", "Model folders, and last the text to continue.")],
    runtime: Runtime,
    top: Annotated[int, flag("Words per model.")] = 10,
    tokens: Annotated[bool, flag("Show tokens of each vocabulary instead of words.", None, "--tokens")] = False,
    complete_word: Annotated[
        bool | None,
        flag(
            "Complete the last word, or take it as it is. Default: complete it unless the model takes it for a whole "
            "word.",
            None,
            "--complete-word/--no-complete-word",
        ),
    ] = None,
    as_json: Annotated[bool, flag("Print one JSON object.", None, "--json")] = False,
) -> None:
    """Show the likeliest next words of a text with their probabilities, one column per model.

    A word is put together from the tokens of a model. A half-typed last word is completed: its tokens are taken back,
    and the words that begin with its letters are shown, with their probabilities given those letters.

    Example: weft suggest runs/* "The weaver"
    Example: weft suggest runs/gpt "The weaver worked at the lo"
    """
    if len(given) < 2:
        raise UserError("give at least one model folder, and last the text: weft suggest MODEL... TEXT")
    *names, text = given
    if len(names) == 1 and inputs.is_model(text):
        raise UserError(f"{text}: is a model folder; the text comes last: weft suggest MODEL... TEXT")
    if len(names) == 1:
        inputs.check_models(names[0], **runtime)
    results, families = _suggestions(names, text, runtime, top=top, tokens=tokens, complete_word=complete_word)
    if as_json:
        models = [
            {"model": name, "family": families.get(name)}
            | ({"error": str(result)} if isinstance(result, UserError) else asdict(result))
            for name, result in results.items()
        ]
        inputs.print_json({"text": text, "tokens": tokens, "models": models})
        return
    completed = any(not isinstance(result, UserError) and result.completes for result in results.values())
    what = "next tokens after" if tokens else "words that complete" if completed else "next words after"
    print(f"{what}: {escaped(text)}")
    print(_columns(results, tokens))
    for name, result in results.items():
        if not isinstance(result, UserError) and result.truncated:
            to_stderr(f"weft: note: {name} read only the end of the text")


def _suggestions(
    names: list[str], text: str, runtime: Given, **options: Any
) -> tuple[dict[str, Suggestions | UserError], dict[str, str]]:
    """The suggestions of every language model, or its error, and the families; runs/* names all kinds of things."""
    results: dict[str, Suggestions | UserError] = {}
    families, others, mute = dict[str, str](), list[str](), list[str]()
    for name in names:
        if len(names) > 1 and Path(name).exists() and not (Path(name) / "config.json").is_file():
            others.append(name)
            continue
        try:
            model = inputs.load_model(name, **runtime)
            family = model.opened.family
            predicts = family.generates and not family.reads and "words" in model.opened.heads
            if not predicts and len(names) > 1:
                mute.append(name)
            else:
                families[name] = family.name
                results[name] = weft.suggest(model, text, **options)
        except UserError as error:  # it is shown in the column of its model; the others go on
            if len(names) == 1:
                raise
            results[name] = error
    if not results:
        raise UserError(f"{listed([*others, *mute])}: none of these is a model that predicts the next word")
    shown = {name: result for name, result in results.items() if not isinstance(result, UserError)}
    if len({bool(result.completes) for result in shown.values()}) > 1:  # one of them takes the last word for whole
        for name, result in shown.items():
            if result.completes:
                again = {**options, "complete_word": False}
                results[name] = weft.suggest(inputs.load_model(name, **runtime), text, **again)
    for what, left_out in (("no model folder", others), ("does not predict the next word", mute)):
        if left_out:
            to_stderr(f"weft: note: left out: {listed(left_out)} ({what})")
    return results, families


def _columns(results: dict[str, Suggestions | UserError], tokens: bool) -> str:
    """Models beside each other, as many as the terminal has room for, the others below them."""
    blocks, width = list[list[str]](), shutil.get_terminal_size().columns
    parents = {os.path.dirname(os.path.normpath(name)) for name in results}
    short = len(results) > 1 and len(parents) == 1  # runs/*: their common folder is left out
    for name, result in results.items():
        title = os.path.basename(os.path.normpath(name)) if short else name
        if isinstance(result, UserError):
            blocks.append([title, *textwrap.wrap(str(result), 30)])
            continue
        words = list[str]()
        for word in result.words:
            label = escaped(word.text) or "(end of the text)"
            label = label if len(label) <= 24 else f"{label[:23]}…"
            words.append(repr(word.text)[:24] if tokens else label)
        block, longest = [title], max(map(len, words), default=0)
        for label, word in zip(words, result.words, strict=True):
            eighths = round(word.probability * BAR * 8)
            bar = (BLOCKS[8] * (eighths // 8) + BLOCKS[eighths % 8]).strip()
            block.append(f"{label.ljust(longest)} {100 * word.probability:6.2f} % {bar}")
        blocks.append(block)
    together, lines_of = list[list[str]](), list[str]()
    for block in blocks:
        used = sum(max(map(len, other)) + 3 for other in together)
        if together and used + max(map(len, block)) > width:
            lines_of.append(_beside(together))
            together = []
        together.append(block)
    return "\n\n".join([*lines_of, _beside(together)])


def _beside(blocks: list[list[str]]) -> str:
    widths = [max(map(len, block)) for block in blocks]
    rows = zip_longest(*blocks, fillvalue="")
    return "\n".join("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

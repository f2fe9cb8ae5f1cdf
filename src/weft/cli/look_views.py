"""`weft look positions`, `map`, `words` and the other maps and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from weft.cli import inputs, late
from weft.cli.look import Out, written
from weft.cli.options import GENERATION, Flags, Folder, Given, LabeledRows, Placing, Runtime, argument, flag
from weft.errors import UserError, refuse
from weft.progress import live, to_stderr

Generating = Annotated[Given, Flags(GENERATION, without=("alignments", "logprobs", "complete_word"))]


def shown_rows(view: Any) -> None:
    """Print the tables of a view, for those who look at a terminal."""
    for panel in view.panels:
        header, rows = vars(panel).get("header"), vars(panel).get("rows")
        if header and rows:
            print(
                inputs.table(
                    [name or " " for name in header], [[inputs.one_line(cell) for cell in row] for row in rows]
                )
            )


def positions(
    runtime: Placing,
    folder: Annotated[str | None, argument("[MODEL]", "A model folder. Default: positions of --kind.")] = None,
    kind: Annotated[
        str, flag("Without a model.", "[sinusoidal|sinusoidal-halves|rotary|alibi|buckets]")
    ] = "sinusoidal",
    width: Annotated[int, flag("Dimensions; for rotary positions those of one head.")] = 128,
    length: Annotated[int | None, flag("Positions to show. Default: 128.")] = None,
    heads: Annotated[int, flag("Heads, for ALiBi.")] = 8,
    out: Out = None,
) -> None:
    """Show positional encodings: a heat map, and dot products by distance.

    Of a model: its learned, sinusoidal, rotary or relative positions, or its ALiBi or T5 biases.

    Example: weft look positions --kind sinusoidal --width 128
    Example: weft look positions runs/bert --out positions.png
    """
    model = None if folder is None else inputs.load_model(folder, **runtime)
    view = late.positions.positions_view(model, kind=kind, width=width, length=length, heads=heads)
    written(view.save(out or Path("positions.html")))


def map_(
    vectors: Annotated[str, argument("VECTORS", "Word vectors, as a folder or a file, or any model folder.")],
    words: Annotated[
        Path | None, flag("Words to show, one per line; a tab and a name put a word into a group.")
    ] = None,
    method: Annotated[list[str] | None, flag("pca, tsne or umap; repeatable. Default: pca.", "METHOD")] = None,
    analogy: Annotated[list[str] | None, flag('Draw "king man woman": king - man + woman; repeatable.')] = None,
    top: Annotated[int, flag("Most frequent words to show, without --words.")] = 300,
    seed: Annotated[int, flag("Seed of t-SNE and UMAP.")] = 0,
    out: Out = None,
) -> None:
    """Show words in the plane by their vectors, with search, nearest words and lines of analogies.

    A model that is no word2vec or GloVe shows its token embeddings.

    Example: weft look map runs/w2v --words animals.txt --method tsne
    Example: weft look map glove.txt --analogy "king man woman" --out map.svg
    """
    if words is not None:
        inputs.check_data([str(words)])
    view = late.word_map.word_map_view(
        vectors,
        None if words is None else late.word_map.read_word_list(words),
        methods=method or ["pca"],
        analogies=analogy or [],
        top=top,
        seed=seed,
    )
    shown_rows(view)
    written(view.save(out or Path("map.html")))


def words(
    folder: Folder,
    runtime: Runtime,
    word: Annotated[str, argument("[WORD]", "The word. Default: bank.")] = "bank",
    texts: Annotated[
        Path | None, flag("Sentences, one per line; a tab and a name give the sense. Default: 40 about banks.")
    ] = None,
    labels: Annotated[str | None, flag("Column of the senses, where --texts is a table.", "COLUMN")] = None,
    column: Annotated[str, flag("Column of the sentences, where --texts is a table.", "COLUMN")] = "text",
    layer: Annotated[str, flag("Layer to show first: a number (0: embeddings), or all for the best.", "N|all")] = "all",
    out: Out = None,
) -> None:
    """Show one word in many contexts: its vectors by layer, as clouds, beside its one static vector.

    With senses, prints by layer how far apart they are: the silhouette, and the accuracy of the nearest centroid.
    Without, the occurrences are clustered.

    Example: weft look words runs/bert bank --texts sentences.txt
    """
    refuse(
        (texts is None and word.casefold() != "bank", f"no texts with {word!r}: give --texts FILE"),
        (labels is not None and texts is None, "--labels is a column of --texts FILE"),
        (not layer.lstrip("-").isdecimal() and layer != "all", f"--layer {layer!r} is neither a number nor all"),
    )
    if texts is not None:
        inputs.check_data([str(texts)])
    model = inputs.load_model(folder, "embed", **runtime)
    sentences, senses = late.contexts.read_sentences(texts, column, labels)
    view = late.contexts.words_view(model, word, sentences, senses, layer=None if layer == "all" else int(layer))
    shown_rows(view)
    written(view.save(out or Path("words.html")))


def probe(
    folder: Folder,
    runtime: Runtime,
    data: LabeledRows,
    task: Annotated[str | None, flag("Default: tag for CoNLL files, else classify.", "[tag|classify]")] = None,
    dev: Annotated[list[str] | None, flag("Examples to evaluate on. Default: a fifth of --data.", "FILE")] = None,
    rows: Annotated[int, flag("Examples to learn from, at most.")] = 1000,
    seed: Annotated[int, flag("Seed of the split.")] = 0,
    out: Out = None,
) -> None:
    """Probe every layer: how well a linear map of its frozen vectors knows tags or labels.

    Prints accuracy with 95 % intervals for the embeddings and each layer, beside the most frequent label.

    Example: weft look probe runs/bert --data tags.conll
    Example: weft look probe runs/bert --data reviews.csv --task classify --out probe.svg
    """
    files = list(data.get("files", ()))
    reading = {name: value for name, value in data.items() if name not in ("files", "source", "target")}
    refuse(
        (not files, "no data: give --data FILE"), ("source" in data or "target" in data, "a probe reads --data FILE")
    )
    inputs.check_rows(data, files, dev)
    model = inputs.load_model(folder, "embed", **runtime)
    options: dict[str, Any] = {"task": task, "dev": dev or (), "rows": rows, "seed": seed, "progress": live, **reading}
    view = late.probe.probe_view(model, files, **options)
    shown_rows(view)
    written(view.save(out or Path("probe.html")))


def gradients(
    folders: Annotated[list[str], argument("MODEL...", "Model folders, such as an RNN, a GRU and an LSTM.")],
    runtime: Placing,
    text: Annotated[str | None, flag("The text whose last token is predicted. Default: a sentence.")] = None,
    of: Annotated[
        str | None, flag("Gradient of what; default: state where all models are recurrent.", "[state|input]")
    ] = None,
    layer: Annotated[int | None, flag("Recurrent layer, from 0. Default: the last.")] = None,
    out: Out = None,
) -> None:
    """Show how far a gradient reaches back: its norm by time step, of several models side by side.

    Example: weft look gradients runs/rnn runs/lstm runs/gru --text "A long sentence to the last word"
    """
    models = [inputs.load_model(folder, **runtime) for folder in folders]
    sentence = late.gradients.SAMPLE if text is None else text
    view = late.gradients.gradients_view(models, sentence, of=of, layer=layer)
    shown_rows(view)
    written(view.save(out or Path("gradients.html")))


def generation(
    folder: Folder,
    runtime: Runtime,
    given: Generating,
    prompt: Annotated[str, argument("PROMPT", "The text to continue; of an encoder-decoder, its source.")],
    out: Out = None,
) -> None:
    """Show how a text is generated: the tree of a beam search with what it prunes, or the alternatives to each token.

    The options are those of weft generate, and the text is the same. Default: 12 new tokens, greedy.

    Example: weft look generation runs/gpt "The weaver" --beam-size 4 --max-tokens 12
    """
    model = inputs.load_model(folder, **runtime)
    view = late.beam_tree.generation_view(model, prompt, **given)
    to_stderr(view.intro)
    written(view.save(out or Path("generation.html")))


def next_(
    folders: Annotated[list[str], argument("MODEL...", "Model folders, or the folder of a ladder.")],
    text: Annotated[str, flag("The text whose next word is predicted.")] = "The",
    top: Annotated[int, flag("Words of each model to show.")] = 10,
    out: Out = None,
) -> None:
    """Show the next-word probabilities of several models side by side: n-gram, MLP, RNN, LSTM, GPT.

    Example: weft look next runs/ladder --text "The king"
    """
    view = late.next_words.next_words_view(folders, text, top=top, progress=live)
    written(view.save(out or Path("next.html")))


def tokens(
    text: Annotated[str, argument("TEXT", "Any text.")],
    tokenizer: Annotated[list[Path] | None, flag("A tokenizer or model folder; repeatable.", "FOLDER")] = None,
    learn: Annotated[
        list[str] | None, flag("Learn vocabularies from these files, without --tokenizer.", "FILE", "--text")
    ] = None,
    size: Annotated[int, flag("Tokens of a vocabulary that is learned.")] = 400,
    out: Out = None,
) -> None:
    """Show the tokens of a text by several tokenizers beside each other, with offsets.

    Without --tokenizer: WordPiece, BPE, Unigram and characters, learned on the spot.

    Example: weft look tokens "Unbelievable weavers!" --text corpus.txt --size 2000
    Example: weft look tokens "Unbelievable weavers!" --tokenizer runs/bert --tokenizer runs/gpt
    """
    folders: Sequence[Path] = tokenizer or []
    refuse((bool(folders) and learn is not None, "--text is for vocabularies that are learned: leave out --tokenizer"))
    for folder in folders:
        if not folder.exists():
            raise UserError(f"{str(folder)!r} is neither a tokenizer folder nor a file of one")
    inputs.check_data(learn)
    texts = None if learn is None else (document.text for document in late.records.read_texts(learn))
    view = late.tokenizer_view.tokens_view(text, folders, texts=texts, size=size)
    shown_rows(view)
    written(view.save(out or Path("tokens.html")))

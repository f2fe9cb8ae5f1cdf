"""`weft look`: a model's attention, its steps with real numbers, and the model itself as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from weft.cli import inputs, late
from weft.cli.options import Folder, Runtime, argument, flag
from weft.errors import refuse
from weft.progress import live as live_count
from weft.progress import to_stderr

Out = Annotated[Path | None, flag("File to write: .html, .json, and .png or .svg for plots.", "FILE")]


def attention(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[list[str] | None, argument("[TEXT] [TEXT]", "A text, or the two texts of a pair.")] = None,
    out: Out = None,
    walk: Annotated[
        bool, flag("Show one attention head step by step, with this model's numbers.", None, "--walk")
    ] = False,
    layer: Annotated[int | None, flag("Layer to begin with, from 0.")] = None,
    head: Annotated[int | None, flag("Head to begin with, from 0.")] = None,
    window: Annotated[int, flag("Window of a text that is longer than the model's context, from 1.")] = 1,
    target: Annotated[
        str | None, flag("What an encoder-decoder's decoder reads; default: the model's own output.", "TEXT")
    ] = None,
    temperature: Annotated[
        float | None, flag("With --walk: sampling temperature of the next token. Default: the likeliest token.")
    ] = None,
    top_k: Annotated[int | None, flag("With --walk: how many of the likeliest tokens to show. Default: 10.")] = None,
    seed: Annotated[int | None, flag("With --walk: seed of the token that is drawn. Default: 0.")] = None,
    live: Annotated[
        Path | None, flag("Write the model itself as one HTML file that runs in a browser.", "FILE")
    ] = None,
    weights: Annotated[
        str | None, flag("Precision of a live page: int8 or fp16. Default: fp16 for small models, else int8.", "TYPE")
    ] = None,
) -> None:
    """Show the attention of a model for a text: heads, layers, tokens.

    A first word that is no view's name is a model folder; ./map opens a folder of that name.

    Example: weft look attention runs/bert "A text" --layer 1 --head 3 --out look.png
    Example: weft look runs/bert "The animal didn't cross the street because it was too tired" --out look.html
    Example: weft look runs/gpt "Thinking Machines" --walk --layer 0 --head 3
    Example: weft look runs/gpt --live model.html
    """
    refuse(
        (live is not None and walk, "--live holds every walk: leave out --walk"),
        (live is not None and out is not None, "--live FILE is the file to write: leave out --out"),
        (live is not None and target is not None, "--target is for encoder-decoders, which have no live page"),
        (live is None and not texts, "give a text to look at"),
        (len(texts or ()) > 2, f"give one text or the two of a pair, not {len(texts or ())}"),
        (live is None and weights is not None, "--weights is for --live FILE"),
        (walk and len(texts or ()) > 1, "--walk shows one text"),
        (walk and window != 1, "--walk shows a text that fits into one window: leave out --window"),
        *(
            (not walk and value is not None, f"--{name} is for --walk")
            for name, value in (("temperature", temperature), ("top-k", top_k), ("seed", seed))
        ),
    )
    model = inputs.load_model(folder, **runtime)
    if live is not None:
        to_stderr(str(late.live.write_live(model, live, weights, texts=texts or ())))
        return
    if walk:
        steps = late.walk.attention_walk(
            model,
            (texts or [""])[0],
            layer or 0,
            head or 0,
            target=target,
            temperature=temperature,
            top_k=10 if top_k is None else top_k,
            seed=seed or 0,
        )
        written(steps.view().save(out or Path("walk.html")))
        return
    pair, path = [*(texts or ()), None], out or Path("look.html")
    view = late.attention.attention_view(
        model, str(pair[0]), pair[1], target=target, layer=layer or 0, head=head or 0, window=window
    )
    written(view.save(path))


def attribution(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[list[str] | None, argument("TEXT [TEXT]", "A text, or the two texts of a pair.")] = None,
    method: Annotated[
        str | None,
        flag(
            "Comma-separated: integrated-gradients, leave-one-out, gradient, attention, rollout, attention-gradients; "
            "or all. Default: the first two.",
            "NAMES",
        ),
    ] = None,
    target: Annotated[
        str | None,
        flag(
            "Label, word/TAG, answer or next word whose logit is explained. Default: what the model predicts.", "TEXT"
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        flag(
            "What replaces a word: mask, unknown, padding, zero, or remove for leave-one-out. "
            "Default: mask where the model reads one, else zero.",
            "NAME",
        ),
    ] = None,
    top: Annotated[int, flag("Words of each method to print.")] = 8,
    out: Out = None,
) -> None:
    """Show which words of a text mattered for a model's prediction.

    Integrated gradients add up to the logit less that of a baseline without the words. Leave-one-out replaces one word
    at a time. Works for classifiers, taggers, extractive question answering, masked and next words.

    Example: weft look attribution runs/reviews "A wonderful film with a dull ending" --out attribution.html
    Example: weft look attribution runs/reviews "A wonderful film" --method all --target negative
    Example: weft look attribution runs/tagger "Ada Lovelace lived in London" --target London/B-LOC
    Example: weft look attribution runs/qa "Who wove it?" "Anna wove the red cloth." --out attribution.png
    """
    refuse(
        (not texts, "give a text to explain"),
        (len(texts or ()) > 2, f"give one text or the two of a pair, not {len(texts or ())}"),
        (top < 0, f"--top must be at least 0, not {top}"),
    )
    model = inputs.load_model(folder, **runtime)
    text = texts[0] if len(texts or ()) == 1 else tuple(texts or ())  # type: ignore[index]
    results = late.attribution.attributions_of(model, text, method, target, baseline, progress=live_count)
    print(late.attribution_view.summary(results, top))
    written(late.attribution_view.attribution_view(results, Path(folder).name).save(out or Path("attribution.html")))


def walk(
    runtime: Runtime,
    name: Annotated[str, argument("NAME", "The walk; see the list above.")],
    given: Annotated[
        list[str] | None, argument("[MODEL]... [TEXT]...", "Model folders, then texts, as the walk takes them.")
    ] = None,
    out: Out = None,
    target: Annotated[str | None, flag("Of teacher-forcing: what an encoder-decoder should write.", "TEXT")] = None,
    t_min: Annotated[int | None, flag("Of bptt: first output that the loss counts, from 0.")] = None,
    t_max: Annotated[int | None, flag("Of bptt: last output that the loss counts.")] = None,
    seed: Annotated[int | None, flag("Of mlm: seed of the tokens that are chosen. Default: 0.")] = None,
) -> None:
    """Show an idea step by step, with real numbers; where no model is given, with a tiny one made on the spot.

    \b
    softmax          two worked examples of attention weights, as in the textbook
    one-hot          an embedding as the row that a one-hot vector picks
    seq2seq          an encoder-decoder that writes token by token
    grids            target and trained output of a six-word vocabulary
    rnn              one step of an RNN, an LSTM and a GRU
    bptt             back-propagation through time, term by term
    it               where 'it' looks in two sentences that differ in a word
    mlm              masked words: 80, 10, 10
    nsp              next sentence prediction, for two texts
    teacher-forcing  teacher forcing against generation
    ngram            counts of a text file, and how sparse they are

    One attention head of a model is `weft look MODEL TEXT --walk`.

    Example: weft look walk softmax
    Example: weft look walk it runs/bert --out it.html
    Example: weft look walk rnn runs/rnn runs/lstm runs/gru "the cat sat on the mat"
    Example: weft look walk bptt --t-min 2 --t-max 5
    Example: weft look walk ngram book.txt
    """
    named, words = late.walks_list.find_walk(name), list(given or ())
    folders = late.walks_list.model_count(named, words)
    models = [inputs.load_model(folder, **runtime) for folder in words[:folders]]
    options = {"target": target, "t_min": t_min, "t_max": t_max, "seed": seed}
    view = late.walks_list.walk_view(name, models, words[folders:], **options)
    written(view.save(out or Path("walk.html")))


def lens(
    folder: Folder,
    runtime: Runtime,
    text: Annotated[str, argument("TEXT", "The text that the model reads.")],
    top: Annotated[int, flag("Likeliest words of each layer to show.")] = 5,
    window: Annotated[int, flag("Window of a text that is longer than the model's context, from 1.")] = 1,
    target: Annotated[
        str | None, flag("What an encoder-decoder's decoder reads; default: the model's own output.", "TEXT")
    ] = None,
    out: Out = None,
) -> None:
    """Show which words each layer would predict if it were the last (logit lens).

    Works for models with a word head: language models, masked language models and Transformer encoder-decoders.

    Example: weft look lens runs/gpt "The animal didn't cross the" --top 5 --out lens.html
    Example: weft look lens runs/bert "The [MASK] crossed the street" --out lens.png
    """
    model = inputs.load_model(folder, **runtime)
    written(late.lens.lens_view(model, text, top=top, window=window, target=target).save(out or Path("lens.html")))


def written(path: Path) -> None:
    """Say which file was written."""
    to_stderr(f"wrote {path}")

"""Views of a model for /v1/look: what `weft look` shows, as JSON, for texts of limited length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.errors import UserError, shown
from weft.picture.page import finite
from weft.serve.messages import OF_PAIRS, VIEW_OPTIONS, VIEWS
from weft.serve.plans import Fault
from weft.tasks.light import LightModel

CHARACTERS = {
    **{"attention": 4000, "attribution": 2000, "walk": 500, "lens": 2000},
    **{"tokens": 20_000, "next": 4000, "windows": 200_000},
}


def views_of(model: Any) -> list[str]:
    """The views that a model has; a view of a certain text can still fail."""
    opened, names = model.opened, list[str]()
    if opened.tokenizer is None:
        return names
    if not isinstance(model, LightModel) and not opened.exported:
        from weft.explain.attention import check_attention
        from weft.explain.lens import check_lens
        from weft.explain.scoring import check_embeddings
        from weft.explain.text_windows import has_window_scores

        checks: dict[str, Callable[[], None]] = {
            "attention": lambda: check_attention(opened),
            "attribution": lambda: check_embeddings(opened),
            "lens": lambda: check_lens(model),
        }
        for name, check in checks.items():
            try:
                check()
            except UserError:
                continue
            names += ["attention", "walk"] if name == "attention" else [name]
        if has_window_scores(model):
            names.append("windows")
        if opened.family.generates and not opened.family.reads and "words" in opened.heads:
            names.append("next")
    return [name for name in VIEWS if name in (*names, "tokens")]


def view_of(model: Any, name: str, inputs: list[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A view of one text, or of the two of a pair, as JSON values."""
    texts = checked_texts(name, inputs)
    options = checked_options(name, given)
    if name != "tokens" and (isinstance(model, LightModel) or model.opened.exported):
        raise Fault(422, "this model was exported for another engine, which shows nothing of its inside", "view")
    return SHOWING[name](model, texts, options)


def checked_texts(name: str, inputs: list[Any]) -> list[str]:
    if not 1 <= len(inputs) <= 2 or not all(isinstance(text, str) for text in inputs):
        raise Fault(422, "a text is expected, or the two texts of a pair", "input")
    if len(inputs) == 2 and name not in OF_PAIRS:
        raise Fault(422, f"the view {name} is of one text", "input")
    if sum(map(len, inputs)) > CHARACTERS[name]:
        raise Fault(
            413, f"a text of more than {CHARACTERS[name]:,} characters is too long for the view {name}", "input"
        )
    return inputs


def checked_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = VIEW_OPTIONS[name]
    for option, value in given.items():
        if option not in known:
            raise Fault(422, f"{shown(str(option))} is no option of the view {name}", shown(str(option)))
        if not isinstance(value, known[option]) or isinstance(value, bool):
            raise Fault(422, f"{option} is {shown(repr(value))}", option)
    return dict(given)


def as_json(view: Any) -> dict[str, Any]:
    """A view of `weft.explain` as JSON: its panels, each with the data that a component of the page draws."""
    panels = []
    for panel in view.panels:
        about = vars(panel)
        kind = about.get("component") or type(panel).__name__
        data = (
            about["content"] if "content" in about else panel.data()
        )  # arrays stay packed: lists are 10 times as long
        panels.append({"kind": kind, "title": panel.heading, "note": panel.note, "data": finite(data)})
    return {"object": "view", "title": view.title, "intro": view.intro, "panels": panels}


def _tokens(model: Any, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from weft.explain.tokenizer_view import tokens_view

    return as_json(tokens_view(texts[0], [model.opened.tokenizer]))


def _attention(model: Any, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from weft.explain.attention import attention_view

    return as_json(attention_view(model, texts[0], texts[1] if len(texts) > 1 else None, **options))


def _attribution(model: Any, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from weft.explain.attribution import attributions_of
    from weft.explain.attribution_view import attribution_view

    given = texts[0] if len(texts) == 1 else tuple(texts)
    methods, target, baseline = (options.get(name) for name in ("method", "target", "baseline"))
    return as_json(attribution_view(attributions_of(model, given, methods, target, baseline), model.opened.folder.name))


def _walk(model: Any, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from weft.explain.walk import attention_walk

    layer, head = options.get("layer", 0), options.get("head", 0)
    rest = {name: value for name, value in options.items() if name not in ("layer", "head")}
    return as_json(attention_walk(model, texts[0], layer, head, **rest).view())


def _lens(model: Any, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from weft.explain.lens import lens_view

    return as_json(lens_view(model, texts[0], **options))


def _next(model: Any, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from weft.explain.next_words import next_words_view

    return as_json(next_words_view([model], texts[0], **options))


def _windows(model: Any, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from weft.explain.text_windows import windows_view

    return as_json(windows_view(model, texts[0]))


SHOWING: dict[str, Callable[[Any, list[str], Mapping[str, Any]], dict[str, Any]]] = {
    "attention": _attention,
    "attribution": _attribution,
    "walk": _walk,
    "lens": _lens,
    "tokens": _tokens,
    "next": _next,
    "windows": _windows,
}

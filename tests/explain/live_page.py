"""A page in which tests call the functions of live pages: no model is inside, each call brings its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.explain.live_tokenizer import tokenizer_data
from weft.picture.page import EXPORT, IMPORT, modules_of, source
from weft.text.tokenizers.tokenizer import Tokenizer

NAMES = (
    "LiveTokenizer", "LiveSession", "LiveModel", "liveKernel", "liveLinear", "liveProduct", "liveSoftmax", "liveWalk",
    "walkOpened", "walkMade",
)  # fmt: skip
PART = 500  # lines that are sent to the page at once

ENCODE = """lines => lines.map(line => {
    const { ids, offsets } = globalThis.tokenizer.encode(line);
    return [ids, offsets, globalThis.tokenizer.decode(ids)];
})"""


def harness(path: Path) -> Path:
    """Write the page; its functions are global."""
    joined = "\n".join(EXPORT.sub("", IMPORT.sub("", source(f"{name}.js"))) for name in modules_of(["live"]))
    shared = f"Object.assign(globalThis, {{ {', '.join(NAMES)} }});"
    path.write_text(
        f"<!DOCTYPE html><meta charset='utf-8'><body><script type='module'>{joined}\n{shared}</script>",
        encoding="utf-8",
    )
    return path


def set_tokenizer(page: Any, tokenizer: Tokenizer) -> None:
    data = json.dumps(tokenizer_data(tokenizer))
    page.evaluate("data => { globalThis.tokenizer = new LiveTokenizer(JSON.parse(data)); }", data)


def differences(page: Any, tokenizer: Tokenizer, lines: Sequence[str]) -> list[str]:
    """The lines whose tokens, places or decoded text differ between the browser and Python, with what differs."""
    set_tokenizer(page, tokenizer)
    wrong = []
    for start in range(0, len(lines), PART):
        some = list(lines[start : start + PART])
        for line, (ids, offsets, text) in zip(some, page.evaluate(ENCODE, some), strict=True):
            own = tokenizer.encode(line, specials=False)
            if ids != own.ids:
                n = next((n for n, (a, b) in enumerate(zip(ids, own.ids, strict=False)) if a != b), len(own.ids))
                names = [tokenizer.token(number) for number in ids[n : n + 4]]
                wrong.append(f"{line!r}: token {n} is {own.tokens[n : n + 4]} in Python, {names} in the browser")
            elif [tuple(span) for span in offsets] != [tuple(span) for span in own.offsets]:
                n = next(n for n, (a, b) in enumerate(zip(offsets, own.offsets, strict=True)) if tuple(a) != tuple(b))
                wrong.append(f"{line!r}: token {own.tokens[n]!r} is at {own.offsets[n]}, {offsets[n]} in the browser")
            elif text != tokenizer.decode(own.ids):
                wrong.append(f"{line!r}: decoded as {text!r}, not {tokenizer.decode(own.ids)!r}")
    return wrong


# The walk of every layer's last head: how far its numbers are from those that they were made from, and dangling ids.
WALK = """([text, second]) => {
    const { session } = globalThis;
    const answer = session.answer(text, second);
    const names = answer.ids.map(String);
    const layers = session.model.spec.layers?.length ?? session.model.spec.layerCount;
    let [worst, where, checked, dangling] = [0, "", 0, []];
    for (let layer = 0; layer < layers; layer++) {
        const head = (session.model.spec.layers?.[layer].heads ?? 1) - 1;
        const walk = liveWalk(session, answer, names, { layer, head, place: null, temperature: 0.7, topK: 5 });
        const all = walkOpened(walk.matrices);
        for (const step of walk.steps) for (const id of step.matrices) if (id.length > 1 && !all[id]) dangling.push(id);
        for (const matrix of Object.values(all)) {
            if (!matrix.made_from) continue;
            for (let i = 0; i < matrix.height; i++) for (let j = 0; j < matrix.width; j++) {
                const made = walkMade(all, matrix, i, j);
                const value = matrix.data[i * matrix.width + j];
                if (!made || Number.isNaN(made.value) || (value === -Infinity && made.value === value)) continue;
                checked += 1;
                const off = Math.abs(made.value - value) / Math.max(1, matrix.most);
                const cell = `layer ${layer}: ${matrix.id}[${i}, ${j}] ${value} ${made.value}`;
                if (!(off <= worst)) [worst, where] = [off, cell];
            }
        }
    }
    return { worst, where, checked, dangling };
}"""

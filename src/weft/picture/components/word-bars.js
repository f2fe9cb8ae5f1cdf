import { el, hideTooltip, tooltip } from "./base.js";

// The same words by several models: data has `words`, `models` and `values` (words x models, null: not known). With
// `choose` the words are buttons that call it.
export function wordBars(root, data, choose) {
  root.classList.add("word-bars");
  const largest = Math.max(1e-9, ...data.values.flat().map((value) => value ?? 0));
  const best = data.models.map((_, model) => data.values.reduce((top, row, word) => ((row[model] ?? -1) > (data.values[top][model] ?? -1) ? word : top), 0));
  const percent = (value) => (value === null ? "–" : value >= 0.0995 ? `${(100 * value).toFixed(0)} %` : value >= 0.0005 ? `${(100 * value).toFixed(1)} %` : "<0.1 %");
  let query = "";
  let order = null; // the model whose probabilities order the words; null: the mean of all
  const body = el("tbody", {});
  const search = el("input", { type: "search", placeholder: "Search", "aria-label": "Search for a word", on: { input: () => { query = search.value.trim().toLowerCase(); draw(); } } });
  const heads = data.models.map((name, model) => el("button", { type: "button", text: name, title: `Order by ${name}`, "aria-pressed": "false", on: { click: () => { order = order === model ? null : model; draw(); } } }));

  function cell(word, model) {
    const value = data.values[word][model];
    const show = (event) => tooltip(event, `${data.models[model]}\n“${data.words[word]}” ${value === null ? "is not among its likeliest words" : `${(100 * value).toPrecision(3)} %`}`);
    return el("td", { class: best[model] === word ? "best" : "", on: { pointermove: show, pointerleave: hideTooltip } },
      el("div", { class: "cell" }, el("span", {}, value !== null && el("div", { class: "fill-bar", style: { width: `${(100 * value) / largest}%` } })), el("span", { text: percent(value) })));
  }

  function named(word) {
    return choose ? el("button", { type: "button", text: word, on: { click: () => choose(word) } }) : word;
  }

  function draw() {
    heads.forEach((head, model) => head.setAttribute("aria-pressed", String(model === order)));
    const numbers = data.words.map((_, word) => word);
    if (order !== null) numbers.sort((a, b) => (data.values[b][order] ?? -1) - (data.values[a][order] ?? -1));
    body.replaceChildren(...numbers.map((word) => el("tr", { class: query && !data.words[word].toLowerCase().includes(query) ? "dimmed" : "" },
      el("th", { class: "word", scope: "row" }, named(data.words[word])), data.models.map((_, model) => cell(word, model)))));
  }

  const head = el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "word", text: "next word" }), heads.map((button) => el("th", { scope: "col" }, button))));
  const hint = el("p", { class: "note", text: "Press a model's name to order the words by it. Orange: its likeliest word." });
  root.replaceChildren(el("div", { class: "controls" }, search), el("div", { class: "scroll", tabindex: 0 }, el("table", {}, head, body)), hint);
  draw();
}

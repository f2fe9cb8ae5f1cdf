import { el, hideTooltip, inkOn, keys, onTheme, sequential, tooltip } from "./base.js";

// What each layer would predict: data has `tokens`, `follows` (the word after a token, or the one at its place), `chosen`
// (the token to begin with) and `rows`, the highest layer first, each with a `label` and `cells`: for every token its
// likeliest [word, probability].
export function lens(root, data) {
  const shade = (probability) => sequential(0.8 * Math.sqrt(probability));
  const percent = (value) => (value >= 0.0995 ? `${(100 * value).toFixed(0)} %` : value >= 0.0005 ? `${(100 * value).toFixed(1)} %` : "<0.1 %");
  const where = (column) => `${data.follows ? "after" : "at"} “${data.tokens[column]}” (place ${column})`;
  const final = data.rows[0].cells.map((cell) => cell[0][0]);
  let chosen = [0, data.chosen];
  root.classList.add("lens");

  const text = (row, column) => `${data.rows[row].label}, ${where(column)}\n${data.rows[row].cells[column].map(([word, p]) => `${word}  ${percent(p)}`).join("\n")}`;
  const boxes = data.rows.map((row, down) => row.cells.map((cell, across) => {
    const [word, probability] = cell[0];
    return el("td", {
      class: down > 0 && word === final[across] ? "same" : "",
      tabindex: -1,
      "aria-label": `${row.label}, ${where(across)}: ${word}, ${percent(probability)}`,
      on: {
        pointermove: (event) => tooltip(event, text(down, across)),
        pointerleave: hideTooltip,
        click: () => choose(down, across, true),
      },
    }, el("span", { class: "word", text: word }), el("span", { class: "share", text: percent(probability) }));
  }));

  function paint() {
    data.rows.forEach((row, down) => row.cells.forEach((cell, across) => {
      const color = shade(cell[0][1]);
      Object.assign(boxes[down][across].style, { background: color, color: inkOn(color) });
    }));
  }

  const detail = el("div", { class: "lens-detail", "aria-live": "polite" });
  function choose(down, across, focus) {
    const keep = (value, count) => Math.min(count - 1, Math.max(0, value));
    const before = boxes[chosen[0]][chosen[1]];
    before.tabIndex = -1;
    before.removeAttribute("aria-current");
    chosen = [keep(down, data.rows.length), keep(across, data.tokens.length)];
    const box = boxes[chosen[0]][chosen[1]];
    box.tabIndex = 0;
    box.setAttribute("aria-current", "true");
    if (focus) box.focus();
    const cell = data.rows[chosen[0]].cells[chosen[1]];
    detail.replaceChildren(
      el("h3", { text: `${data.rows[chosen[0]].label}, ${where(chosen[1])}` }),
      el("ol", {}, cell.map(([word, p]) => el("li", {},
        el("span", { class: "word", text: word }),
        el("span", { class: "track" }, el("span", { class: "fill-bar", style: { width: `${100 * p}%` } })),
        el("span", { class: "share", text: percent(p) })))));
  }

  const scroll = el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: data.follows ? "after" : "at" }), data.tokens.map((token) => el("th", { scope: "col", text: token })))),
    el("tbody", {}, data.rows.map((row, down) => el("tr", {}, el("th", { scope: "row", text: row.label }), boxes[down])))));
  const go = (down, right) => () => choose(chosen[0] + down, chosen[1] + right, true);
  keys(scroll, { ArrowUp: go(-1, 0), ArrowDown: go(1, 0), ArrowLeft: go(0, -1), ArrowRight: go(0, 1) });
  root.replaceChildren(scroll, detail);
  paint();
  choose(0, data.chosen, false);
  const box = boxes[0][data.chosen];
  scroll.scrollLeft = Math.max(0, box.offsetLeft + box.offsetWidth - scroll.clientWidth + 4);
  onTheme(paint);
}

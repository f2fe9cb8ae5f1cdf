import { el, format } from "./base.js";

// The windows of a long text: data has `text`, `label` (that of the whole text, or null) and `windows`, each with `start`
// and `end` in characters, and `scores` by label or a `value`. A bar shows the label of the text, or a window's likeliest
// one. With `choose` each window is a button that calls it.
export function textWindows(root, data, choose) {
  const letters = [...data.text]; // offsets count characters, not UTF-16 units
  const percent = (value) => `${(100 * value).toFixed(value >= 0.0995 ? 0 : 1)} %`;
  root.classList.add("text-windows");
  root.replaceChildren(el("ol", { class: "bars" }, data.windows.map((window, number) => {
    const [best, score] = window.scores ? Object.entries(window.scores).sort((a, b) => b[1] - a[1])[0] : [null, null];
    const share = best === null ? null : data.label === null ? score : window.scores[data.label];
    const text = letters.slice(window.start, window.end).join("").replace(/\s+/g, " ").replace(/^[ .,;:!?)]+/, "").trim(); // a window may begin at the end of a sentence
    const name = `${number + 1}. ${text}`;
    return el("li", { class: best === data.label ? "best" : null },
      choose
        ? el("button", { type: "button", class: "name", text: name, title: "Show it in the text", on: { click: () => choose(window) } })
        : el("span", { class: "name", text: name, title: text }),
      el("span", { class: "track", "aria-hidden": "true" }, share === null ? null : el("span", { class: "fill", style: { width: `${100 * share}%` } })),
      el("span", { class: "value", text: best === null ? format(window.value, 3) : `${best} ${percent(score)}` }));
  })));
}

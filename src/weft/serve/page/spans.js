// A text with labeled spans: each is marked and named, in a color that is the label's everywhere on the page.

import { el, hideTooltip, tooltip } from "/static/picture/base.js";
import { Characters, MOST_BARS, bars, percent } from "./parts.js";

const COLORS = 6; // of --line-0 to --line-5

/** The number of a color for each label, in the order in which labels come. */
export function colorsOf(labels) {
  return new Map([...new Set(labels)].map((label, n) => [label, n % COLORS]));
}

function mark(span, text, color, chosen) {
  const tip = `${span.label}  ${percent(span.score)}\ncharacters ${span.start} to ${span.end}`;
  return el("mark", {
    class: `span color-${color}${chosen ? " chosen" : ""}`, tabindex: 0, "aria-label": `${text}: ${span.label}, ${percent(span.score)}`,
    on: { pointermove: (event) => tooltip(event, tip), pointerleave: hideTooltip, focus: (event) => tooltip(event, tip), blur: hideTooltip },
  }, text, el("span", { class: "label", "aria-hidden": "true", text: span.label }));
}

/**
 * The text with its spans, a legend whose labels can be hidden, and the spans in a list.
 * @param {{start: number, end: number, text: string, label: string, score: number}[]} spans
 */
export function spansView(text, spans, labels = []) {
  const colors = colorsOf([...labels, ...spans.map((span) => span.label)]);
  const present = [...new Set(spans.map((span) => span.label))];
  const hidden = new Set();
  const box = el("div", { class: "spans-text" });
  const letters = new Characters(text);

  function draw() {
    const parts = [];
    let end = 0;
    for (const span of [...spans].filter((each) => !hidden.has(each.label)).sort((a, b) => a.start - b.start || b.end - a.end)) {
      if (span.start < end) continue; // inside of one that is already marked
      parts.push(letters.slice(end, span.start), mark(span, letters.slice(span.start, span.end), colors.get(span.label)));
      end = span.end;
    }
    parts.push(letters.text.slice(letters.place(end)));
    box.replaceChildren(...parts);
  }

  const legend = el("ul", { class: "legend spans-legend", "aria-label": "Labels" }, present.map((label) => {
    const many = spans.filter((span) => span.label === label).length;
    const button = el("button", { type: "button", "aria-pressed": "true", title: "Hide or show this label", on: { click: () => {
      if (!hidden.delete(label)) hidden.add(label);
      button.setAttribute("aria-pressed", String(!hidden.has(label)));
      draw();
    } } }, el("span", { class: `swatch color-${colors.get(label)}`, "aria-hidden": "true" }), `${label} `, el("span", { class: "many-of", text: String(many) }));
    return el("li", {}, button);
  }));
  draw();
  const list = bars("Spans with their probabilities", spans.map((span) => ({ name: span.text, value: span.score, color: colors.get(span.label), note: `${span.label}  ${percent(span.score)}`, title: span.text })),
    { kind: "wide-note", most: MOST_BARS });
  return [legend, box, list];
}

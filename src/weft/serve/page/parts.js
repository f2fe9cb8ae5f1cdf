// Small parts that several tabs share: bars, messages, copy buttons, numbers as people read them.

import { el } from "/static/picture/base.js";

export const MOST_BARS = 12; // of labels or spans, before somebody asks for all

/** A probability as people read it. */
export function percent(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 0.9995) return value >= 0.99995 ? "100 %" : ">99.9 %";
  if (value >= 0.0995) return `${(100 * value).toFixed(0)} %`;
  return value >= 0.0005 ? `${(100 * value).toFixed(1)} %` : "<0.1 %";
}

export function seconds(value) {
  return value < 1 ? `${Math.max(1, Math.round(1000 * value))} ms` : `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en-US")} ${number === 1 ? noun : plural}`;
}

/**
 * Bars from 0 to 1, one below the other; of more than `most`, the rest is shown on demand.
 * @param {{name: string, value: number, note?: string, best?: boolean, color?: number, choose?: () => void, title?: string}[]} rows
 */
export function bars(label, rows, { of = 1, kind = "", most = Infinity } = {}) {
  const line = (row) => {
    const name = row.choose
      ? el("button", { type: "button", class: "name", text: row.name, title: row.title, on: { click: row.choose } })
      : el("span", { class: "name", text: row.name, title: row.title });
    const width = `${Math.max(0, Math.min(100, (100 * row.value) / of))}%`;
    const classes = [row.best && "best", row.color !== undefined && `color-${row.color}`].filter(Boolean).join(" ");
    return el("li", { class: classes || null }, name,
      el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "fill", style: { width } })),
      el("span", { class: "value", text: row.note ?? percent(row.value) }));
  };
  const list = el("ul", { class: `bars chances ${kind}`, "aria-label": label, tabindex: -1 }, rows.slice(0, most).map(line));
  if (rows.length <= most) return list;
  const more = button(`Show all ${rows.length}`, () => {
    list.append(...rows.slice(most).map(line));
    more.remove();
    list.focus();
  }, { class: "more" });
  return el("div", {}, list, more);
}

/** A title with what it is about below, and buttons: for what is empty, waits or went wrong. */
export function message(kind, title, detail, ...buttons) {
  return el("div", { class: `message ${kind}`, role: kind === "error" ? "alert" : null },
    el("p", { class: "title", text: title }), detail && el("p", { text: detail }),
    buttons.length > 0 && el("p", { class: "buttons" }, buttons));
}

export function button(text, click, attributes = {}) {
  return el("button", { type: "button", text, ...attributes, on: { click } });
}

/** A button that copies a text and says that it did. */
export function copyButton(text, label = "Copy") {
  let back;
  const node = button(label, async () => {
    try {
      await navigator.clipboard.writeText(text());
      node.textContent = "Copied";
    } catch {
      node.textContent = "Select and copy it"; // without https the browser may not allow it
    }
    clearTimeout(back);
    back = setTimeout(() => { node.textContent = label; }, 1600);
  }, { class: "copy", "aria-live": "polite" });
  return node;
}

/** Offsets of the server count characters (code points); those of a browser's strings count UTF-16 units. */
export class Characters {
  constructor(text) {
    this.text = text;
    this.simple = !/[\ud800-\udfff]/.test(text);
    if (this.simple) return;
    this.places = [0];
    for (const letter of text) this.places.push(this.places[this.places.length - 1] + letter.length);
  }

  /** Where a character begins in the string. */
  place(number) {
    return this.simple ? number : this.places[Math.min(number, this.places.length - 1)];
  }

  slice(start, end) {
    return this.text.slice(this.place(start), this.place(end));
  }
}

import { diverging, el, format, hideTooltip, inkOn, keys, onTheme, segmented, tooltip } from "./base.js";

// Which words mattered: a card for each method, its text shaded by value, and bars of the largest values.

const ATTRIBUTION_BARS = 12; // of the largest values
const ATTRIBUTION_ROWS = 200; // bars at most when they stand in the order of the text

// data: see weft/explain/attribution_view.py
export function attribution(root, data) {
  new AttributionPage(root, data);
}

class AttributionPage {
  constructor(root, data) {
    Object.assign(this, { root, data, units: "words", order: "size", marked: -1 });
    root.classList.add("attribution");
    this.facts = el("dl", { class: "attribution-facts" }, data.facts.map(([name, value, title]) =>
      el("div", { title }, el("dt", { text: name }), el("dd", { text: typeof value === "number" ? format(value, 3) : value }))));
    this.legend = el("div", { class: "attribution-legend", "aria-hidden": "true" });
    this.cards = el("div", { class: "attribution-cards" });
    const tokens = data.methods.some((method) => method.token_values.length);
    root.replaceChildren(
      this.facts,
      el("div", { class: "controls" },
        tokens && segmented("Values of", [["words", "Words"], ["tokens", "Tokens"]], this.units, (units) => { this.units = units; this.draw(); }),
        segmented("Bars", [["size", "Largest"], ["text", "As in the text"]], this.order, (order) => { this.order = order; this.draw(); }),
        this.legend),
      this.cards,
      el("p", { class: "note", text: "Point at a word, or choose one with ← and →, to see its value by every method." }));
    this.listen();
    onTheme(() => this.draw());
    this.draw();
  }

  listen() {
    const pieceOf = (event) => event.target.closest("[data-piece]");
    this.cards.addEventListener("pointerover", (event) => {
      const piece = pieceOf(event);
      if (piece) this.point(Number(piece.dataset.piece), event);
      else this.point(-1);
    });
    this.cards.addEventListener("pointerleave", () => this.point(-1));
    this.cards.addEventListener("focusout", () => this.point(-1));
    const step = (by) => (event) => {
      const count = (this.units === "words" ? this.data.words : this.data.tokens).length;
      if (!count) return;
      const next = Math.min(count - 1, Math.max(0, this.marked + by));
      const card = event.target.closest(".attribution-card") ?? this.cards;
      const target = card.querySelector(`.attribution-text [data-piece="${next}"]`);
      target?.scrollIntoView({ block: "nearest" });
      this.point(next, { target: target ?? card });
    };
    keys(this.cards, { ArrowRight: step(1), ArrowLeft: step(-1), Escape: () => this.point(-1) });
  }

  // Mark a word in every card, and show its values.
  point(number, event) {
    if (number !== this.marked) {
      for (const node of this.cards.querySelectorAll(".marked")) node.classList.remove("marked");
      for (const node of this.cards.querySelectorAll(`[data-piece="${number}"]`)) node.classList.add("marked");
      this.marked = number;
    }
    if (number < 0) return hideTooltip();
    const name = this.units === "words" ? this.data.words[number].word : this.data.tokens[number];
    const lines = this.data.methods.filter((method) => this.valuesOf(method).length)
      .map((method) => `${method.label}: ${attributionSigned(this.valuesOf(method)[number])}`);
    tooltip(event, [name, ...lines].join("\n"));
  }

  valuesOf(method) {
    return this.units === "words" ? method.values : method.token_values;
  }

  draw() {
    hideTooltip();
    this.marked = -1;
    const stops = Array.from({ length: 9 }, (_, n) => diverging(n / 4 - 1));
    const strip = el("span", { class: "attribution-strip", style: { background: `linear-gradient(to right, ${stops.join(", ")})` } });
    this.legend.replaceChildren("lowers the logit", strip, "raises it");
    this.cards.replaceChildren(...this.data.methods.map((method) => this.card(method)));
  }

  card(method) {
    const values = this.valuesOf(method);
    const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
    const head = [el("h2", { text: method.label }), el("p", { class: "note", text: method.about })];
    if (!values.length) return el("article", { class: "attribution-card" }, head, el("p", { class: "note", text: "This method has values of words only." }));
    const checks = method.checks.map(([name, value, good]) =>
      el("div", { class: good === false ? "bad" : "" }, el("dt", { text: name }), el("dd", { text: typeof value === "number" ? format(value, 3) : value })));
    return el("article", { class: "attribution-card" }, head,
      this.texts(method, values, most),
      this.bars(values, most),
      checks.length > 0 && el("dl", { class: "attribution-facts" }, checks));
  }

  texts(method, values, most) {
    const block = el("div", { class: "attribution-text", tabindex: "0", role: "group", "aria-label": `The text, shaded by ${method.label}` });
    const shaded = (number, text, tokens) => {
      const color = diverging(values[number] / most);
      return el("span", { class: tokens ? "attribution-word token" : "attribution-word", "data-piece": number, text, style: { background: color, color: inkOn(color) } });
    };
    if (this.units === "tokens") {
      block.append(el("p", {}, this.data.tokens.map((token, number) => shaded(number, token, true))));
      return block;
    }
    this.data.texts.forEach((text, at) => {
      const line = el("p");
      if (this.data.texts.length > 1) line.append(el("span", { class: "attribution-side", text: "AB"[at] ?? String(at + 1) }));
      let end = 0;
      this.data.words.forEach((word, number) => {
        if (word.text !== at) return;
        line.append(text.slice(end, word.start), shaded(number, word.word, false));
        end = word.end;
      });
      line.append(text.slice(end));
      block.append(line);
    });
    return block;
  }

  bars(values, most) {
    const names = this.units === "words" ? this.data.words.map((word) => word.word) : this.data.tokens;
    let order = values.map((_, number) => number);
    if (this.order === "size") order = order.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, ATTRIBUTION_BARS);
    order = order.slice(0, ATTRIBUTION_ROWS);
    const below = Math.max(0, ...order.map((number) => -values[number] / most));
    const above = Math.max(0, ...order.map((number) => values[number] / most));
    const zero = below / (below + above || 1);
    return el("ol", { class: "attribution-bars" }, order.map((number) => {
      const share = values[number] / most / (below + above || 1);
      const bar = el("span", { class: "attribution-bar" });
      Object.assign(bar.style, {
        left: `${100 * Math.min(zero, zero + share)}%`, width: `${100 * Math.abs(share)}%`, background: diverging(values[number] < 0 ? -0.75 : 0.75),
      });
      const line = el("span", { class: "attribution-zero" });
      line.style.left = `${100 * zero}%`;
      return el("li", { "data-piece": number },
        el("span", { class: "attribution-name", text: names[number], title: names[number] }),
        el("span", { class: "attribution-track" }, bar, line),
        el("span", { class: "attribution-value", text: attributionSigned(values[number]) }));
    }));
  }
}

function attributionSigned(value) {
  return `${value > 0 ? "+" : ""}${format(value, 3)}`;
}

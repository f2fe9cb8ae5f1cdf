import { cssColor, el } from "./base.js";
import { ATTENTION_SCALES, attentionCanvas, attentionColumn, attentionLargest, attentionRow } from "./attention-data.js";

// One head as lines between two columns of tokens. Only the tokens in sight have elements and lines.

const ATTENTION_ROW = 24; // pixels of a token
const ATTENTION_PER_TOKEN = 48; // lines of one token at most
const ATTENTION_FAINTEST = 0.05; // strength under which a line is not drawn
const ATTENTION_EDGE = 4; // tokens above and below what is in sight that have elements too

export class AttentionLines {
  // actions: {hover(side, number) or hover(null), choose(side, number)}
  constructor(actions) {
    this.actions = actions;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.labels = el("div", { class: "attention-labels" });
    this.stage = el("div", { class: "attention-stage" }, el("div", { class: "attention-sticky" }, this.canvas), this.labels);
    this.scroller = el("div", { class: "attention-scroller", on: { scroll: () => this.later() } }, this.stage);
    this.node = el("div", { class: "attention-lines" },
      el("div", { class: "attention-ends", "aria-hidden": "true" }, el("span", { text: "attends" }), el("span", { text: "attended to" })),
      this.scroller);
    this.labels.addEventListener("pointerover", (event) => this.point(event, (side, number) => actions.hover(side, number)));
    this.labels.addEventListener("pointerleave", () => actions.hover(null));
    this.labels.addEventListener("click", (event) => this.point(event, (side, number) => actions.choose(side, number)));
    this.waiting = false;
  }

  point(event, run) {
    const label = event.target.closest("button");
    if (label) run(label.dataset.side, Number(label.dataset.number));
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  // chosen: {row, column}, places in the part, -1 for none.
  show(part, chosen, scale) {
    Object.assign(this, { part, chosen, scale });
    this.stage.style.height = `${Math.max(part.from.length, part.to.length) * ATTENTION_ROW}px`;
    this.draw();
  }

  // Bring a token into sight.
  reveal(place) {
    const top = place * ATTENTION_ROW;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop || top + ATTENTION_ROW > scrollTop + clientHeight) this.scroller.scrollTop = top - clientHeight / 2;
  }

  draw() {
    const { part } = this;
    if (!part || !this.node.isConnected) return;
    const [width, height] = [this.scroller.clientWidth, Math.min(this.scroller.clientHeight, this.stage.offsetHeight)];
    const column = Math.min(200, Math.max(72, Math.round(width * 0.3)));
    const first = Math.floor(this.scroller.scrollTop / ATTENTION_ROW);
    const last = Math.ceil((this.scroller.scrollTop + height) / ATTENTION_ROW);
    const out = attentionRow(part, this.chosen.row);
    const into = attentionColumn(part, this.chosen.column);
    this.drawLabels(first - ATTENTION_EDGE, last + ATTENTION_EDGE, width, column, out, into);
    this.drawLines(first, last, [column, width - column], height, out, into);
  }

  drawLines(first, last, [left, right], height, out, into) {
    const { part, chosen } = this;
    const context = attentionCanvas(this.canvas, this.scroller.clientWidth, height);
    const strength = ATTENTION_SCALES[this.scale];
    const at = (place) => (place + 0.5) * ATTENTION_ROW - this.scroller.scrollTop;
    const middle = (left + right) / 2;
    const line = (row, columnPlace, t, color) => {
      if (t < ATTENTION_FAINTEST) return;
      context.globalAlpha = Math.min(1, t) ** 1.5; // many faint lines would hide the strong ones
      context.strokeStyle = color;
      context.beginPath();
      context.moveTo(left + 4, at(row));
      context.bezierCurveTo(middle, at(row), middle, at(columnPlace), right - 4, at(columnPlace));
      context.stroke();
    };
    const [outward, inward] = [cssColor("--line-0"), cssColor("--line-1")];
    context.lineWidth = 1.5;
    if (out || into) {
      const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
      if (into) attentionLargest(into, 4 * ATTENTION_PER_TOKEN).forEach((row) => line(row, chosen.column, strength(into[row], most(into)), inward));
      if (out) attentionLargest(out, 4 * ATTENTION_PER_TOKEN).forEach((place) => line(chosen.row, place, strength(out[place], most(out)), outward));
      return;
    }
    for (let row = Math.max(0, first); row < Math.min(last, part.from.length); row++) {
      const weights = attentionRow(part, row);
      attentionLargest(weights, ATTENTION_PER_TOKEN).forEach((place) => line(row, place, strength(weights[place], part.largest), outward));
    }
  }

  drawLabels(first, last, width, column, out, into) {
    const { part, chosen } = this;
    const nodes = [];
    const add = (side, tokens, weights, picked) => {
      const most = weights ? weights.reduce((a, b) => Math.max(a, b), 0) : 0;
      for (let place = Math.max(0, first); place < Math.min(last, tokens.length); place++) {
        const weight = weights ? weights[place] : 0;
        const label = el("button", {
          type: "button", class: `attention-token ${side}`, tabindex: place === picked || (picked < 0 && place === 0) ? "0" : "-1",
          "data-side": side, "data-number": tokens[place].number, title: `${tokens[place].text} (token ${tokens[place].number})`,
          "aria-pressed": String(place === picked),
        }, el("span", { class: "attention-word", text: tokens[place].text || "∅" }),
        weights && weight >= 0.0005 && el("span", { class: "attention-weight", text: weight.toFixed(3).replace(/^0/, "") }));
        label.style.top = `${place * ATTENTION_ROW}px`;
        label.style.width = `${column}px`;
        if (side === "to") label.style.left = `${width - column}px`;
        if (weights && most > 0) label.style.setProperty("--share", `${Math.round(70 * Math.sqrt(weight / most))}%`);
        nodes.push(label);
      }
    };
    add("from", part.from, into, chosen.row);
    add("to", part.to, out, chosen.column);
    const focused = this.labels.contains(document.activeElement) ? document.activeElement.dataset : null;
    this.labels.replaceChildren(...nodes);
    if (focused) this.labels.querySelector(`[data-side="${focused.side}"][data-number="${focused.number}"]`)?.focus({ preventScroll: true });
  }
}

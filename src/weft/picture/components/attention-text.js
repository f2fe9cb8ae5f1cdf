import { el, format, unpack, sequential } from "./base.js";
import { attentionColumn, attentionLargest, attentionReceived, attentionRow } from "./attention-data.js";

// The text itself, shaded by the attention of one token; the lists beside every view; all heads as small pictures.

const ATTENTION_LISTED = 8; // tokens in each list

// The text: what the chosen token attends to (blue), or what attends to it (orange).
export class AttentionText {
  constructor(actions) {
    this.from = el("p", { class: "attention-flow" });
    this.to = el("p", { class: "attention-flow" });
    this.fromTitle = el("h3");
    this.toTitle = el("h3");
    this.node = el("div", { class: "attention-text" }, this.fromTitle, this.from, this.toTitle, this.to);
    this.node.addEventListener("click", (event) => this.point(event, actions.choose));
    this.node.addEventListener("pointerover", (event) => this.point(event, actions.hover));
    this.node.addEventListener("pointerleave", () => actions.hover(null));
    this.shown = null;
  }

  point(event, run) {
    const token = event.target.closest(".attention-piece");
    if (token) run(token.dataset.side, Number(token.dataset.number));
  }

  fill(part) {
    const piece = (side) => (token) => el("button", {
      type: "button", class: "attention-piece", tabindex: "-1", "data-side": side, "data-number": token.number, text: token.text || "∅",
    });
    this.from.replaceChildren(...part.from.map(piece("from")));
    this.to.replaceChildren(...part.to.map(piece("to")));
    this.shown = [part.from, part.to];
  }

  show(part, chosen) {
    const same = this.shown && part.from.length === this.shown[0].length && part.to.length === this.shown[1].length
      && part.from.every((token, n) => token.text === this.shown[0][n].text && token.number === this.shown[0][n].number)
      && part.to.every((token, n) => token.text === this.shown[1][n].text && token.number === this.shown[1][n].number);
    if (!same) this.fill(part);
    const [row, column] = [part.from[chosen.row], part.to[chosen.column]];
    const name = (token) => `“${token.text.replace(/^·/, "") || "∅"}”`;
    this.fromTitle.textContent = column ? `Tokens that attend to ${name(column)}` : "Tokens that attend: choose one";
    this.toTitle.textContent = row ? `What ${name(row)} attends to` : column ? "Tokens that are attended to" : "Attention that each token gets, mean of all tokens";
    this.shade(this.from, attentionColumn(part, chosen.column), chosen.row, "--line-1");
    this.shade(this.to, row || column ? attentionRow(part, chosen.row) : attentionReceived(part), chosen.column, "--line-0");
  }

  shade(flow, weights, picked, color) {
    const most = weights ? weights.reduce((a, b) => Math.max(a, b), 0) : 0;
    flow.style.setProperty("--shade", `var(${color})`);
    for (let place = 0; place < flow.children.length; place++) {
      const [node, share] = [flow.children[place], most > 0 ? Math.round(70 * Math.sqrt(weights[place] / most)) : 0];
      const level = `${share}%`;
      if (node.attentionLevel !== level) {
        node.style.setProperty("--share", level);
        node.attentionLevel = level;
      }
      if (node.attentionPicked !== (place === picked)) {
        node.attentionPicked = place === picked;
        node.setAttribute("aria-pressed", String(place === picked));
      }
    }
  }

  reveal(place) {
    this.from.children[place]?.scrollIntoView({ block: "nearest" });
  }
}

// What one token attends to most, and what attends to it most.
export function attentionLists(part, chosen, choose) {
  const [out, into] = [attentionRow(part, chosen.row), attentionColumn(part, chosen.column)];
  const token = out ? part.from[chosen.row] : into && part.to[chosen.column];
  const list = (title, weights, tokens, side, color) => {
    const items = attentionLargest(weights, ATTENTION_LISTED).map((place) => {
      const bar = el("span", { class: "attention-bar" });
      bar.style.width = `${100 * weights[place] / weights[attentionLargest(weights, 1)[0]]}%`;
      bar.style.background = `var(${color})`;
      return el("li", {}, el("button", { type: "button", on: { click: () => choose(side, tokens[place].number) } },
        el("span", { class: "attention-word", text: tokens[place].text || "∅" }), el("span", { class: "attention-track" }, bar),
        el("span", { class: "attention-weight", text: format(weights[place], 3) })));
    });
    return [el("h3", { text: title }), items.length ? el("ol", {}, items) : el("p", { class: "note", text: "nothing" })];
  };
  if (!token) {
    return [
      el("p", { class: "note", text: "Point at a token to see what it attends to, and what attends to it. Click it to keep it." }),
      ...list("attended to most, mean of all tokens", attentionReceived(part), part.to, "to", "--line-0"),
    ];
  }
  return [
    el("h2", {}, el("span", { class: "attention-word", text: token.text || "∅" }), el("small", { text: ` token ${token.number}` })),
    ...(out ? list("attends to", out, part.to, "to", "--line-0") : []),
    ...(into ? list("is attended to by", into, part.from, "from", "--line-1") : []),
  ];
}

// All heads at a glance: a small picture of each, a row for each layer.
export class AttentionGrid {
  constructor(actions) {
    this.actions = actions;
    this.node = el("div", { class: "attention-grid-box" });
    this.drawn = null;
  }

  show(stack, stackNumber, layer, head, dark) {
    const key = `${stackNumber}/${dark}`;
    if (this.drawn !== key) this.fill(stack);
    this.drawn = key;
    for (const button of this.node.querySelectorAll("button")) {
      const [at, number] = [Number(button.dataset.layer), Number(button.dataset.head)];
      button.setAttribute("aria-pressed", String(at === layer && (number === head || stack.layers[at].heads === 1)));
    }
  }

  fill(stack) {
    const most = Math.max(...stack.layers.map((layer) => layer.heads));
    const grid = el("div", { class: "attention-grid", style: { gridTemplateColumns: `max-content repeat(${most}, minmax(14px, 120px))` } });
    if (most > 1) {
      grid.append(el("span", { class: "attention-corner", text: "head" }), ...Array.from({ length: most }, (_, n) => el("span", { class: "attention-count", text: String(n) })));
    }
    stack.layers.forEach((layer, number) => {
      grid.append(el("span", { class: "attention-name", text: layer.name, title: layer.label }));
      const { shape: [heads, down, across], data } = unpack(layer.thumbnails);
      for (let head = 0; head < heads; head++) {
        const canvas = attentionThumbnail(data.subarray(head * down * across, (head + 1) * down * across), down, across);
        const label = heads > 1 ? `${layer.label}, head ${head}` : layer.label;
        const style = head === 0 ? { gridColumnStart: 2 } : {};
        grid.append(el("button", { type: "button", "aria-label": label, title: label, "data-layer": number, "data-head": head, style,
          on: { click: () => this.actions.open(number, head) } }, canvas));
      }
    });
    this.node.replaceChildren(grid);
  }

  reveal() {}
}

function attentionThumbnail(levels, down, across) {
  const canvas = el("canvas", { width: across, height: down });
  const context = canvas.getContext("2d");
  const image = context.createImageData(across, down);
  for (let i = 0; i < levels.length; i++) {
    const color = attentionShade(levels[i]);
    image.data.set(color, 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

let attentionShades = { key: "", table: [] };

function attentionShade(level) {
  const key = sequential(0) + sequential(1);
  if (attentionShades.key !== key) {
    attentionShades = { key, table: Array.from({ length: 256 }, (_, n) => [...sequential(n / 255).match(/\d+/g).map(Number), 255]) };
  }
  return attentionShades.table[level];
}

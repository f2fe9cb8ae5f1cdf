import { el, format, hideTooltip, keys, svgEl, tooltip } from "./base.js";

// A search as columns of candidates: data has `prompt`, `beam_size` (null: no beam) and `nodes` ({parent, step, rank, text,
// whole, probability, logprob, fate, chosen}); a node's parent is the number of another one, -1 for the prompt.
export function beamTree(root, data) {
  new BeamTreePage(root, data);
}

const BEAM_ROW = 46;
const BEAM_GAP = 34;

class BeamTreePage {
  constructor(root, data) {
    this.data = data;
    this.pruned = true;
    this.at = null; // the number of the node that is looked at
    root.classList.add("beam-tree");
    const box = el("input", { type: "checkbox", checked: true, on: { change: () => { this.pruned = box.checked; this.draw(); } } });
    const label = data.beam_size ? "Show pruned branches" : "Show alternatives";
    this.stage = el("div", { class: "beam-tree-scroll", tabindex: 0, role: "application", "aria-label": "Candidates by step. Arrow keys go to the parent, the best child and the neighbors of a candidate." });
    this.caption = el("p", { class: "beam-tree-caption", "aria-live": "polite" });
    root.replaceChildren(el("div", { class: "controls" }, el("label", { class: "control" }, box, label)), this.stage, this.caption, this.legend());
    keys(this.stage, {
      ArrowLeft: () => this.go((node) => this.data.nodes[this.at].parent === node.number),
      ArrowRight: () => this.go((node) => node.parent === this.at, (node) => (node.chosen ? -1 : node.rank)),
      ArrowUp: () => this.beside(-1),
      ArrowDown: () => this.beside(1),
      Escape: () => this.choose(null),
    });
    this.data.nodes.forEach((node, number) => { node.number = number; });
    this.draw();
    this.say();
  }

  legend() {
    const items = this.data.beam_size
      ? [["chosen", "the answer"], ["kept", `kept in the beam of ${this.data.beam_size}`], ["ended", "ended"], ["pruned", "pruned"]]
      : [["chosen", "taken"], ["pruned", "likeliest alternatives"]];
    return el("ul", { class: "legend" }, items.map(([name, text]) => el("li", {}, el("span", { class: `beam-tree-sample ${name}` }), ` ${text}`)));
  }

  shown() {
    return this.data.nodes.filter((node) => this.pruned || node.fate !== "pruned" || node.chosen);
  }

  go(test, order = (node) => node.rank) {
    if (this.at === null) return this.choose(this.shown()[0]?.number ?? null);
    const next = this.shown().filter(test).sort((a, b) => order(a) - order(b))[0];
    return next ? this.choose(next.number) : undefined;
  }

  beside(way) {
    if (this.at === null) return this.choose(this.shown()[0]?.number ?? null);
    const { step, rank } = this.data.nodes[this.at];
    const column = this.shown().filter((node) => node.step === step && (node.rank - rank) * way > 0);
    const next = column.sort((a, b) => (a.rank - b.rank) * way)[0];
    return next ? this.choose(next.number) : undefined;
  }

  choose(number) {
    this.at = number;
    this.mark();
    this.say();
    if (number !== null) this.groups.get(number)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  line(number) {
    const path = new Set();
    for (let node = number; node >= 0; node = this.data.nodes[node].parent) path.add(node);
    return path;
  }

  mark() {
    const path = this.at === null ? null : this.line(this.at);
    for (const [number, group] of this.groups) {
      group.classList.toggle("marked", number === this.at);
      group.classList.toggle("dimmed", path !== null && !path.has(number));
      this.edges.get(number).classList.toggle("dimmed", path !== null && !path.has(number));
    }
  }

  describe(node) {
    const fate = { kept: "kept", ended: "ended", pruned: this.data.beam_size ? "pruned" : "not taken" }[node.fate];
    return `“${node.text}” ${fate}, rank ${node.rank + 1} of step ${node.step}\n`
      + `probability ${format(node.probability, 3)}, log-probability so far ${format(node.logprob, 3)}\n${this.data.prompt}▸${node.whole}`;
  }

  say() {
    const hint = "Point at a candidate, or use the arrow keys: left to its parent, right to its best child. Escape lets go.";
    this.caption.textContent = this.at === null ? hint : this.describe(this.data.nodes[this.at]).replaceAll("\n", " · ");
  }

  draw() {
    hideTooltip();
    const nodes = this.shown();
    const steps = Math.max(1, ...nodes.map((node) => node.step));
    const wide = (text) => Math.min(150, 22 + 7.8 * [...text].length);
    const widths = Array.from({ length: steps + 1 }, (_, step) => Math.max(48, ...nodes.filter((node) => node.step === step).map((node) => wide(this.name(node)))));
    const begin = this.data.prompt.length > 18 ? `…${this.data.prompt.slice(-17)}` : this.data.prompt || "(start)";
    widths[0] = wide(begin);
    const lefts = widths.reduce((list, width) => [...list, list[list.length - 1] + width + BEAM_GAP], [10]);
    // Without the pruned ones the others move up.
    const rows = new Map();
    for (let step = 1; step <= steps; step++) {
      nodes.filter((node) => node.step === step).sort((a, b) => a.rank - b.rank).forEach((node, row) => rows.set(node.number, row));
    }
    const high = 26 + BEAM_ROW * (1 + Math.max(0, ...rows.values())) + 8;
    const place = (number) => {
      const node = this.data.nodes[number];
      return { x: lefts[node.step], y: 26 + BEAM_ROW * rows.get(number), width: widths[node.step] };
    };
    this.groups = new Map();
    this.edges = new Map();
    const parts = [];
    for (let step = 1; step <= steps; step++) parts.push(svgEl("text", { class: "head", x: lefts[step] + widths[step] / 2, y: 15, "text-anchor": "middle", text: String(step) }));
    const root = { x: lefts[0], y: 26, width: widths[0] };
    for (const node of nodes) {
      const to = place(node.number);
      const from = node.parent < 0 || !rows.has(node.parent) ? root : place(node.parent);
      const [x1, y1, x2, y2] = [from.x + from.width, from.y + 18, to.x, to.y + 18];
      const middle = (x1 + x2) / 2;
      const edge = svgEl("path", { class: `edge ${node.fate}${node.chosen ? " chosen" : ""}`, d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, "stroke-width": 0.75 + 3 * node.probability });
      this.edges.set(node.number, edge);
      if (node.chosen) parts.push(edge);
      else parts.unshift(edge);
    }
    parts.push(svgEl("g", { class: "node chosen" }, svgEl("rect", { x: root.x, y: root.y, width: root.width, height: 36, rx: 5 }), svgEl("text", { x: root.x + root.width / 2, y: root.y + 22, "text-anchor": "middle", text: begin })));
    for (const node of nodes) parts.push(this.node(node, place(node.number)));
    const right = lefts[steps] + widths[steps] + 10;
    this.stage.replaceChildren(svgEl("svg", { width: right, height: high, viewBox: `0 0 ${right} ${high}`, style: { width: `${right}px` } }, parts));
    this.mark();
  }

  name(node) {
    const text = node.text.trim() === "" ? JSON.stringify(node.text).replaceAll(" ", "␣") : node.text.trim();
    return text.length > 16 ? `${text.slice(0, 15)}…` : text;
  }

  node(node, { x, y, width }) {
    const group = svgEl("g", { class: `node ${node.fate}${node.chosen ? " chosen" : ""}`, on: {
      pointermove: (event) => tooltip(event, this.describe(node)),
      pointerleave: hideTooltip,
      click: () => this.choose(node.number === this.at ? null : node.number),
    } },
    svgEl("rect", { x, y, width, height: 36, rx: 5 }),
    svgEl("text", { x: x + width / 2, y: y + 16, "text-anchor": "middle", text: this.name(node) }),
    svgEl("text", { class: "chance", x: x + width / 2, y: y + 30, "text-anchor": "middle", text: format(node.probability, 3) }));
    this.groups.set(node.number, group);
    return group;
  }
}

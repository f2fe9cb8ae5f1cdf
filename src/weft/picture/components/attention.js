import { el, format, isDark, keys, onTheme, segmented, selector, sequential } from "./base.js";
import { AttentionData, attentionPart } from "./attention-data.js";
import { AttentionLines } from "./attention-lines.js";
import { AttentionMatrix } from "./attention-matrix.js";
import { AttentionGrid, AttentionText, attentionLists } from "./attention-text.js";

const ATTENTION_PAIRS = [["all", "all"], ["AA", "A → A"], ["AB", "A → B"], ["BA", "B → A"], ["BB", "B → B"]];
const ATTENTION_VIEWS = [["lines", "Lines"], ["matrix", "Matrix"], ["text", "Text"], ["grid", "All heads"]];

// Attention of a text: data has `stacks` (see weft/explain/attention.py), `view`, `layer` and `head` to begin with.
export function attention(root, data) {
  new AttentionPage(root, data);
}

class AttentionPage {
  constructor(root, content) {
    this.root = root;
    this.data = new AttentionData(root, content);
    this.state = { view: content.view ?? "lines", stack: content.stack ?? 0, layer: content.layer ?? 0, head: content.head ?? 0, pair: "all", scale: "root" };
    this.kept = null; // {side, number}: the token that was clicked
    this.pointed = null; // the token under the mouse
    const choose = (side, number) => this.choose(side, number);
    const hover = (side, number) => this.hover(side, number);
    const open = (layer, head) => { this.set({ layer, head, view: this.latest ?? "lines" }); this.root.focus(); };
    this.views = {
      lines: new AttentionLines({ choose, hover }), matrix: new AttentionMatrix({ choose }),
      text: new AttentionText({ choose, hover }), grid: new AttentionGrid({ open }),
    };
    root.classList.add("attention");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Attention. Arrow keys change layer and head.");
    this.build();
    this.listen();
    this.refresh();
  }

  get stack() {
    return this.data.stacks[this.state.stack];
  }

  get layer() {
    return this.stack.layers[this.state.layer];
  }

  build() {
    this.bar = el("div", { class: "controls" });
    this.caption = el("p", { class: "attention-caption", "aria-live": "polite" });
    this.share = el("p", { class: "note" });
    this.place = el("div", { class: "attention-view" });
    this.lists = el("aside", { class: "attention-lists", "aria-label": "One token" });
    this.body = el("div", { class: "attention-body" }, this.place, this.lists);
    this.hint = el("p", { class: "note attention-hint", text: "Keys: ← → head, ↑ ↓ layer, [ ] token, 1 – 4 view, Esc clears the token." });
    this.root.replaceChildren(this.bar, this.caption, this.share, this.body, this.hint);
  }

  listen() {
    keys(this.root, {
      ArrowLeft: () => this.turn(-1), ArrowRight: () => this.turn(1), ArrowUp: () => this.climb(-1), ArrowDown: () => this.climb(1),
      "[": () => this.walk(-1), "]": () => this.walk(1), Escape: () => { this.kept = null; this.pointed = null; this.draw(); },
      ...Object.fromEntries(ATTENTION_VIEWS.map(([view], n) => [String(n + 1), () => this.set({ view })])),
    });
    onTheme(() => this.draw());
    new ResizeObserver(() => {
      if (this.width !== this.place.clientWidth) { this.width = this.place.clientWidth; this.draw(); }
    }).observe(this.place);
  }

  turn(step) {
    const heads = this.layer.heads;
    if (heads > 1) this.set({ head: ((this.state.head + 1 + step + heads + 1) % (heads + 1)) - 1 });
  }

  climb(step) {
    this.set({ layer: Math.min(this.stack.layers.length - 1, Math.max(0, this.state.layer + step)) });
  }

  walk(step) {
    const tokens = this.part.from;
    const at = this.kept ? tokens.findIndex((token) => token.number === this.kept.number) : step > 0 ? -1 : tokens.length;
    const place = Math.min(tokens.length - 1, Math.max(0, at + step));
    this.kept = { side: "from", number: tokens[place].number };
    this.draw();
    this.views[this.state.view].reveal(place);
  }

  choose(side, number) {
    this.kept = this.kept && this.kept.side === side && this.kept.number === number ? null : { side, number };
    this.pointed = null;
    this.draw();
  }

  hover(side, number) {
    const next = side === null ? null : { side, number };
    if (JSON.stringify(next) === JSON.stringify(this.pointed)) return;
    this.pointed = next;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  set(change) {
    const before = { ...this.state };
    Object.assign(this.state, change);
    if (this.state.stack !== before.stack) {
      Object.assign(this.state, { layer: Math.min(this.state.layer, this.stack.layers.length - 1), pair: "all" });
      this.kept = null;
    }
    if (this.state.view !== "grid") this.latest = this.state.view;
    this.pointed = null;
    this.refresh();
  }

  refresh() {
    const { state, stack, data } = this;
    state.head = this.layer.heads === 1 ? 0 : Math.min(state.head, this.layer.heads - 1);
    const stale = this.controlled !== state.stack || this.controlledHeads !== this.layer.heads;
    if (stale) {
      const names = Array.from({ length: this.layer.heads }, (_, n) => [n, String(n)]);
      this.controls = {
        view: segmented("View", ATTENTION_VIEWS, state.view, (view) => this.set({ view })),
        stack: data.stacks.length > 1 && segmented("Attention of", data.stacks.map((each, n) => [n, each.label]), state.stack, (value) => this.set({ stack: value })),
        layer: selector("Layer", stack.layers.map((layer, n) => [n, layer.name]), state.layer, (layer) => this.set({ layer })),
        head: this.layer.heads > 1 && selector("Head", [[-1, "mean of all"], ...names], state.head, (head) => this.set({ head })),
        pair: stack.pair && segmented("Sentences", ATTENTION_PAIRS, state.pair, (pair) => this.set({ pair })),
        scale: selector("Scale", [["root", "square root"], ["linear", "linear"]], state.scale, (scale) => this.set({ scale })),
      };
      this.bar.replaceChildren(...Object.values(this.controls).filter(Boolean));
      [this.controlled, this.controlledHeads] = [state.stack, this.layer.heads];
    }
    for (const [name, control] of Object.entries(this.controls)) if (control) control.choose(state[name]);
    const sides = state.pair === "all" ? null : [...state.pair].map((letter) => (letter === "A" ? 0 : 1));
    if (state.view !== "grid") this.part = attentionPart(stack, data.matrix(state.stack, state.layer, state.head), sides);
    this.say();
    const view = this.views[state.view];
    if (this.place.firstElementChild !== view.node) this.place.replaceChildren(view.node);
    this.body.dataset.view = state.view;
    this.draw();
  }

  say() {
    const { state, layer, part } = this;
    this.share.textContent = layer.note ?? "";
    this.share.hidden = !layer.note;
    if (state.view === "grid") {
      this.caption.textContent = "Every head of every layer: rows attend to columns. Click one to open it.";
      return;
    }
    const head = layer.heads === 1 ? "" : state.head < 0 ? ", mean of all heads" : `, head ${state.head}`;
    const legend = el("span", { class: "attention-legend", "aria-hidden": "true" });
    const stops = Array.from({ length: 9 }, (_, n) => sequential(n / 8));
    if (state.view === "matrix") legend.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    else legend.hidden = true;
    this.caption.replaceChildren(
      el("strong", { text: `${layer.label}${head}` }),
      el("span", { text: ` ${part.from.length} × ${part.to.length} tokens, largest weight ${format(part.largest, 3)} ` }),
      legend);
  }

  draw() {
    const { state, stack } = this;
    if (state.view === "grid") return this.views.grid.show(stack, state.stack, state.layer, state.head, isDark());
    const token = this.pointed ?? this.kept;
    const chosen = { row: -1, column: -1 };
    if (token) {
      const find = (tokens) => tokens.findIndex((each) => each.number === token.number);
      if (token.side === "from" || stack.same) chosen.row = find(this.part.from);
      if (token.side === "to" || stack.same) chosen.column = find(this.part.to);
    }
    this.lists.replaceChildren(...attentionLists(this.part, chosen, (side, number) => this.choose(side, number)));
    this.views[state.view].show(this.part, chosen, state.scale);
  }
}

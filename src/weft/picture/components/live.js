// The page of a live model: type a text, and its tokens, its attention and what the model says of it follow every key.

import { el, onTheme, segmented, selector, slider } from "./base.js";
import { LiveSession } from "./live-task.js";
import { liveAttention, liveResult, liveStates, liveTokens } from "./live-views.js";
import { liveVisible, liveWalk } from "./live-walk.js";
import { walk } from "./walk.js";

const LIVE_SLICE = 30; // milliseconds of work after which the page may draw and listen again
const LIVE_SLOW = 120; // milliseconds: an answer that takes longer waits until the typing pauses
const LIVE_LETTERS_READ = 20000; // characters of a text that are read
const LIVE_WALKED = 64; // tokens of a text that has a walk
const LIVE_HEADINGS = { next: "Next token", fill: "Words for the gaps", tags: "Entities", value: "Value", answer: "Answer" };
const LIVE_INPUTS = { answer: ["Question", "Context"], pair: ["First text", "Second text"] };

export function live(root, data) {
  const loading = document.querySelector(".live-loading");
  // Two frames, so that the page shows that it loads before it is busy.
  requestAnimationFrame(() => setTimeout(() => {
    try {
      const began = performance.now();
      const page = new LivePage(root, data);
      root.live = page;
      page.loaded(performance.now() - began);
    } catch (error) {
      root.replaceChildren(el("p", { class: "live-error", role: "alert", text: `This page cannot be shown: ${error.message}` }));
      root.dataset.failed = error.message;
    }
    loading?.remove();
  }));
}

class LivePage {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.task = data.task;
    this.session = new LiveSession(data);
    const next = this.task.kind === "next";
    this.view = { session: this.session, data, answer: null, window: 0, chosen: null, layer: 0, head: 0, temperature: next ? 0.8 : 1, topK: next ? 40 : 0, tokens: 60, panel: "main", lines: true };
    this.turn = 0; // of the text that is being read: an older one is left
    this.spent = 0;
    this.make();
    onTheme(() => this.show());
    this.update();
  }

  make() {
    const { task, data } = this;
    const [first, second] = LIVE_INPUTS[task.kind] ?? (task.pair ? LIVE_INPUTS.pair : ["Text", ""]);
    const field = (name, rows, value) => {
      const box = el("textarea", { rows, spellcheck: "false", autocomplete: "off", "aria-label": name });
      box.value = value;
      box.addEventListener("input", () => this.typed());
      return [box, el("label", { class: "live-field" }, el("span", { text: name }), box)];
    };
    const [input, label] = field(first, task.pair ? 2 : 4, task.sample);
    this.input = input;
    this.input.id = "live-text";
    const [other, otherLabel] = task.pair ? field(second, 4, task.second ?? "") : [null, null];
    this.second = other;
    this.note = el("p", { class: "live-note", role: "status", hidden: true });
    this.error = el("p", { class: "live-error", role: "alert", hidden: true });
    this.time = el("span", { class: "live-time" });
    this.result = el("div", { class: "live-result", "aria-live": "polite" });
    this.tokens = el("div", { class: "live-tokens", role: "group", "aria-label": "Tokens" });
    this.windows = el("div", { class: "controls", hidden: true });
    this.panels = el("div", { class: "live-panel" });
    this.facts = el("footer", { class: "live-facts note" });
    const main = el("div", { class: "live-main" },
      el("div", { class: "live-input" }, label, otherLabel, this.controls(), this.note, this.error),
      el("div", { class: "live-output" }, el("h2", { text: LIVE_HEADINGS[task.kind] ?? "Labels" }), this.result));
    const title = el("div", { class: "live-title" }, el("h2", { text: "Tokens" }), this.time);
    this.root.replaceChildren(main, title, this.windows, this.tokens, el("h2", { text: "Inside" }), this.choices(), this.panels, this.facts);
    this.input.addEventListener("keydown", (event) => {
      if (task.kind !== "next") return;
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.generate();
      else if (event.key === "Escape") this.stop();
    });
  }

  controls() {
    const { task, view } = this;
    if (task.kind === "fill") return el("div", { class: "controls" }, el("button", { type: "button", text: `Insert ${task.maskName}`, on: { click: () => this.insert(task.maskName) } }));
    if (task.kind !== "next") return null;
    this.button = el("button", { type: "button", class: "live-generate", text: "Continue", title: "Ctrl + Enter", on: { click: () => this.generate() } });
    const draw = () => { this.showResult(); if (view.panel === "walk") this.showPanel(); };
    return el("div", { class: "controls live-sliders" }, this.button, el("div", {},
      slider("Temperature", { min: 0, max: 2, step: 0.05, value: view.temperature }, (value) => { view.temperature = value; draw(); }),
      slider("Top k", { min: 0, max: 100, step: 1, value: view.topK }, (value) => { view.topK = value; draw(); }),
      slider("New tokens", { min: 10, max: 300, step: 10, value: view.tokens }, (value) => { view.tokens = value; })),
      el("p", { class: "note", text: "Temperature 0 takes the best token every time. Top k 0 draws from all tokens." }));
  }

  // What stands above the panel: which panel, layer and head.
  choices() {
    const { view, data: { spec } } = this;
    const transformer = spec.kind === "transformer";
    const count = transformer ? spec.layers.length : spec.layerCount;
    const numbers = (length) => Array.from({ length }, (_, n) => n);
    const panels = transformer ? [["main", "Attention"], ["walk", "Walk through a head"]] : [["main", "States"], ["walk", "Walk through a step"]];
    this.heads = transformer ? selector("Head", numbers(spec.layers[0].heads), 0, (value) => { view.head = value; this.showInside(); }) : null;
    this.layers = selector("Layer", numbers(count), 0, (value) => { this.choose(value, view.head); });
    this.shape = transformer ? segmented("Show as", [[true, "Lines"], [false, "Matrix"]], true, (value) => { view.lines = value; this.showPanel(); }) : null;
    return el("div", { class: "controls" }, segmented("View", panels, "main", (value) => { view.panel = value; this.showInside(); }), this.layers, this.heads, this.shape);
  }

  choose(layer, head) {
    const { view, data: { spec } } = this;
    const heads = spec.layers?.[layer].heads ?? 1;
    Object.assign(view, { layer, head: Math.min(head, heads - 1) });
    this.layers.choose(layer);
    this.heads?.choose(view.head);
    this.showInside();
  }

  loaded(milliseconds) {
    const { data: { family, spec, parameters, precision }, root, facts } = this;
    root.dataset.load = milliseconds.toFixed(1);
    const layers = spec.layers?.length ?? spec.layerCount;
    const sizes = `${family}: ${layers} ${layers === 1 ? "layer" : "layers"} of width ${spec.width}, ${parameters.toLocaleString("en")} parameters in ${precision}, loaded in ${milliseconds.toFixed(0)} ms.`;
    facts.replaceChildren(el("p", { text: "The model runs in this page. The texts that you type never leave it, and it works without a network." }), el("p", { text: sizes }));
  }

  // ---------------------------------------------------------------- reading

  // A slow model waits for a pause in the typing; a quick one answers every key.
  typed() {
    clearTimeout(this.waiting);
    this.stop();
    if (this.spent < LIVE_SLOW) this.update();
    else {
      this.busy(true);
      this.waiting = setTimeout(() => this.update(), Math.min(300, this.spent / 2));
    }
  }

  texts() {
    return [this.input, this.second].map((box) => (box === null ? null : box.value.slice(0, LIVE_LETTERS_READ)));
  }

  update() {
    const began = performance.now();
    const turn = ++this.turn;
    this.run(turn, this.session.answering(...this.texts()), (answer) => {
      this.view.answer = answer;
      this.view.window = Math.min(this.view.window, answer.windows.length - 1);
      this.busy(false);
      this.show();
      this.spent = performance.now() - began;
      const count = answer.windows.reduce((sum, window) => sum + window.ids.length, 0);
      this.root.dataset.milliseconds = this.spent.toFixed(2);
      this.root.dataset.turn = String(turn);
      this.time.textContent = `${count} ${count === 1 ? "token" : "tokens"} in ${this.spent.toFixed(this.spent < 10 ? 1 : 0)} ms`;
      this.notice(answer);
    });
  }

  // Work through a generator in slices; what an older turn has begun is left. `each` gets what it yields.
  run(turn, steps, finish, each = () => {}) {
    const slice = () => {
      if (turn !== this.turn) return;
      const began = performance.now();
      try {
        this.error.hidden = true;
        for (;;) {
          const { done, value } = steps.next();
          if (done) {
            finish(value);
            return;
          }
          each(value);
          if (performance.now() - began > LIVE_SLICE) {
            this.busy(true);
            setTimeout(slice);
            return;
          }
        }
      } catch (error) {
        this.busy(false);
        this.error.textContent = `This text cannot be read: ${error.message}`;
        this.error.hidden = false;
      }
    };
    slice();
  }

  busy(on) {
    this.root.classList.toggle("live-busy", on);
    this.result.setAttribute("aria-busy", String(on));
  }

  notice(answer) {
    const { frame, kind } = this.task;
    const lines = [];
    if ([this.input, this.second].some((box) => box !== null && box.value.length > LIVE_LETTERS_READ)) lines.push(`Only the first ${LIVE_LETTERS_READ.toLocaleString("en")} characters are read.`);
    if (answer.left) lines.push(`The model reads the last ${answer.ids.length} tokens: its context is full.`);
    else if (answer.windows.length > 1) lines.push(`The text is longer than ${frame.length} tokens, so it is read in ${answer.windows.length} windows${kind === "label" || kind === "labels" || kind === "value" ? "; the answer is their mean" : ""}.`);
    this.note.textContent = lines.join(" ");
    this.note.hidden = !lines.length;
  }

  // ---------------------------------------------------------------- generating

  insert(text) {
    const { selectionStart: from, selectionEnd: to, value } = this.input;
    this.input.value = `${value.slice(0, from)}${text}${value.slice(to)}`;
    this.input.setSelectionRange(from + text.length, from + text.length);
    this.input.focus();
    this.typed();
  }

  append(id) {
    this.input.value += this.session.continuation(this.session.prompt(this.input.value), [id]);
    this.typed();
  }

  stop() {
    if (!this.generating) return;
    this.generating = false;
    this.turn += 1;
    this.button.textContent = "Continue";
    this.update();
  }

  generate() {
    if (this.generating) {
      this.stop();
      return;
    }
    const { view: { temperature, topK, tokens: most }, session, input } = this;
    const before = input.value;
    const prompt = session.prompt(before);
    const made = [];
    this.generating = true;
    this.button.textContent = "Stop";
    const began = performance.now();
    const finish = () => {
      const rate = made.length / ((performance.now() - began) / 1000);
      this.root.dataset.rate = rate.toFixed(1);
      this.stop();
    };
    this.run(++this.turn, session.generating(before, { temperature, topK, most }), finish, (step) => {
      if (step === null || step.id === this.task.end) return;
      made.push(step.id);
      input.value = before + session.continuation(prompt, made);
      input.scrollTop = input.scrollHeight;
    });
  }

  // ---------------------------------------------------------------- drawing

  show() {
    if (this.view.answer === null) return;
    this.showResult();
    this.showWindows();
    this.showInside();
  }

  showResult() {
    this.result.replaceChildren(...liveResult(this.view, this.texts(), (id) => this.append(id)));
  }

  // The window whose tokens and attention are shown.
  shown() {
    const { answer, window } = this.view;
    return { ...answer, ...answer.windows[window] };
  }

  showWindows() {
    const { answer, window } = this.view;
    this.windows.hidden = answer.windows.length < 2;
    if (this.windows.hidden) return;
    const names = answer.windows.map((_, n) => [n, `${n + 1} of ${answer.windows.length}`]);
    this.windows.replaceChildren(selector("Window", names, window, (value) => { this.view.window = value; this.showInside(); }));
  }

  showInside() {
    const { view } = this;
    const shown = this.shown();
    if (view.chosen !== null && view.chosen >= shown.ids.length) view.chosen = null;
    liveTokens(this.tokens, view, shown, (place) => {
      view.chosen = view.chosen === place ? null : place;
      this.showInside();
    });
    this.showPanel();
  }

  showPanel() {
    const { view, panels, session, data } = this;
    const shown = this.shown();
    if (this.shape) this.shape.hidden = view.panel === "walk";
    if (view.panel !== "walk") {
      this.walkBox = null;
      if (data.spec.kind === "transformer") liveAttention(panels, view, shown, (layer, head) => this.choose(layer, head));
      else liveStates(panels, view, shown);
      return;
    }
    if (shown.ids.length > LIVE_WALKED) {
      this.walkBox = null;
      panels.replaceChildren(el("p", { class: "note", text: `A walk shows texts of up to ${LIVE_WALKED} tokens; this one has ${shown.ids.length}.` }));
      return;
    }
    if (!this.walkBox) {
      this.walkBox = el("div", { class: "live-walk" });
      const hint = data.spec.kind === "recurrent" ? "One step of the network at the chosen token, or else at the last one." : "Every step of one head with the numbers of this text; they change as you type.";
      panels.replaceChildren(el("p", { class: "note", text: hint }), this.walkBox);
    }
    const names = shown.ids.map((id) => liveVisible(session.tokenizer.shown(id)));
    walk(this.walkBox, liveWalk(session, shown, names, { layer: view.layer, head: view.head, place: view.chosen, temperature: view.temperature, topK: view.topK }));
  }
}

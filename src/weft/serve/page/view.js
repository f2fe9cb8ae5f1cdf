// One tab at work: its controls, the text box, the answer below, and the requests that were made for it.

import { el, hideTooltip, selector, slider, withThemeListeners } from "/static/picture/base.js";
import { ServerError, ask, pause, stream } from "./api.js";
import { CodePanel } from "./code.js";
import { Composer } from "./composer.js";
import { button, message, seconds as shownSeconds } from "./parts.js";
import { keep, kept } from "./state.js";

/**
 * What a tab is.
 * @typedef {object} Tab
 * @property {string} id of the address
 * @property {string} name
 * @property {string} about one line below the tabs
 * @property {(model: object) => boolean} serves whether a model of the server can do it
 * @property {{key: string, label: string, placeholder: string, rows?: number, hint?: string}} box the text box here
 * @property {{key: string, label: string, placeholder: string, rows?: number, below?: boolean, when?: (model: object) => boolean}[]} [fields]
 * @property {(model: object) => {name: string, text: string, fields?: Record<string, string>}[]} examples
 * @property {(view: View) => Node[]} [controls]
 * @property {(view: View) => string} [missing] what is still to be typed; "": nothing
 * @property {(view: View) => Promise<void>} run asks the server and shows the answer
 * @property {string[]} [made] tasks of the models that come first here
 * @property {string} [unit] what the server counts, where that is not tokens
 * @property {number} [wait] seconds without a key before a request is made
 * @property {boolean} [manyTexts] an answer is about several texts, of which it counts only the first
 * @property {string} [empty] what a person will see here
 */

const WAIT = 0.25;
const SLOW = 0.25; // seconds after which the page says that it is waiting

export class View {
  /** @param {{onFacts: (facts: object | null) => void, onPlace: (tab: string, model: string) => void}} on */
  constructor(on) {
    this.on = on;
    this.settings = {};
    this.composer = new Composer({
      input: () => this.typed(), accept: () => this.tab.accept?.(this), word: () => this.tab.acceptWord?.(this),
      turn: (step) => this.tab.turn?.(this, step), dismiss: () => this.composer.setGhost(""),
    });
    this.about = el("p", { class: "about" });
    this.bar = el("div", { class: "controls" });
    this.above = el("div", { class: "fields" });
    this.below = el("div", { class: "fields" });
    this.examples = el("div", { class: "examples", role: "group", "aria-label": "Examples" });
    this.progress = el("div", { class: "progress", hidden: true }, el("span"));
    this.notice = el("div", { class: "notice" });
    this.output = el("div", { class: "output" });
    this.status = el("p", { class: "visually-hidden", role: "status" });
    this.code = new CodePanel();
    this.node = el("section", { id: "panel", role: "tabpanel", tabindex: -1 },
      this.about, this.bar, this.above, this.composer.node, this.below, this.examples, this.progress, this.notice, this.output, this.code.node, this.status);
    addEventListener("online", () => this.start(0));
  }

  // ------------------------------------------------------------------------------------------------------- its state

  get text() {
    return this.composer.text;
  }

  get model() {
    return this.chosen;
  }

  field(key) {
    return this.inputs[key]?.value ?? "";
  }

  setting(name, usual) {
    return kept(`setting.${this.tab.id}.${name}`, usual);
  }

  set(name, value, { again = true } = {}) {
    keep(`setting.${this.tab.id}.${name}`, value);
    if (again) this.start(WAIT);
  }

  // ---------------------------------------------------------------------------------------------------------- opening

  /** Show a tab with the models that serve it. */
  open(tab, models, wanted = "") {
    this.stop();
    this.tab?.close?.(this);
    this.forget?.();
    this.tab = tab;
    this.models = [...models].sort((a, b) => this.rank(a) - this.rank(b)); // a stable sort
    const name = wanted || kept(`model.${tab.id}`, "");
    this.chosen = models.find((model) => model.id === name) ?? this.models[0];
    this.node.setAttribute("aria-labelledby", `tab-${tab.id}`);
    this.about.textContent = tab.about;
    this.composer.describe(tab.box);
    this.composer.text = kept(`text.${tab.box.key}`, "");
    this.code.show([]);
    this.output.replaceChildren();
    this.output.className = `output on-${tab.id}`;
    this.build();
    this.start(0);
  }

  /** Models that were made for the tab come before those that can do it too, in the order of `made`. */
  rank(model) {
    const { made = [] } = this.tab;
    return made.includes(model.task) ? made.indexOf(model.task) : made.length;
  }

  /** The controls, fields and examples of the tab for the chosen model. */
  build() {
    const { tab, chosen } = this;
    const picker = this.models.length > 1
      ? selector("Model", this.models.map((model) => [model.id, model.id]), chosen.id, (id) => this.pick(id))
      : el("span", { class: "control" }, "Model", el("strong", { text: chosen.id }));
    picker.classList.add("picker");
    this.bar.replaceChildren(picker, ...(tab.controls?.(this) ?? []));
    this.inputs = {};
    const fields = (tab.fields ?? []).filter((field) => field.when?.(chosen) ?? true);
    for (const [place, below] of [[this.above, false], [this.below, true]]) {
      place.replaceChildren(...fields.filter((field) => Boolean(field.below) === below).map((field) => this.fieldOf(field)));
    }
    const examples = tab.examples(chosen);
    this.examples.replaceChildren(el("span", { text: "Try" }), ...examples.map((example) => button(example.name, () => this.fill(example))),
      button("Clear", () => this.fill({ text: "", fields: {} }), { class: "clear" }));
    this.on.onPlace(tab.id, this.models.length > 1 ? chosen.id : "");
  }

  /** Build the controls again after one of them has changed which there are; the focus stays on the same one. */
  rebuild() {
    const pressed = [...this.bar.querySelectorAll("button")].indexOf(document.activeElement);
    this.build();
    this.bar.querySelectorAll("button")[pressed]?.focus();
    this.start(0);
  }

  fieldOf({ key, label, placeholder, rows = 1 }) {
    const id = `field-${key}`;
    const shared = { id, placeholder, autocomplete: "off", on: { input: () => { keep(`field.${key}`, this.inputs[key].value); this.typed(); } } };
    const input = rows > 1 ? el("textarea", { ...shared, rows }) : el("input", { ...shared, type: "text" });
    input.value = kept(`field.${key}`, "");
    this.inputs[key] = input;
    return el("div", { class: "field" }, el("label", { for: id, text: label }), input);
  }

  pick(id) {
    this.chosen = this.models.find((model) => model.id === id);
    keep(`model.${this.tab.id}`, id);
    this.build();
    this.bar.querySelector("select")?.focus();
    this.start(0);
  }

  fill({ text, fields = {} }) {
    this.composer.text = text;
    keep(`text.${this.tab.box.key}`, text);
    for (const [key, input] of Object.entries(this.inputs)) {
      input.value = fields[key] ?? "";
      keep(`field.${key}`, input.value);
    }
    const caret = text.length > 1000 ? 0 : text.length; // the beginning of a long text is what tells it apart
    if (matchMedia("(hover: hover)").matches) this.composer.field.focus(); // on a telephone the keyboard would cover the answer
    this.composer.field.setSelectionRange(caret, caret);
    if (!caret) this.composer.field.scrollTop = 0;
    this.start(0);
  }

  /** A slider whose value is kept with the tab. */
  slider(name, label, options) {
    return slider(label, { ...options, value: this.setting(name, options.value) }, (value) => this.set(name, value));
  }

  // ---------------------------------------------------------------------------------------------------------- running

  typed() {
    keep(`text.${this.tab.box.key}`, this.text);
    this.start(this.tab.wait ?? WAIT);
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.wait(false);
    hideTooltip();
  }

  /** Ask again after so many seconds, unless something changes before. */
  async start(delay) {
    this.stop();
    const running = new AbortController();
    this.running = running;
    this.signal = running.signal;
    this.become("busy");
    try {
      await pause(delay, running.signal);
      this.notice.replaceChildren();
      const missing = this.tab.missing ? this.tab.missing(this) : this.text.trim() ? "" : (this.tab.empty ?? "Type or paste a text, or try an example.");
      if (missing) return this.idle(missing);
      this.requests = [];
      this.slow = setTimeout(() => this.wait(true), 1000 * SLOW);
      await this.tab.run(this);
      this.done(running);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (running !== this.running) return;
      this.wait(false);
      this.fail(error);
      if (!(error instanceof ServerError)) throw error; // a mistake of the page: it belongs into the console
    }
  }

  /** What the panel is at: "busy" from the first key on, then "idle", "done" or "failed". */
  become(state) {
    this.node.dataset.state = state;
  }

  done(running) {
    if (running !== this.running) return;
    this.become("done");
    this.wait(false);
    this.notice.replaceChildren();
  }

  wait(on) {
    clearTimeout(this.slow);
    this.progress.hidden = !on;
    this.output.classList.toggle("stale", on);
    this.output.setAttribute("aria-busy", String(on));
    if (on) this.dropHint();
  }

  /** There is a text, and it will be answered: what is still to be typed says so no longer. */
  dropHint() {
    this.output.querySelector(":scope > .message.empty")?.remove();
  }

  idle(text) {
    this.become("idle");
    this.clear();
    this.output.replaceChildren(message("empty", text));
    this.code.show([]);
    this.on.onFacts(null);
  }

  clear() {
    this.forget?.();
    this.forget = null;
    this.composer.setGhost("");
  }

  fail(error) {
    const again = button("Try again", () => this.start(0));
    const [title, detail] = explained(error);
    this.become("failed");
    this.clear();
    this.output.replaceChildren();
    this.code.show(this.requests ?? []);
    this.notice.replaceChildren(message("error", title, detail, ...(error.status === 422 || error.status === 413 ? [] : [again])));
  }

  /** Count the seconds down to the next attempt. */
  onWait({ error, seconds, now }) {
    const { signal } = this;
    let until = performance.now() + 1000 * seconds;
    const text = () => {
      const left = Math.ceil((until - performance.now()) / 1000);
      return `${waiting(error)} Trying again ${left > 0 ? `in ${left} s.` : "now …"}`;
    };
    const box = message("waiting", text(), "", button("Try now", (event) => {
      event.target.disabled = true;
      until = performance.now();
      box.firstChild.textContent = text();
      now();
    }));
    this.notice.replaceChildren(box);
    this.dropHint();
    this.status.textContent = text();
    const timer = setInterval(() => {
      if (signal.aborted || performance.now() > until || !box.isConnected) clearInterval(timer);
      if (signal.aborted) box.remove();
      else box.firstChild.textContent = text(); // it stays until there is an answer, or the next wait
    }, 250);
  }

  // ----------------------------------------------------------------------------------------------------- for the tabs

  /** Make a request; it is shown as code, and its answer in the footer unless it is a minor one. */
  async post(route, body, { minor = false } = {}) {
    this.note(route, body, minor);
    const { signal } = this;
    const { reply, timings, seconds } = await ask(route, body, { signal, onWait: (wait) => this.onWait(wait) });
    signal.throwIfAborted();
    if (!minor) this.facts(reply, timings, seconds);
    return reply;
  }

  async *stream(route, body) {
    this.note(route, { ...body, stream: true });
    yield* stream(route, body, { signal: this.signal, onWait: (wait) => this.onWait(wait) });
  }

  note(route, body, minor = false) {
    this.requests.push({ route, body, minor });
    this.code.show([...this.requests]);
  }

  /** What the footer says of the last answer. */
  facts(reply, timings, seconds) {
    const answers = reply.answers ?? [];
    const sum = (name) => answers.reduce((total, answer) => total + (answer[name] ?? 0), 0);
    this.on.onFacts({
      model: reply.model ?? this.model.id, version: reply.version ?? this.model.version,
      unit: this.tab.unit ?? "token",
      read: answers.length && !this.tab.manyTexts ? sum("n_tokens") : reply.usage?.prompt_tokens, written: reply.usage?.completion_tokens,
      windows: this.tab.manyTexts ? 0 : sum("n_windows"), truncated: answers.some((answer) => answer.truncated), timings, seconds,
    });
  }

  /** Replace the answer; `draw` then fills what has to know its size. Components that are made are freed with it. */
  show(build, draw = () => {}) {
    this.forget?.();
    this.forget = withThemeListeners(() => {
      this.output.replaceChildren(...build().filter(Boolean));
      draw();
    });
    this.notice.replaceChildren();
  }

  /** What a screen reader says when the answer is there. */
  say(text) {
    this.status.textContent = text;
  }
}

function waiting(error) {
  if (error.status === 429) return "The server is busy.";
  if (error.status === 503) return "The model is starting again.";
  return "The server does not answer.";
}

/** A title and a detail for an error. */
function explained(error) {
  if (!(error instanceof ServerError)) return ["Something went wrong in this page.", String(error.message ?? error)];
  const own = /^(input|prompt)\b/.test(error.param ?? ""); // what was typed: its name in the request says nothing more
  const where = error.param && !own && !error.message.includes(error.param) ? ` (${error.param})` : "";
  const titles = {
    0: "The server does not answer.", 401: "The API key is wrong.", 404: "The server does not have this model.", 413: "This is more than the server takes at once.",
    422: "The model cannot answer this.", 429: "The server is busy.", 503: "The model is not available now.", 504: `The model needed too long${error.wait ? `: more than ${shownSeconds(error.wait)}` : ""}.`,
  };
  const detail = `${error.message.replace(/^((input|prompt)[\w.[\]]*:?|(input|prompt|question|text) \d+:) /, "")}${where}`;
  return [titles[error.status] ?? `The server answered with an error (${error.status}).`, detail.charAt(0).toUpperCase() + detail.slice(1)];
}

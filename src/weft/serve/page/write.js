// Write: continuations while one types, as gray text behind the caret and as three alternatives, and the next words that
// several models expect.

import { el, hideTooltip, keys, tooltip } from "/static/picture/base.js";
import { wordBars } from "/static/picture/word-bars.js";
import { ServerError } from "./api.js";
import { button, percent } from "./parts.js";

const ALTERNATIVES = 3;
const MODELS = 4; // whose next words stand side by side
const WORDS = 8;
const SURPRISING = Math.log(0.001); // the log-probability from which a token has the full tint, in percent:
const TINT = 32;
const LOGPROBS = 4; // other tokens that a tooltip names
const LETTER = /[\p{L}\p{N}'’]$/u;

/** What has been written for one alternative so far. */
class Continuation {
  constructor() {
    this.text = "";
    this.tokens = []; // {text, logprob, others: [[text, logprob]]}
    this.reason = null;
  }

  add({ text, logprobs, finish_reason: reason }) {
    this.text += text ?? "";
    (logprobs?.tokens ?? []).forEach((token, n) => {
      const others = Object.entries(logprobs.top_logprobs?.[n] ?? {}).filter(([other]) => other !== token).sort((a, b) => b[1] - a[1]);
      this.tokens.push({ text: token, logprob: logprobs.token_logprobs[n], others });
    });
    this.reason = reason ?? this.reason;
  }
}

function quoted(text) {
  return `“${text.replaceAll("\n", "⏎")}”`;
}

function tokenTip({ text, logprob, others }) {
  return [`${quoted(text)}  ${percent(Math.exp(logprob))}`, ...others.slice(0, LOGPROBS).map(([other, value]) => `${quoted(other)}  ${percent(Math.exp(value))}`)].join("\n");
}

/** A continuation as a button: pressed, it is taken; its tokens show their probabilities to the mouse and the arrow keys. */
function card(view, continuation, number, typed) {
  const whole = continuation.tokens.map((token) => token.text).join("");
  const tokens = continuation.tokens.slice(Math.max(0, continuation.tokens.findIndex((token) => token.text.trim()))); // nobody can point at a space
  const spans = whole.trimEnd() === continuation.text.trimEnd() && whole
    ? tokens.map((token, n) => {
      const node = el("span", { class: "token", text: n ? token.text : token.text.trimStart(), on: { pointermove: (event) => tooltip(event, tokenTip(token)), pointerleave: hideTooltip } });
      node.style.setProperty("--share", `${Math.round(TINT * Math.min(1, token.logprob / SURPRISING))}%`);
      return node;
    })
    : [continuation.text.trimStart()];
  const ended = continuation.reason === "stop" && el("span", { class: "ended", text: " end of the text" });
  const node = el("button", { type: "button", class: "continuation", "aria-label": `Continuation ${number + 1}: ${continuation.text}`, on: { click: () => view.composer.append(continuation.text) } },
    el("span", { class: "number", "aria-hidden": "true", text: String(number + 1) }), el("span", { class: "words", "data-typed": typed }, spans, ended));
  let at = -1;
  const step = (by) => () => {
    if (!tokens.length) return;
    at = Math.min(tokens.length - 1, Math.max(0, at + by));
    spans.forEach((span, n) => span.classList?.toggle("marked", n === at));
    tooltip({ target: spans[at] }, tokenTip(tokens[at]));
  };
  keys(node, { ArrowRight: step(1), ArrowLeft: step(-1) });
  node.addEventListener("blur", () => { hideTooltip(); spans[at]?.classList?.remove("marked"); at = -1; });
  return node;
}

/** Next words of several models as the table component takes them. */
function sideBySide(replies) {
  const columns = replies.map(({ words }) => new Map(words.map((word) => [word.text || "(end)", word.probability])));
  const all = [...new Set(replies.flatMap(({ words }) => words.slice(0, WORDS).map((word) => word.text || "(end)")))];
  const total = (word) => columns.reduce((sum, column) => sum + (column.get(word) ?? 0), 0);
  const words = all.sort((a, b) => total(b) - total(a)).slice(0, WORDS);
  return { words, models: replies.map(({ model }) => model), values: words.map((word) => columns.map((column) => column.get(word) ?? null)) };
}

/** Put a suggested word at the end of the text: the rest of a half-typed one, else with a space before it. */
function takeWord(view, word, completes) {
  if (word === "(end)") return;
  const { text } = view;
  if (completes) view.composer.append(word.slice(completes.length));
  else view.composer.append(text && !/\s$/.test(text) && LETTER.test(word) ? ` ${word}` : word);
}

class Writing {
  constructor(view) {
    this.view = view;
    this.chosen = 0;
    this.choices = Array.from({ length: view.setting("temperature", 0.8) > 0 ? ALTERNATIVES : 1 }, () => new Continuation());
    this.list = el("div", { class: "continuations" });
    this.words = el("div", { class: "next-words" });
    this.hint = el("p", { class: "note" }, "Press one to take it. Tinted words surprised the model more.",
      el("span", { class: "with-keys", text: " Point at a word, or use ← and →, to see its probability." }));
    this.typed = ""; // the beginning of a word that the continuations end
    this.shown = false;
  }

  show() {
    if (this.shown) return;
    this.shown = true;
    this.view.show(() => [el("section", {}, el("h2", { text: "Continuations" }), this.list, this.hint), this.words]);
  }

  /** Draw once per frame at most, however fast tokens come. */
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.view.writing !== this) return;
      this.show();
      this.view.composer.setGhost(this.choices[this.chosen].text);
      if (this.list.contains(document.activeElement) || this.list.matches(":hover")) return this.later();
      this.list.replaceChildren(...this.choices.map((choice, n) => (choice.text || choice.reason ? card(this.view, choice, n, this.typed) : el("div", { class: "continuation waiting" }, el("span", { class: "number", text: String(n + 1) }), el("span", { class: "words", text: "…" })))));
    });
  }

  /** What somebody points at is not replaced under the mouse before it has all come. */
  later() {
    if (this.choices.every((choice) => choice.reason)) {
      this.list.replaceChildren(...this.choices.map((choice, n) => card(this.view, choice, n, this.typed)));
    }
  }

  /** The next words of a model; none where it has none to give. */
  async suggest(model) {
    const { view } = this;
    try {
      const { answers: [answer] } = await view.post("/v1/suggest", { model: model.id, input: view.text, top: 50 }, { minor: true });
      return { model: model.id, words: answer.words, completes: answer.words.length ? answer.completes : "" };
    } catch (error) {
      if (!(error instanceof ServerError) || (model === view.model && error.status !== 422)) throw error;
      return { model: model.id, words: [], completes: "" };
    }
  }

  /** The next words of several models side by side; the first reply is that of the chosen model. */
  compare(replies) {
    const completes = replies[0]?.completes;
    const usable = replies.filter((reply) => reply.words.length && reply.completes === completes);
    if (!usable.length) return;
    const root = el("div");
    wordBars(root, sideBySide(usable), (word) => takeWord(this.view, word, completes));
    this.words.replaceChildren(el("section", {}, el("h2", { text: completes ? `Words that begin with “${completes}”` : "Next words" }), root));
    this.show();
  }

  async write(typed) {
    const { view } = this;
    this.typed = typed; // after a space too, the model begins with a word: most vocabularies join the space to it
    const temperature = view.setting("temperature", 0.8);
    const started = performance.now();
    const body = {
      model: view.model.id, prompt: view.text, max_tokens: view.setting("length", 24), temperature, n: this.choices.length, logprobs: LOGPROBS,
      seed: view.seed ?? 0, slide: true, ...(typed || view.text.endsWith(" ") ? { complete_word: true } : {}), stream_options: { include_usage: true },
    };
    let usage = null;
    for await (const event of view.stream("/v1/completions", body)) {
      usage = event.usage ?? usage;
      for (const choice of event.choices ?? []) this.choices[choice.index]?.add(choice);
      this.draw();
    }
    view.facts({ model: view.model.id, version: view.model.version, usage }, {}, (performance.now() - started) / 1000);
    view.say(`Continuation: ${this.choices[0].text}`);
  }
}

/** @type {import("./view.js").Tab} */
export const write = {
  id: "write",
  name: "Write",
  about: "The model goes on as you type.",
  serves: (model) => model.tasks.includes("complete"),
  wait: 0.2,
  box: { key: "shared", label: "Text", placeholder: "Begin a sentence …", rows: 5, hint: "Tab takes the gray text, → one word of it. Alt ↓ shows the next of three." },
  examples: () => [
    { name: "A beginning", text: "The prince looked at her and" }, { name: "Half a word", text: "They rode to the ci" }, { name: "A scene", text: "“What shall we do?” asked Natásha," },
  ],
  controls: (view) => [
    view.slider("temperature", "Temperature", { min: 0, max: 2, step: 0.1, value: 0.8 }),
    view.slider("length", "Tokens", { min: 4, max: 96, step: 4, value: 24 }),
    button("Try others", () => { view.seed = (view.seed ?? 0) + ALTERNATIVES; view.start(0); }, { title: "Write other continuations" }),
  ],
  async run(view) {
    const writing = new Writing(view);
    view.writing = writing;
    const models = [view.model, ...view.models.filter((model) => model !== view.model)].filter((model) => model.tasks.includes("suggest")).slice(0, MODELS);
    const written = LETTER.test(view.text) ? null : writing.write(""); // before the next words, which take longer
    const replies = models[0] === view.model ? models.map((model) => writing.suggest(model)) : [];
    const completed = written ?? Promise.resolve(replies[0]).then((reply) => writing.write(reply?.completes ?? "")); // whether the last word is half-typed, the model has to say
    await Promise.all([Promise.all(replies).then((all) => writing.compare(all)), completed]);
  },
  accept(view) {
    view.composer.append(view.composer.ghost);
  },
  acceptWord(view) {
    const { ghost } = view.composer;
    const word = ghost.match(/^\s*\S+/)?.[0] ?? ghost;
    view.composer.append(word);
    view.composer.setGhost(ghost.slice(word.length));
  },
  turn(view, step) {
    const { writing } = view;
    if (!writing) return;
    writing.chosen = (writing.chosen + step + writing.choices.length) % writing.choices.length;
    view.composer.setGhost(writing.choices[writing.chosen].text);
  },
};

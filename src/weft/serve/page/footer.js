// What the page says at its end: where texts go, and how the last answer was made.

import { el } from "/static/picture/base.js";
import { count, seconds } from "./parts.js";

const STAGES = { queue: "waiting", tokenize: "tokenizing", model: "model", post: "finishing" };
const HERE = /^(localhost|127(\.\d+){3}|\[::1\])$/;

/** Where texts go: this page asks the server that it came from, and nobody else. */
export function ground() {
  return HERE.test(location.hostname)
    ? "Your texts never leave this machine: the models run here, and the page talks to nothing else."
    : `Your texts go to the server ${location.host} and nowhere else.`;
}

/** The line about the last answer; nothing before there is one. */
export function describeAnswer(facts) {
  if (!facts) return [];
  const stages = Object.entries(STAGES).filter(([name]) => facts.timings[name] >= 0.0005).map(([name, text]) => `${text} ${seconds(facts.timings[name])}`);
  const parts = [
    el("strong", { text: facts.model }),
    facts.version && el("span", {}, "version ", el("code", { text: facts.version })),
    facts.read > 0 && el("span", { text: `${count(facts.read, facts.unit)}${facts.written ? ` read, ${facts.written.toLocaleString("en-US")} written` : ""}` }),
    facts.windows > 1 && el("span", { text: count(facts.windows, "window") }),
    facts.truncated && el("span", { class: "cut", text: "the text was cut to fit" }),
    el("span", { title: stages.join(", "), text: `${seconds(facts.seconds)}${stages.length ? ` (${stages.join(", ")})` : ""}` }),
  ].filter(Boolean);
  return parts;
}

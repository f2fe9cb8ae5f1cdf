// Translate, summarize, rewrite: a text in, another out, and which words came from which.

import { el, keys } from "/static/picture/base.js";
import { copyButton, percent } from "./parts.js";

const STRONG = 0.5; // of the largest weight of a row: what is marked strongly

const SPECIAL = /^(<.*>|\[[A-Z]+\])$/; // begin, end and the like

/** The byte that each letter of a byte-level vocabulary stands for: those that print are themselves, the others follow. */
function byteOfLetter() {
  const printed = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  const bytes = new Map();
  let others = 256;
  for (let byte = 0; byte < 256; byte++) bytes.set(String.fromCodePoint(printed(byte) ? byte : others++), byte);
  return bytes;
}

/** What the tokens of a byte-level vocabulary add to the text, one by one; null: they are none. */
function byteTexts(tokens) {
  const bytes = byteOfLetter();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const letters = tokens.map((token) => (SPECIAL.test(token) ? [] : [...token].map((letter) => bytes.get(letter))));
  if (letters.flat().includes(undefined)) return null;
  return letters.map((each, n) => decoder.decode(new Uint8Array(each), { stream: n < tokens.length - 1 }));
}

/**
 * Tokens as people read them, without marks of the vocabulary: `space` says whether one stands before it.
 * @returns {{text: string, space: boolean}[]}
 */
export function tokenTexts(tokens, text) {
  const pieces = byteTexts(tokens);
  if (pieces?.join("").trim() === text.trim()) return pieces.map((piece, n) => ({ text: piece.trimStart() || piece.slice(1), space: n > 0 && piece.startsWith(" ") }));
  const plain = (token) => (SPECIAL.test(token) ? "" : token.replace(/^([Ġ▁]|##|@@)/, "").replace(/(@@|<\/w>)$/, "").replaceAll("Ċ", "\n"));
  const marked = tokens.some((token) => /^[Ġ▁]/.test(token)); // the mark of a space; else tokens are words, parts of words or letters
  const letters = !marked && tokens.map(plain).join("") === text.trim();
  return tokens.map((token, n) => {
    const begins = marked ? /^[Ġ▁]/.test(token) : !letters && !/^(##|@@)/.test(token) && !tokens[n - 1]?.endsWith("@@");
    return { text: plain(token), space: n > 0 && begins };
  });
}

/** The weights of each source token for each target token, the other way round. */
function turned(rows, columns) {
  return Array.from({ length: columns }, (_, column) => rows.map((row) => row[column] ?? 0));
}

function strip(label, tokens, classes) {
  const nodes = tokens.map(({ text }, n) => el("span", { class: `aligned${text ? "" : " none"}`, "data-token": n, text }));
  const parts = nodes.flatMap((node, n) => [tokens[n].space && tokens[n].text ? " " : "", node]);
  const line = el("div", { class: `strip ${classes}`, tabindex: 0, role: "group", "aria-label": `${label}. Arrow keys go from token to token.` }, parts);
  return { line, nodes };
}

/** Source above target; what is pointed at in one marks where it came from, or what it became, in the other. */
export function alignmentView(answer, text) {
  const source = strip("Source", tokenTexts(answer.source_tokens, text), "source");
  const target = strip("Result", tokenTexts(answer.target_tokens, answer.text), "target");
  const byTarget = answer.alignments;
  const bySource = turned(byTarget, source.nodes.length);
  const caption = el("p", { class: "note", "aria-live": "polite" });
  const usual = "Point at a word, or use ← and →, to see where it came from or what it became.";

  function clear() {
    for (const node of [...source.nodes, ...target.nodes]) {
      node.classList.remove("chosen", "strong");
      node.style.removeProperty("--share");
    }
    caption.textContent = usual;
  }

  function point(own, other, rows, number) {
    clear();
    const row = rows[number];
    if (!row) return;
    const largest = Math.max(1e-9, ...row);
    own.nodes[number].classList.add("chosen");
    other.nodes.forEach((node, n) => {
      const share = (row[n] ?? 0) / largest;
      node.style.setProperty("--share", `${Math.round(55 * share)}%`);
      node.classList.toggle("strong", share > STRONG);
    });
    const best = row.indexOf(largest);
    const name = (node) => node.textContent || "end";
    caption.textContent = best < 0 ? usual : `“${name(own.nodes[number])}” and “${name(other.nodes[best])}”: ${percent(row[best])}`;
  }

  for (const [own, other, rows] of [[source, target, bySource], [target, source, byTarget]]) {
    let at = -1;
    own.line.addEventListener("pointerover", (event) => {
      const node = event.target.closest("[data-token]");
      if (node) point(own, other, rows, Number(node.dataset.token));
    });
    own.line.addEventListener("pointerleave", clear);
    own.line.addEventListener("blur", () => { at = -1; clear(); });
    const step = (by) => () => {
      at = Math.min(own.nodes.length - 1, Math.max(0, at + by));
      point(own, other, rows, at);
    };
    keys(own.line, { ArrowRight: step(1), ArrowLeft: step(-1), Escape: clear });
  }
  clear();
  return el("section", { class: "alignment" }, el("h2", { text: "Alignment" }), source.line, target.line, caption);
}

function tabOf(id, name, about, examples) {
  return {
    id,
    name,
    about,
    serves: (model) => model.tasks.includes(id),
    wait: 0.4,
    box: { key: "shared", label: "Text", placeholder: "Type or paste a text", rows: 4 },
    examples: () => examples,
    controls: (view) => [view.slider("beam", "Beam", { min: 1, max: 10, step: 1, value: 5 })],
    async run(view) {
      const beam = view.setting("beam", 5);
      const body = { model: view.model.id, input: view.text, beam_size: beam, n: Math.min(3, beam), alignments: true };
      const { answers: [answer] } = await view.post(`/v1/${id}`, body);
      const others = (answer.best ?? []).slice(1).map((each) => each.text).filter((text, n, all) => text !== answer.text && all.indexOf(text) === n);
      view.show(() => [
        el("div", { class: "result-text" }, el("p", { text: answer.text, lang: "" }), copyButton(() => answer.text)),
        answer.alignments?.length && answer.source_tokens.length && alignmentView(answer, view.text),
        others.length > 0 && el("section", {}, el("h2", { text: "Other results" }), el("ol", { class: "others" }, others.map((text) => el("li", { text })))),
      ]);
      view.say(answer.text);
    },
  };
}

/** @type {import("./view.js").Tab} */
export const translate = tabOf("translate", "Translate", "What the model writes for a text, and which words came from which.", [
  { name: "Hello", text: "Good morning. How are you?" }, { name: "A question", text: "Where is the station?" }, { name: "A wish", text: "I would like to learn to play the piano." },
]);
export const summarize = tabOf("summarize", "Summarize", "A short text for a long one.", [
  { name: "News", text: "The city council met on Tuesday to discuss the new bridge. After four hours of debate, the members agreed to open it in May, two months later than planned." },
]);
export const rewrite = tabOf("rewrite", "Rewrite", "The same text in other words.", [
  { name: "A sentence", text: "she dont like going their on sundays" },
]);

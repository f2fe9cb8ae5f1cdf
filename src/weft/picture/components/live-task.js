// A text in, what the model says of it out: tokens, labels, tags, words for gaps, the next word.

import { LiveModel, liveSoftmax } from "./live-model.js";
import { LiveTokenizer } from "./live-tokenizer.js";

export class LiveSession {
  constructor(data) {
    this.data = data;
    this.task = data.task;
    this.tokenizer = new LiveTokenizer(data.tokenizer);
    this.model = new LiveModel(data);
    if (this.task.kind === "tags") {
      const inside = (name) => ({ name, negated: false, inside: true });
      const word = { name: "python-w", negated: false, inside: false };
      const marks = "[\\u{300}-\\u{36f}\\u{900}-\\u{dff}\\u{200c}\\u{200d}]+";
      const parts = [word, `+(?:${marks}`, word, "*)*|[^", inside("python-w"), inside("python-s"), "]"];
      this.words = this.tokenizer.tables.regex(parts);
    }
  }

  // {ids, offsets, sides, left}: what the model reads; side 0, 1 or null of special tokens; left: tokens that do not fit.
  framed(text, second = null) {
    const { frame, kind } = this.task;
    const first = this.tokenizer.encode(text);
    if (second !== null) {
      const other = this.tokenizer.encode(second);
      const [before, between, after] = frame.pair;
      const room = frame.length - before.length - between.length - after.length;
      const parts = this.pairParts(first.ids.length, other.ids.length, room);
      const left = first.ids.length + other.ids.length - parts[0] - parts[1];
      const a = first.ids.slice(0, parts[0]);
      const b = other.ids.slice(0, parts[1]);
      const none = (tokens) => tokens.map(() => null);
      const ids = [...before, ...a, ...between, ...b, ...after];
      const border = before.length + a.length + between.length;
      return {
        ids,
        offsets: [...none(before), ...first.offsets.slice(0, a.length), ...none(between), ...other.offsets.slice(0, b.length), ...none(after)],
        sides: [...none(before), ...a.map(() => 0), ...none(between), ...b.map(() => 1), ...none(after)],
        segments: frame.segments ? ids.map((_, n) => (n < border ? 0 : 1)) : null,
        left,
      };
    }
    const { before } = frame;
    const after = kind === "next" ? [] : frame.after;
    const room = Math.max(1, frame.length - before.length - after.length);
    const left = Math.max(0, first.ids.length - room);
    const from = kind === "next" ? left : 0; // a language model goes on from the end of a text
    let own = first.ids.slice(from, from + room);
    let spans = first.offsets.slice(from, from + room);
    const empty = own.length === 0 && (kind === "next" ? before.length === 0 : true) && frame.nothing.length > 0;
    if (empty) {
      own = kind === "next" ? frame.nothing.slice() : frame.nothing.slice();
      spans = own.map(() => null);
    }
    return {
      ids: [...before, ...own, ...after],
      offsets: [...before.map(() => null), ...spans, ...after.map(() => null)],
      sides: [...before.map(() => null), ...own.map(() => (empty ? null : 0)), ...after.map(() => null)],
      segments: null,
      left,
    };
  }

  // Tokens of each text of a pair in its first window, as Weft cuts them.
  pairParts(first, second, room) {
    if (first + second <= room || first <= Math.floor(room / 2)) return [first, Math.min(second, Math.max(1, room - first))];
    if (second <= Math.floor(room / 2)) return [Math.min(first, room - second), second];
    return [Math.min(first, Math.floor(room / 2)), Math.min(second, Math.floor(room / 2))];
  }

  answer(text, second = null) {
    const framed = this.framed(text, this.task.pair ? second ?? "" : null);
    const read = this.model.read(framed.ids, framed.segments);
    const answer = { ...framed, read };
    switch (this.task.kind) {
      case "label":
        return { ...answer, ...this.label(read) };
      case "labels":
        return { ...answer, ...this.label(read), chosen: null };
      case "value":
        return { ...answer, value: this.model.labels(read)[0] * this.task.spread + this.task.center };
      case "tags":
        return { ...answer, ...this.tags(text, framed, read) };
      case "fill":
        return { ...answer, gaps: this.gaps(framed, read) };
      case "next":
        return { ...answer, logits: this.model.words(read, read.count - 1) };
    }
    throw new Error(`unknown task ${this.task.kind}`);
  }

  label(read) {
    const logits = this.model.labels(read);
    const several = this.task.kind === "labels";
    const probabilities = several ? Array.from(logits, (x) => 1 / (1 + Math.exp(-x))) : [...liveSoftmax(logits)];
    return { logits: [...logits], probabilities, best: probabilities.indexOf(Math.max(...probabilities)) };
  }

  gaps(framed, read) {
    const gaps = [];
    framed.ids.forEach((id, place) => {
      if (id === this.task.mask && framed.sides[place] === 0) gaps.push({ place, logits: this.model.words(read, place) });
    });
    return gaps;
  }

  // Of each word its span, and the best row of tags that the scheme allows.
  tags(text, framed, read) {
    const { task } = this;
    const count = task.labels.length;
    const logits = this.model.labels(read);
    const units = [...text]; // code points
    const places = new Map();
    let unit = 0;
    units.forEach((letter, n) => {
      places.set(unit, n);
      unit += letter.length;
    });
    places.set(unit, units.length);
    const words = [...text.matchAll(this.words)].map((match) => [places.get(match.index), places.get(match.index + match[0].length)]);
    const own = framed.offsets.map((span, place) => [span, place]).filter(([span]) => span !== null);
    let token = 0;
    const scores = words.map(([start, end]) => {
      while (token < own.length && own[token][0][1] <= start) token += 1;
      let there = token;
      while (there < own.length && own[there][0][0] < end && own[there][0][0] === own[there][0][1]) there += 1;
      const read = there < own.length && own[there][0][0] < end;
      return read ? Array.from(logits.subarray(own[there][1] * count, (own[there][1] + 1) * count)) : task.labels.map((label) => (label === "O" ? 1 : 0));
    });
    const path = liveTagPath(scores, task);
    const tagged = words.map(([start, end], n) => ({ start, end, tag: task.labels[path[n]], score: liveSoftmax(scores[n])[path[n]], logits: scores[n] }));
    return { words: tagged, spans: liveTagSpans(tagged, task.scheme) };
  }

  // The likeliest next tokens: {id, text, probability}.
  ranked(logits, top, temperature = 1) {
    const probabilities = liveSoftmax(logits, temperature);
    const order = Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
    return order.slice(0, top).map((id) => ({ id, text: this.tokenizer.shown(id), probability: probabilities[id] }));
  }

  // The next token: the best one at temperature 0, else drawn from the k likeliest.
  choose(logits, temperature, k, random = Math.random) {
    const never = new Set(this.task.never);
    const allowed = Float64Array.from(logits, (score, id) => (never.has(id) ? -Infinity : score));
    if (temperature === 0) {
      let best = 0;
      for (let id = 1; id < allowed.length; id++) if (allowed[id] > allowed[best]) best = id;
      return best;
    }
    let order = Array.from(allowed.keys()).sort((a, b) => allowed[b] - allowed[a] || a - b);
    if (k > 0) order = order.slice(0, k);
    const probabilities = liveSoftmax(order.map((id) => allowed[id]), temperature);
    let left = random();
    for (let n = 0; n < order.length; n++) {
      left -= probabilities[n];
      if (left < 0) return order[n];
    }
    return order[0];
  }

  // Tokens after a text, one at a time: {id, logits}; ends at the end token or where the context is full.
  *generate(text, { temperature = 0, topK = 0, most = 60, random = Math.random } = {}) {
    const ids = this.framed(text).ids;
    for (let n = 0; n < most && ids.length < this.data.spec.context; n++) {
      const read = this.model.read(ids);
      const logits = this.model.words(read, read.count - 1);
      const id = this.choose(logits, temperature, topK, random);
      yield { id, logits };
      if (id === this.task.end) return;
      ids.push(id);
    }
  }

  // What new tokens add to a text.
  continuation(prompt, generated) {
    const before = this.tokenizer.decode(prompt);
    const whole = this.tokenizer.decode([...prompt, ...generated]);
    return whole.startsWith(before) ? whole.slice(before.length) : this.tokenizer.decode(generated);
  }
}

// Viterbi: the path of the highest sum of scores among those that the scheme allows.
function liveTagPath(scores, { begins, ends, allowed }) {
  const best = scores.map((row) => row.indexOf(Math.max(...row)));
  if (!scores.length) return best;
  const fits = best.every((tag, n) => n === 0 || allowed[tag][best[n - 1]]);
  if (fits && begins[best[0]] && ends[best[best.length - 1]]) return best;
  let reached = scores[0].map((score, tag) => (begins[tag] ? score : -Infinity));
  const origins = [];
  for (const row of scores.slice(1)) {
    const from = row.map((_, tag) => {
      let origin = 0;
      let highest = -Infinity;
      reached.forEach((score, other) => {
        if (allowed[tag][other] && score > highest) [highest, origin] = [score, other];
      });
      return [highest, origin];
    });
    origins.push(from.map(([, origin]) => origin));
    reached = row.map((score, tag) => from[tag][0] + score);
  }
  reached = reached.map((score, tag) => (ends[tag] ? score : -Infinity));
  if (Math.max(...reached) === -Infinity) return best;
  const path = [reached.indexOf(Math.max(...reached))];
  for (const origin of origins.reverse()) path.unshift(origin[path[0]]);
  return path;
}

function liveTagSpans(words, scheme) {
  if (scheme === "plain") return [];
  const same = { L: "E", U: "S" };
  const spans = [];
  let [before, label, first] = ["O", "", 0];
  const close = (last) => {
    if (before !== "O") {
      const some = words.slice(first, last);
      spans.push({ start: some[0].start, end: some[some.length - 1].end, label, score: some.reduce((sum, word) => sum + word.score, 0) / some.length });
    }
  };
  words.forEach(({ tag }, n) => {
    const letter = tag === "O" ? "O" : same[tag[0]] ?? tag[0];
    const kind = tag === "O" ? "" : tag.slice(2) || "_";
    if (!("BI".includes(before) && "IE".includes(letter) && kind === label)) {
      close(n);
      first = n;
    }
    [before, label] = [letter, kind];
  });
  close(words.length);
  return spans;
}

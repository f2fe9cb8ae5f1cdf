// A text in, what the model says of it out: tokens, labels, tags, words for gaps, the next word.

import { LiveModel, liveDone, liveSoftmax } from "./live-model.js";
import { LiveTokenizer } from "./live-tokenizer.js";

const LIVE_ENDS = 20; // ends of an answer that are paired in a window
const LIVE_LONGEST_ANSWER = 30; // tokens

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

  // The windows of a text or a pair as Weft cuts them: {ids, offsets, sides, segments, lead, cut}. Offsets are of code
  // points; sides are 0, 1, or null for special tokens; lead: tokens before the text that is cut.
  windows(text, second = null) {
    const { frame, kind } = this.task;
    const first = this.tokenizer.encode(text);
    const none = (tokens) => tokens.map(() => null);
    const other = second === null ? { ids: [], offsets: [] } : this.tokenizer.encode(second);
    const [before, between, after] = second === null ? [frame.before, [], kind === "next" ? [] : frame.after] : frame.pair;
    const room = Math.max(1, frame.length - before.length - between.length - after.length);
    const part = ({ ids, offsets }, { start, end }, side) => ({ ids: ids.slice(start, end), offsets: offsets.slice(start, end), sides: ids.slice(start, end).map(() => side) });
    const whole = ({ ids }) => ({ start: 0, end: ids.length });
    const window = (one, two, ofFirst, cut) => {
      const [a, b] = [part(first, one, 0), part(other, two, 1)];
      const ids = [...before, ...a.ids, ...between, ...b.ids, ...after];
      const border = before.length + a.ids.length + between.length;
      return {
        ids,
        offsets: [...none(before), ...a.offsets, ...none(between), ...b.offsets, ...none(after)],
        sides: [...none(before), ...a.sides, ...none(between), ...b.sides, ...none(after)],
        segments: second !== null && frame.segments ? ids.map((_, n) => (n < border ? 0 : 1)) : null,
        lead: ofFirst ? before.length : border,
        cut,
      };
    };
    if (second === null && first.ids.length === 0 && frame.nothing.length && (kind !== "next" || before.length === 0)) {
      const ids = [...before, ...frame.nothing, ...after];
      return [{ ids, offsets: none(ids), sides: none(ids), segments: null, lead: before.length, cut: { start: 0, end: 0, first: 0, last: 0 } }];
    }
    if (kind === "next") { // a language model continues the end of a text
      const start = Math.max(0, first.ids.length - room);
      return [window({ start, end: first.ids.length }, whole(other), true, { start, end: first.ids.length, first: start, last: first.ids.length })];
    }
    if (kind === "fill") return this.gapCuts(first.ids, room).map((cut) => window(cut, whole(other), true, cut));
    if (second !== null && (first.ids.length + other.ids.length <= room || first.ids.length <= room >> 1)) {
      return this.cuts(other.ids.length, Math.max(1, room - first.ids.length)).map((cut) => window(whole(first), cut, false, cut));
    }
    if (other.ids.length <= room >> 1) return this.cuts(first.ids.length, room - other.ids.length).map((cut) => window(cut, whole(other), true, cut));
    const [ones, twos] = [this.cuts(first.ids.length, room >> 1), this.cuts(other.ids.length, room >> 1)];
    const longer = ones.length >= twos.length;
    return Array.from({ length: Math.max(ones.length, twos.length) }, (_, n) => {
      const [a, b] = [ones[Math.min(n, ones.length - 1)], twos[Math.min(n, twos.length - 1)]];
      return window(a, b, longer, longer ? a : b);
    });
  }

  // Windows over so many tokens; each token is answered for by the window that shows more around it.
  cuts(length, room) {
    const { frame } = this.task;
    if (frame.cutting && length > room) return [{ start: 0, end: room, first: 0, last: room }];
    const stride = Math.min(frame.stride, room);
    const starts = [0];
    while (starts[starts.length - 1] + room < length) starts.push(starts[starts.length - 1] + stride);
    const ends = starts.map((start) => Math.min(start + room, length));
    const borders = [0, ...starts.slice(1).map((start, n) => (start + ends[n]) >> 1), length];
    return starts.map((start, n) => ({ start, end: ends[n], first: borders[n], last: borders[n + 1] }));
  }

  // Of a text with gaps: all of it where it fits, else a window around each gap.
  gapCuts(ids, room) {
    const gaps = ids.flatMap((id, n) => (id === this.task.mask ? [n] : []));
    if (ids.length <= room || !gaps.length) return [{ start: 0, end: Math.min(room, ids.length), first: 0, last: ids.length }];
    return gaps.map((gap) => {
      const start = Math.max(0, Math.min(gap - (room >> 1), ids.length - room));
      return { start, end: start + room, first: gap, last: gap + 1 };
    });
  }

  answer(text, second = null) {
    return liveDone(this.answering(text, second));
  }

  // What the model says: the first window (ids, offsets, sides, read), all `windows`, and what the task adds. A
  // generator that can be left between two layers.
  *answering(text, second = null) {
    const windows = this.windows(text, this.task.pair ? second ?? "" : null);
    for (const window of windows) window.read = yield* this.model.reading(window.ids, window.segments);
    return { ...windows[0], windows, ...this.result(text, second, windows) };
  }

  result(text, second, windows) {
    const last = windows[windows.length - 1];
    switch (this.task.kind) {
      case "label":
      case "labels":
        return this.label(windows);
      case "value":
        return { value: this.mean(windows)[0] };
      case "tags":
        return this.tags(text, windows);
      case "answer":
        return this.spans(second ?? "", windows);
      case "fill":
        return { gaps: windows.flatMap((window) => this.gaps(window)) };
      case "next":
        return { logits: this.model.words(last.read, last.read.count - 1), left: last.cut.start };
    }
    throw new Error(`unknown task ${this.task.kind}`);
  }

  // The mean over the windows, by the tokens that are their own.
  mean(windows) {
    const { center = 0, spread = 1 } = this.task;
    const own = windows.map(({ cut }) => Math.max(1, cut.last - cut.first));
    const all = own.reduce((sum, count) => sum + count, 0);
    const parts = windows.map(({ read }) => this.model.labels(read));
    return Array.from(parts[0], (_, n) => parts.reduce((sum, part, w) => sum + (part[n] * own[w]) / all, 0) * spread + center);
  }

  label(windows) {
    const logits = this.mean(windows);
    const several = this.task.kind === "labels";
    const probabilities = several ? logits.map((x) => 1 / (1 + Math.exp(-x))) : [...liveSoftmax(logits)];
    return { logits, probabilities, best: probabilities.indexOf(Math.max(...probabilities)) };
  }

  gaps({ ids, sides, read, lead, cut }) {
    const gaps = [];
    ids.forEach((id, place) => {
      const token = place - lead + cut.start;
      if (id === this.task.mask && sides[place] === 0 && token >= cut.first && token < cut.last) gaps.push({ place, logits: this.model.words(read, place) });
    });
    return gaps;
  }

  // Of each word its span, and the best row of tags that the scheme allows.
  tags(text, windows) {
    const { task } = this;
    const count = task.labels.length;
    const own = []; // [span, logits] of each token of the text
    for (const { read, lead, cut, offsets } of windows) {
      const logits = this.model.labels(read);
      for (let token = cut.first; token < cut.last; token++) {
        const place = lead + token - cut.start;
        own.push([offsets[place], logits.subarray(place * count, (place + 1) * count)]);
      }
    }
    const units = [...text]; // code points
    const places = new Map();
    let unit = 0;
    units.forEach((letter, n) => {
      places.set(unit, n);
      unit += letter.length;
    });
    places.set(unit, units.length);
    const words = [...text.matchAll(this.words)].map((match) => [places.get(match.index), places.get(match.index + match[0].length)]);
    let token = 0;
    const scores = words.map(([start, end]) => {
      while (token < own.length && own[token][0][1] <= start) token += 1;
      let there = token;
      while (there < own.length && own[there][0][0] < end && own[there][0][0] === own[there][0][1]) there += 1;
      const read = there < own.length && own[there][0][0] < end;
      return read ? Array.from(own[there][1]) : task.labels.map((label) => (label === "O" ? 1 : 0));
    });
    const path = liveTagPath(scores, task);
    const tagged = words.map(([start, end], n) => ({ start, end, tag: task.labels[path[n]], score: liveSoftmax(scores[n])[path[n]], logits: scores[n] }));
    return { words: tagged, spans: liveTagSpans(tagged, task.scheme) };
  }

  // The best spans of the context: {start, end, score} in code points, and the probability that there is no answer.
  spans(context, windows) {
    const { threshold, temperature } = this.task;
    const letters = [...context];
    const blank = (n) => /\s/u.test(letters[n]);
    const best = new Map();
    let nothing = Infinity;
    for (const { read, lead, cut, offsets } of windows) {
      const logits = this.model.labels(read);
      const size = cut.end - cut.start;
      nothing = Math.min(nothing, logits[0] + logits[1]);
      const ranked = (side) => Array.from({ length: size }, (_, n) => n).sort((a, b) => logits[2 * (lead + b) + side] - logits[2 * (lead + a) + side] || a - b).slice(0, LIVE_ENDS);
      const lasts = ranked(1);
      const pairs = ranked(0).flatMap((first) => lasts.filter((last) => last >= first && last < first + LIVE_LONGEST_ANSWER).map((last) => [logits[2 * (lead + first)] + logits[2 * (lead + last) + 1], first, last]));
      for (const [score, first, last] of pairs.sort((a, b) => b[0] - a[0]).slice(0, lasts.length)) {
        let [start, end] = [offsets[lead + first][0], offsets[lead + last][1]];
        while (start < end && blank(start)) start += 1;
        while (end > start && blank(end - 1)) end -= 1;
        const key = `${start} ${end}`;
        if (end > start && score > (best.get(key)?.logit ?? -Infinity)) best.set(key, { start, end, logit: score });
      }
    }
    const answers = [...best.values()].sort((a, b) => b.logit - a.logit || a.start - b.start || a.end - b.end).slice(0, LIVE_ENDS);
    const none = threshold !== null && (!answers.length || nothing - answers[0].logit > threshold);
    const scores = [...answers.map(({ logit }) => logit), ...(threshold === null ? [] : [nothing - threshold])];
    const shares = scores.length ? liveSoftmax(scores, temperature) : [];
    answers.forEach((answer, n) => { answer.score = shares[n]; });
    return { answers, none, noAnswer: threshold === null ? 0 : shares[answers.length] };
  }

  // The likeliest tokens: {id, text, probability, left}; left: not among the `k` likeliest, so never drawn.
  ranked(logits, top, temperature = 1, k = 0) {
    const probabilities = liveSoftmax(logits, temperature);
    return liveTop(probabilities, top).map((id, n) => ({ id, text: this.tokenizer.shown(id), probability: probabilities[id], left: k > 0 && n >= k }));
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
    const order = liveTop(allowed, k > 0 ? k : allowed.length);
    const probabilities = liveSoftmax(order.map((id) => allowed[id]), temperature);
    let left = random();
    for (let n = 0; n < order.length; n++) {
      left -= probabilities[n];
      if (left < 0) return order[n];
    }
    return order[0];
  }

  // Tokens after a text, one at a time: {id, logits}, and null between layers; ends at the end token. Where the context
  // is full, the model goes on from the last half of it.
  *generating(text, { temperature = 0, topK = 0, most = 60, random = Math.random } = {}) {
    const { context } = this.data.spec;
    const { before } = this.task.frame;
    let ids = this.prompt(text);
    for (let n = 0; n < most; n++) {
      if (ids.length >= context) ids = [...before, ...ids.slice(-Math.max(1, (context >> 1) - before.length))];
      const steps = this.model.reading(ids);
      let step = steps.next();
      for (; !step.done; step = steps.next()) yield null;
      const logits = this.model.words(step.value, step.value.count - 1);
      const id = this.choose(logits, temperature, topK, random);
      yield { id, logits };
      if (id === this.task.end) return;
      ids.push(id);
    }
  }

  *generate(text, options = {}) {
    for (const step of this.generating(text, options)) if (step !== null) yield step;
  }

  // The tokens that a language model continues.
  prompt(text) {
    return this.windows(text)[0].ids;
  }

  // What new tokens add to a text.
  continuation(prompt, generated) {
    const before = this.tokenizer.decode(prompt);
    const whole = this.tokenizer.decode([...prompt, ...generated]);
    return whole.startsWith(before) ? whole.slice(before.length) : this.tokenizer.decode(generated);
  }
}

// The places of the highest values, best first.
export function liveTop(values, count) {
  if (count * 8 > values.length) return Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
  const best = [];
  for (let n = 0; n < values.length; n++) {
    if (best.length === count && values[n] <= values[best[count - 1]]) continue;
    let at = best.length;
    while (at > 0 && values[best[at - 1]] < values[n]) at -= 1;
    best.splice(at, 0, n);
    if (best.length > count) best.pop();
  }
  return best;
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

// Text into tokens and back in the browser, token for token as Weft does it in Python.
//
// The data comes from explain/live_tokenizer.py: the steps of the pipeline, the vocabulary, and the classes of
// characters (letters, marks, spaces ...) as the tokenizer library has them, since a browser's Unicode tables may be of
// another year. A text is held as code points with the place in the original text that each came from.

export class LiveTokenizer {
  constructor(data) {
    this.data = data;
    this.tables = new LiveTables(data.tables);
    this.vocabulary = data.vocabulary;
    this.numbers = new Map();
    data.vocabulary.forEach((token, number) => {
      if (token !== null) this.numbers.set(token, number);
    });
    this.normalizers = data.normalizers.map((step) => liveNormalizer(step, this.tables));
    this.cutters = data.cutters.map((step) => liveCutter(step, this.tables));
    this.model = liveModel(data.model, this.numbers, data.vocabulary);
    this.decoders = data.decoders === null ? null : data.decoders.map((step) => liveDecoder(step, this.tables));
    this.raw = data.added.filter((token) => !token.normalized);
    this.normalized = data.added
      .filter((token) => token.normalized)
      .map((token) => ({ ...token, points: this.normalize(liveText(token.content)).points }));
    for (const token of this.raw) token.points = livePoints(token.content);
    this.special = new Set(data.added.filter((token) => token.special).map((token) => token.id));
    this.cache = new Map();
  }

  // {ids, offsets: [[start, end]]} with offsets in code points of the text; no special tokens are put around it.
  encode(text) {
    const pieces = [];
    for (const part of liveAddedSplit(liveText(text), this.raw, this.tables)) {
      if (part.id !== undefined) {
        pieces.push(part);
        continue;
      }
      for (const inner of liveAddedSplit(this.normalize(part.text), this.normalized, this.tables)) {
        if (inner.id !== undefined) pieces.push(inner);
        else pieces.push(...this.cut(inner.text).map((word) => ({ text: word })));
      }
    }
    const ids = [];
    const offsets = [];
    for (const { id, text: word } of pieces) {
      if (word.points.length === 0) continue;
      const whole = id !== undefined;
      for (const [token, from, to] of whole ? [[id, 0, word.points.length]] : this.tokens(word.points)) {
        ids.push(token);
        const span = [word.starts[from], word.ends[to - 1]];
        const name = whole ? word.points : livePoints(this.vocabulary[token]);
        offsets.push(this.data.trim === null ? span : liveTrimmed(name, span, this.data.trim, ids.length === 1, this.tables));
      }
    }
    return { ids, offsets };
  }

  normalize(text) {
    return this.normalizers.reduce((value, step) => step(value), text);
  }

  cut(text) {
    let words = [text];
    for (const step of this.cutters) words = words.flatMap((word) => step(word)).filter((word) => word.points.length);
    return words;
  }

  tokens(points) {
    const word = liveString(points);
    let tokens = this.cache.get(word);
    if (tokens === undefined) {
      tokens = this.model(points, word);
      if (this.cache.size > 20000) this.cache.clear();
      this.cache.set(word, tokens);
    }
    return tokens;
  }

  // The text of these ids, without special tokens.
  decode(ids) {
    const tokens = ids.filter((id) => !this.special.has(id) && this.vocabulary[id] != null).map((id) => this.vocabulary[id]);
    if (this.decoders === null) return tokens.join(" ");
    return this.decoders.reduce((value, step) => step(value), tokens).join("");
  }

  // A token as people read it: spaces as spaces, bytes as letters where they are whole ones.
  shown(id) {
    const token = this.vocabulary[id];
    if (token == null) return "";
    if (!this.special.has(id) && this.data.bytes) {
      const bytes = Uint8Array.from([...token].map((letter) => LIVE_BYTES.get(letter) ?? 63));
      return new TextDecoder().decode(bytes);
    }
    return token;
  }
}

// ------------------------------------------------------------------ texts

function livePoints(string) {
  const points = [];
  for (const letter of string) {
    const point = letter.codePointAt(0);
    points.push(point >= 0xd800 && point <= 0xdfff ? 0xfffd : point); // half of a pair is no character
  }
  return points;
}

function liveString(points) {
  let text = "";
  for (let at = 0; at < points.length; at += 4096) text += String.fromCodePoint(...points.slice(at, at + 4096));
  return text;
}

function liveText(string) {
  const points = livePoints(string);
  return { points, starts: points.map((_, n) => n), ends: points.map((_, n) => n + 1) };
}

function liveSlice(text, from, to) {
  return { points: text.points.slice(from, to), starts: text.starts.slice(from, to), ends: text.ends.slice(from, to) };
}

// Each character becomes some others, which all stand where it stood.
function liveMapped(text, become) {
  const made = { points: [], starts: [], ends: [] };
  text.points.forEach((point, n) => {
    const others = become(point);
    for (const other of others === null ? [point] : others) {
      made.points.push(other);
      made.starts.push(text.starts[n]);
      made.ends.push(text.ends[n]);
    }
  });
  return made;
}

// ------------------------------------------------------------------ classes of characters

class LiveTables {
  constructor(tables) {
    this.classes = new Map(Object.entries(tables.classes).map(([name, ranges]) => [name, Uint32Array.from(ranges)]));
    this.maps = new Map();
    for (const [name, entries] of Object.entries(tables.maps)) {
      this.maps.set(name, new Map(entries.map(([from, to]) => [from, livePoints(to)])));
    }
    this.quick = new Map();
    for (const [name, ranges] of this.classes) {
      const quick = new Uint8Array(256);
      for (let point = 0; point < 256; point++) quick[point] = liveInside(ranges, point) ? 1 : 0;
      this.quick.set(name, quick);
    }
  }

  has(name, point) {
    return point < 256 ? this.quick.get(name)[point] === 1 : liveInside(this.classes.get(name), point);
  }

  // The inside of a class of a regular expression; `negated`: of all other characters.
  source(name, negated) {
    const flat = this.classes.get(name);
    const spans = [];
    if (negated) {
      let next = 0;
      for (let n = 0; n < flat.length; n += 2) {
        if (flat[n] > next) spans.push([next, flat[n] - 1]);
        next = flat[n + 1] + 1;
      }
      if (next <= 0x10ffff) spans.push([next, 0x10ffff]);
    } else {
      for (let n = 0; n < flat.length; n += 2) spans.push([flat[n], flat[n + 1]]);
    }
    return spans.map(([low, high]) => `\\u{${low.toString(16)}}-\\u{${high.toString(16)}}`).join("");
  }

  // A pattern from its parts: source text, and classes of characters by name.
  regex(parts) {
    const word = this.classes.has("w") ? `[${this.source("w", false)}]` : "";
    const source = parts.map((part) => {
      if (typeof part === "string") return part;
      if (part.boundary) return `(?:(?<=${word})(?!${word})|(?<!${word})(?=${word}))`;
      const inside = this.source(part.name, part.negated);
      return part.inside ? inside : inside === "" ? "(?!)" : `[${inside}]`;
    });
    return new RegExp(source.join(""), "gu");
  }
}

function liveInside(ranges, point) {
  let low = 0;
  let high = ranges.length >> 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[2 * middle + 1] < point) low = middle + 1;
    else high = middle;
  }
  return 2 * low < ranges.length && ranges[2 * low] <= point;
}

// ------------------------------------------------------------------ added tokens

// Parts of a text: {id, text} for added tokens, {text} for what stands between them.
function liveAddedSplit(text, added, tables) {
  if (added.length === 0) return [{ text }];
  const { points } = text;
  const byFirst = new Map();
  for (const token of added) {
    if (!byFirst.has(token.points[0])) byFirst.set(token.points[0], []);
    byFirst.get(token.points[0]).push(token);
  }
  for (const some of byFirst.values()) some.sort((a, b) => b.points.length - a.points.length);
  const parts = [];
  let done = 0;
  let at = 0;
  while (at < points.length) {
    const some = byFirst.get(points[at]);
    const token = some && some.find((each) => each.points.every((point, n) => points[at + n] === point));
    if (token === undefined) {
      at += 1;
      continue;
    }
    let start = at;
    let stop = at + token.points.length;
    at = stop;
    if (token.single_word) {
      const before = start > 0 && tables.has("word", points[start - 1]);
      const after = stop < points.length && tables.has("word", points[stop]);
      if (before || after) continue;
    }
    if (token.lstrip) while (start > done && tables.has("space", points[start - 1])) start -= 1;
    if (token.rstrip) while (stop < points.length && tables.has("space", points[stop])) stop += 1;
    if (start > done) parts.push({ text: liveSlice(text, done, start) });
    parts.push({ id: token.id, text: liveSlice(text, start, stop) });
    done = stop;
    at = Math.max(at, stop);
  }
  if (done < points.length) parts.push({ text: liveSlice(text, done, points.length) });
  return parts;
}

// ------------------------------------------------------------------ normalizers

function liveNormalizer(step, tables) {
  const lower = (text) => liveMapped(text, (point) => (point < 128 ? (point >= 65 && point <= 90 ? [point + 32] : null) : tables.maps.get("lower").get(point) ?? null));
  const without = (name) => (text) => liveMapped(text, (point) => (tables.has(name, point) ? [] : null));
  switch (step.type) {
    case "Bert": {
      const steps = [];
      if (step.clean) {
        steps.push(without("bert-removed"));
        steps.push((text) => liveMapped(text, (point) => (tables.has("bert-space", point) ? [32] : null)));
      }
      if (step.chinese) steps.push((text) => liveMapped(text, (point) => (tables.has("chinese", point) ? [32, point, 32] : null)));
      if (step.strip) steps.push((text) => liveDecomposed(text, "NFD", tables), without("bert-mark"));
      if (step.lower) steps.push(lower);
      return (text) => steps.reduce((value, each) => each(value), text);
    }
    case "Lowercase":
      return lower;
    case "StripAccents":
      return without("mark");
    case "Form":
      return step.form === "NFD" || step.form === "NFKD"
        ? (text) => liveDecomposed(text, step.form, tables)
        : (text) => liveComposed(text, step.form, tables);
    case "Strip":
      return (text) => {
        let from = 0;
        let to = text.points.length;
        if (step.left) while (from < to && tables.has("space", text.points[from])) from += 1;
        if (step.right) while (to > from && tables.has("space", text.points[to - 1])) to -= 1;
        return liveSlice(text, from, to);
      };
    case "Prepend":
      return (text) => livePrepended(text, livePoints(step.text));
    case "Replace": {
      const find = liveFinder(step.pattern, tables);
      const content = livePoints(step.content);
      return (text) => liveReplaced(text, find(text.points), content);
    }
    case "Charsmap":
      return liveCharsmap(step.data);
  }
  throw new Error(`unknown normalizer ${step.type}`);
}

function livePrepended(text, points) {
  if (text.points.length === 0) return text;
  const [start, end] = [text.starts[0], text.ends[0]];
  return {
    points: [...points, ...text.points],
    starts: [...points.map(() => start), ...text.starts],
    ends: [...points.map(() => end), ...text.ends],
  };
}

function liveReplaced(text, matches, content) {
  const made = { points: [], starts: [], ends: [] };
  let done = 0;
  const copy = (to) => {
    for (; done < to; done++) {
      made.points.push(text.points[done]);
      made.starts.push(text.starts[done]);
      made.ends.push(text.ends[done]);
    }
  };
  for (const [from, to] of matches) {
    copy(from);
    for (const point of content) {
      made.points.push(point);
      made.starts.push(text.starts[to - 1]); // as the library has it: where the last of what it replaces stood
      made.ends.push(text.ends[to - 1]);
    }
    done = to;
  }
  copy(text.points.length);
  return made;
}

// Spans (in code points) where a pattern matches: a plain text or a regular expression.
function liveFinder(pattern, tables) {
  if (typeof pattern === "string") {
    const wanted = livePoints(pattern);
    return (points) => {
      const spans = [];
      for (let at = 0; at + wanted.length <= points.length; ) {
        if (wanted.every((point, n) => points[at + n] === point)) {
          spans.push([at, at + wanted.length]);
          at += wanted.length;
        } else at += 1;
      }
      return spans;
    };
  }
  const regex = tables.regex(pattern);
  return (points) => {
    const string = liveString(points);
    const spans = [];
    let unit = 0; // how far the string was counted through, in units of 16 bits and in code points
    let place = 0;
    const count = (to) => {
      while (unit < to) unit += points[place++] > 0xffff ? 2 : 1;
      return place;
    };
    for (const match of string.matchAll(regex)) {
      const start = count(match.index);
      const end = count(match.index + match[0].length);
      if (end > start) spans.push([start, end]);
    }
    return spans;
  };
}

// Stretches of characters that the tokenizer library knows how to normalize; what it does not know stays as it is.
function* liveKnown(text, tables) {
  let from = 0;
  for (let at = 0; at <= text.points.length; at++) {
    if (at === text.points.length || tables.has("inert", text.points[at])) {
      if (at > from) yield [liveSlice(text, from, at), true];
      if (at < text.points.length) yield [liveSlice(text, at, at + 1), false];
      from = at + 1;
    }
  }
}

function liveJoin(parts) {
  if (parts.length === 1) return parts[0];
  const join = (name) => [].concat(...parts.map((part) => part[name]));
  return { points: join("points"), starts: join("starts"), ends: join("ends") };
}

function liveDecomposed(text, form, tables) {
  if (text.points.every((point) => point < 128)) return text;
  const parts = [];
  for (const [part, known] of liveKnown(text, tables)) {
    if (!known) {
      parts.push(part);
      continue;
    }
    const single = liveMapped(part, (point) => (point < 128 ? null : livePoints(String.fromCodePoint(point).normalize(form))));
    const whole = livePoints(liveString(part.points).normalize(form));
    let same = true;
    for (let n = 0; n < whole.length && same; n++) same = whole[n] === single.points[n];
    if (!same) {
      // Marks were put into their order. As in the library, the characters of the text are then counted anew: each first
      // character of a decomposition stands for the next one of the text.
      const firsts = part.points.flatMap((point) => (point < 128 ? [true] : livePoints(String.fromCodePoint(point).normalize(form)).map((_, n) => n === 0)));
      const left = single.points.map((_, n) => n);
      const order = whole.map((point) => left.splice(left.findIndex((n) => single.points[n] === point), 1)[0]);
      let count = 0;
      const places = order.map((n) => (firsts[n] ? count++ : Math.max(0, count - 1)));
      parts.push({ points: whole, starts: places.map((n) => part.starts[n]), ends: places.map((n) => part.ends[n]) });
    } else parts.push(single);
  }
  return parts.length ? liveJoin(parts) : text;
}

function liveComposed(text, form, tables) {
  if (text.points.every((point) => point < 128)) return text;
  const parts = [];
  for (const [part, known] of liveKnown(text, tables)) {
    if (!known) {
      parts.push(part);
      continue;
    }
    const apart = liveDecomposed(part, form === "NFC" ? "NFD" : "NFKD", tables);
    const made = { points: livePoints(liveString(part.points).normalize(form)), starts: [], ends: [] };
    const left = apart.points.map((_, n) => n);
    for (const point of made.points) {
      const taken = livePoints(String.fromCodePoint(point).normalize("NFD")).map(
        (inner) => left.splice(left.findIndex((n) => apart.points[n] === inner), 1)[0],
      );
      made.starts.push(apart.starts[taken[0]]);
      made.ends.push(apart.ends[taken[0]]);
    }
    parts.push(made);
  }
  return parts.length ? liveJoin(parts) : text;
}

// SentencePiece's map of characters: a double array of bytes, and texts that end in NUL.
function liveCharsmap(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = view.getUint32(0, true);
  const units = new Uint32Array(size / 4);
  for (let n = 0; n < units.length; n++) units[n] = view.getUint32(4 + 4 * n, true);
  const texts = bytes.subarray(4 + size);
  const encoder = new TextEncoder();
  const decoder = new TextDecoder();
  const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
  // The text in the place of the shortest beginning of these bytes that the map has; null: it has none.
  const lookup = (key) => {
    let node = offset(units[0]);
    for (const byte of key) {
      if (byte === 0) return null;
      node ^= byte;
      const unit = units[node];
      if ((unit & 0x800000ff) >>> 0 !== byte) return null;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) {
        const from = units[node] & 0x7fffffff;
        let to = from;
        while (texts[to] !== 0) to += 1;
        return livePoints(decoder.decode(texts.subarray(from, to)));
      }
    }
    return null;
  };
  const cache = new Map();
  const changed = (string) => {
    if (!cache.has(string)) cache.set(string, lookup(encoder.encode(string)));
    return cache.get(string);
  };
  const segmenter = new Intl.Segmenter("en", { granularity: "grapheme" });
  return (text) => {
    const changes = []; // [character, how many there are more than before], as the library counts them
    const replace = (count, points) => {
      const more = points.length - count;
      points.forEach((point, n) => changes.push([point, n >= count ? 1 : 0]));
      if (more < 0 && changes.length) changes[changes.length - 1][1] += more;
    };
    for (const { segment } of segmenter.segment(liveString(text.points))) {
      const points = livePoints(segment);
      const short = encoder.encode(segment).length < 6 ? changed(segment) : null;
      if (short !== null) replace(points.length, short);
      else for (const point of points) replace(1, changed(String.fromCodePoint(point)) ?? [point]);
    }
    // A character takes the place of the one that it replaces; one that is new stands where the one before it stood.
    const made = { points: [], starts: [], ends: [] };
    let at = 0;
    for (const [point, more] of changes) {
      const place = more > 0 ? at - 1 : at;
      made.points.push(point);
      made.starts.push(text.starts[place] ?? 0);
      made.ends.push(text.ends[place] ?? 0);
      if (more <= 0) at += 1 - more;
    }
    return made;
  };
}

// ------------------------------------------------------------------ cutting into words

const LIVE_BYTES = new Map(); // a letter for each byte, as GPT-2 has them -> the byte
const LIVE_LETTERS = new Array(256); // byte -> the code point of its letter
{
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    LIVE_LETTERS[byte] = plain ? byte : next++;
    LIVE_BYTES.set(String.fromCodePoint(LIVE_LETTERS[byte]), byte);
  }
}

function liveCutter(step, tables) {
  switch (step.type) {
    case "ByteLevel": {
      const find = step.pattern === null ? null : liveFinder(step.pattern, tables);
      const encoder = new TextEncoder();
      const bytes = (text) =>
        liveMapped(text, (point) => (point < 128 ? [LIVE_LETTERS[point]] : [...encoder.encode(String.fromCodePoint(point))].map((byte) => LIVE_LETTERS[byte])));
      return (text) => {
        const spaced = step.prefix && text.points.length && text.points[0] !== 32 ? livePrepended(text, [32]) : text;
        return (find === null ? [spaced] : liveSplit(spaced, find(spaced.points), "Isolated", false)).map(bytes);
      };
    }
    case "Bert":
      return (text) =>
        liveSplit(text, liveSpans(text.points, (point) => tables.has("space", point)), "Removed", false).flatMap((word) =>
          liveSplit(word, liveSpans(word.points, (point) => tables.has("punctuation", point)), "Isolated", false),
        );
    case "Class":
      return (text) => liveSplit(text, liveSpans(text.points, (point) => tables.has(step.name, point)), step.behavior, false);
    case "Delimiter": {
      const [point] = livePoints(step.delimiter);
      return (text) => liveSplit(text, liveSpans(text.points, (each) => each === point), "Removed", false);
    }
    case "Split": {
      const find = liveFinder(step.pattern, tables);
      return (text) => liveSplit(text, find(text.points), step.behavior, step.invert);
    }
    case "Metaspace": {
      const [mark] = livePoints(step.replacement);
      return (text) => {
        let words = liveMapped(text, (point) => (point === 32 ? [mark] : null));
        const first = step.scheme === "always" || (step.scheme === "first" && text.starts[0] === 0);
        if (first && words.points[0] !== mark) words = livePrepended(words, [mark]);
        return step.split ? liveSplit(words, liveSpans(words.points, (point) => point === mark), "MergedWithNext", false) : [words];
      };
    }
  }
  throw new Error(`unknown pre-tokenizer ${step.type}`);
}

function liveSpans(points, matches) {
  const spans = [];
  points.forEach((point, n) => {
    if (matches(point)) spans.push([n, n + 1]);
  });
  return spans;
}

function liveSplit(text, spans, behavior, invert) {
  let parts = []; // [from, to, whether it matched]
  let done = 0;
  for (const [from, to] of spans) {
    if (from > done) parts.push([done, from, invert]);
    parts.push([from, to, !invert]);
    done = to;
  }
  if (done < text.points.length) parts.push([done, text.points.length, invert]);
  if (behavior === "Removed") parts = parts.filter(([, , matched]) => !matched);
  else if (behavior !== "Isolated") {
    const next = behavior === "MergedWithNext";
    const joined = [];
    let before = behavior === "Contiguous" ? null : false;
    for (const [from, to, matched] of next ? parts.reverse() : parts) {
      const last = joined[joined.length - 1];
      const merge = behavior === "Contiguous" ? matched === before : matched && !before;
      if (merge && last !== undefined) {
        if (next) last[0] = from;
        else last[1] = to;
      } else joined.push([from, to]);
      before = matched;
    }
    parts = next ? joined.reverse() : joined;
  }
  return parts.map(([from, to]) => liveSlice(text, from, to));
}

// Offsets without the space that a token begins or ends with.
function liveTrimmed(points, [start, end], trim, first, tables) {
  const space = (point) => point === LIVE_LETTERS[32] || tables.has("space", point);
  let leading = 0;
  while (leading < points.length && space(points[leading])) leading += 1;
  let trailing = 0;
  while (trailing < points.length && space(points[points.length - 1 - trailing])) trailing += 1;
  if (leading > 0) {
    if (trim.prefix && (first || start === 0)) leading = Math.max(0, leading - 1);
    start = Math.min(start + leading, end);
  }
  if (trailing > 0 && end >= trailing) end = Math.max(end - trailing, start);
  return [start, end];
}

// ------------------------------------------------------------------ models: a word -> [id, from, to] of its tokens

function liveModel(model, numbers, vocabulary) {
  switch (model.type) {
    case "WordLevel":
      return (points, word) => [[numbers.get(word) ?? model.unknown, 0, points.length]];
    case "WordPiece":
      return liveWordPiece(model, numbers);
    case "BPE":
      return liveBpe(model, numbers, vocabulary);
    case "Unigram":
      return liveUnigram(model, numbers);
  }
  throw new Error(`unknown model ${model.type}`);
}

function liveWordPiece(model, numbers) {
  return (points) => {
    const unknown = [[model.unknown, 0, points.length]];
    if (points.length > model.longest) return unknown;
    const letters = points.map((point) => String.fromCodePoint(point));
    const tokens = [];
    for (let from = 0; from < points.length; ) {
      let to = points.length;
      let id;
      for (; to > from; to--) {
        id = numbers.get((from > 0 ? model.prefix : "") + letters.slice(from, to).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return unknown;
      tokens.push([id, from, to]);
      from = to;
    }
    return tokens;
  };
}

function liveByteTokens(point, numbers) {
  const bytes = [...new TextEncoder().encode(String.fromCodePoint(point))];
  const ids = bytes.map((byte) => numbers.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
  return ids.includes(undefined) ? null : ids;
}

function liveBpe(model, numbers, vocabulary) {
  const size = vocabulary.length;
  const ranks = new Map(); // pair of ids -> its rank and the id that it becomes
  for (let n = 0; n < model.merges.length; n += 3) ranks.set(model.merges[n] * size + model.merges[n + 1], [n / 3, model.merges[n + 2]]);
  return (points, word) => {
    if (model.whole && numbers.has(word)) return [[numbers.get(word), 0, points.length]];
    const parts = [];
    points.forEach((point, n) => {
      let letter = String.fromCodePoint(point);
      if (n > 0 && model.prefix) letter = model.prefix + letter;
      if (n === points.length - 1 && model.suffix) letter += model.suffix;
      const id = numbers.get(letter);
      if (id !== undefined) {
        parts.push([id, n, n + 1]);
        return;
      }
      const bytes = model.bytes ? liveByteTokens(point, numbers) : null;
      if (bytes !== null) for (const byte of bytes) parts.push([byte, n, n + 1]);
      else if (model.unknown !== null) {
        const last = parts[parts.length - 1];
        if (model.fuse && last !== undefined && last[0] === model.unknown && last[3]) last[2] = n + 1;
        else parts.push([model.unknown, n, n + 1, true]);
      }
    });
    for (;;) {
      let best = -1;
      let lowest = Infinity;
      let made = 0;
      for (let n = 0; n + 1 < parts.length; n++) {
        const merge = ranks.get(parts[n][0] * size + parts[n + 1][0]);
        if (merge !== undefined && merge[0] < lowest) [lowest, made, best] = [merge[0], merge[1], n];
      }
      if (best < 0) return parts;
      parts.splice(best, 2, [made, parts[best][1], parts[best + 1][2]]);
    }
  };
}

function liveUnigram(model, numbers) {
  const root = new Map();
  for (const [token, id] of numbers) {
    if (id >= model.scores.length) continue; // added later
    let node = root;
    for (const letter of token) {
      if (!node.has(letter)) node.set(letter, new Map());
      node = node.get(letter);
    }
    if (token !== "") node.id = id;
  }
  const missing = model.lowest - 10;
  return (points) => {
    const letters = points.map((point) => String.fromCodePoint(point));
    const count = letters.length;
    const score = new Float64Array(count + 1);
    const start = new Int32Array(count + 1).fill(-1);
    const ids = new Int32Array(count + 1);
    for (let from = 0; from < count; from++) {
      let node = root;
      let single = false;
      for (let to = from; to < count; to++) {
        node = node.get(letters[to]);
        if (node === undefined) break;
        if (node.id === undefined) continue;
        const total = score[from] + model.scores[node.id];
        if (start[to + 1] < 0 || total > score[to + 1]) {
          score[to + 1] = total;
          start[to + 1] = from;
          ids[to + 1] = node.id;
        }
        if (to === from) single = true;
      }
      const total = score[from] + missing;
      if (!single && (start[from + 1] < 0 || total > score[from + 1])) {
        score[from + 1] = total;
        start[from + 1] = from;
        ids[from + 1] = -1;
      }
    }
    const spans = [];
    for (let to = count; to > 0; to = start[to]) {
      const last = spans[spans.length - 1];
      const unknown = ids[to] < 0 || ids[to] === model.unknown;
      if (unknown && last !== undefined && last[3]) last[1] = start[to]; // unknown characters side by side are one
      else spans.push([unknown ? -1 : ids[to], start[to], to, unknown]);
    }
    const tokens = [];
    for (const [id, from, to, unknown] of spans.reverse()) {
      const known = unknown ? numbers.get(letters.slice(from, to).join("")) : id;
      if (known !== undefined && known < model.scores.length) tokens.push([known, from, to]);
      else {
        const bytes = model.bytes ? points.slice(from, to).flatMap((point) => liveByteTokens(point, numbers) ?? [null]) : [null];
        if (bytes.includes(null)) tokens.push([model.unknown, from, to]);
        else for (const byte of bytes) tokens.push([byte, from, to]);
      }
    }
    return tokens;
  };
}

// ------------------------------------------------------------------ decoders: tokens -> tokens, joined at the end

function liveDecoder(step, tables) {
  switch (step.type) {
    case "ByteLevel":
      return (tokens) => {
        const bytes = tokens.flatMap((token) => {
          const own = [...token].map((letter) => LIVE_BYTES.get(letter));
          return own.includes(undefined) ? [...new TextEncoder().encode(token)] : own;
        });
        return [new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes))];
      };
    case "WordPiece":
      return (tokens) =>
        tokens.map((token, n) => {
          const joined = n === 0 ? token : token.startsWith(step.prefix) ? token.replace(step.prefix, "") : ` ${token}`;
          return step.cleanup ? liveCleanup(joined) : joined;
        });
    case "BPE":
      return (tokens) => tokens.map((token, n) => token.replaceAll(step.suffix, n === tokens.length - 1 ? "" : " "));
    case "Metaspace":
      return (tokens) =>
        tokens.map((token, n) => {
          const letters = [...token].map((letter) => (letter === step.replacement ? " " : letter));
          if (n === 0 && step.scheme !== "never" && letters[0] === " ") letters.shift();
          return letters.join("");
        });
    case "Fuse":
      return (tokens) => [tokens.join("")];
    case "Strip":
      return (tokens) =>
        tokens.map((token) => {
          const letters = [...token];
          let from = 0;
          while (from < step.start && letters[from] === step.content) from += 1;
          return letters.slice(from).join("");
        });
    case "Replace": {
      const find = liveFinder(step.pattern, tables);
      const content = livePoints(step.content);
      return (tokens) => tokens.map((token) => liveString(liveReplaced(liveText(token), find(livePoints(token)), content).points));
    }
    case "ByteFallback":
      return (tokens) => {
        const made = [];
        let bytes = [];
        const flush = () => {
          if (!bytes.length) return;
          try {
            made.push(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes)));
          } catch {
            made.push(...bytes.map(() => "\ufffd"));
          }
          bytes = [];
        };
        for (const token of tokens) {
          const match = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
          if (match) bytes.push(parseInt(match[1], 16));
          else {
            flush();
            made.push(token);
          }
        }
        flush();
        return made;
      };
  }
  throw new Error(`unknown decoder ${step.type}`);
}

function liveCleanup(text) {
  const marks = [[" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"], [" 'm", "'m"]];
  for (const [from, to] of [...marks, [" do not", " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"]]) text = text.replaceAll(from, to);
  return text;
}

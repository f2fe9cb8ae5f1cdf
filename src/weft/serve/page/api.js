// Requests to this server: the key, waiting where it is busy, streams, and errors that people can read.

const KEY = "weft-api-key"; // of sessionStorage: it is forgotten with the tab
const MOST_WAITS = 20;

/** What the server refused, or why it could not be reached (status 0). */
export class ServerError extends Error {
  /** @param {number} status @param {string} message @param {{param?: string, wait?: number}} [more] */
  constructor(status, message, more = {}) {
    super(message);
    this.status = status;
    this.param = more.param ?? null; // the field of the request that the message is about
    this.wait = more.wait ?? null; // seconds
  }
}

/** @type {(wrong: boolean) => Promise<string>} asks a person for the key; the page sets it */
let askForKey = () => Promise.reject(new ServerError(401, "This server needs an API key."));

export function onKeyNeeded(ask) {
  askForKey = ask;
}

export function hasKey() {
  return Boolean(sessionStorage.getItem(KEY));
}

function abortError() {
  return new DOMException("aborted", "AbortError");
}

/** A promise that is kept after so many seconds, or broken at once when the signal says so. */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(abortError());
    const stop = () => { clearTimeout(timer); reject(abortError()); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, 1000 * seconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

async function errorOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
  }
  const wait = Number(response.headers.get("Retry-After"));
  const message = error.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
  return new ServerError(response.status, message, { param: error.param ?? null, wait: wait > 0 ? wait : null });
}

/** One request, with the key where there is one; a person is asked for it where the server wants it. */
async function request(route, body, signal) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    let response;
    try {
      response = await fetch(route, { method: body ? "POST" : "GET", headers, body: body ? JSON.stringify(body) : undefined, signal, cache: "no-store" });
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new ServerError(0, "The server does not answer.");
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status !== 401) throw error;
    sessionStorage.setItem(KEY, await askForKey(key !== null));
    if (signal?.aborted) throw abortError();
  }
}

/** Where waiting helps: how many seconds before the next attempt; null: it does not. */
function waitAfter(error, attempt) {
  if (error.status === 429) return error.wait ?? 1;
  if (error.status === 503) return error.wait ?? 2;
  return error.status === 0 ? Math.min(10, 2 ** attempt) : null;
}

/**
 * A request that waits where the server is busy, a worker is restarting or the line is down.
 * @param {(wait: {error: ServerError, seconds: number, now: () => void}) => void} [onWait] is told about every wait
 */
async function patient(route, body, signal, onWait) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await request(route, body, signal);
    } catch (error) {
      const seconds = error instanceof ServerError ? waitAfter(error, attempt) : null;
      if (seconds === null || !onWait || attempt >= MOST_WAITS) throw error;
      const early = new AbortController();
      onWait({ error, seconds, now: () => early.abort() });
      const stop = AbortSignal.any(signal ? [signal, early.signal] : [early.signal]);
      await pause(seconds, stop).catch((problem) => { if (!early.signal.aborted) throw problem; });
    }
  }
}

/** The stages of a Server-Timing header, in seconds. */
export function timingsOf(header) {
  const stages = {};
  for (const part of (header ?? "").split(",")) {
    const [name, ...rest] = part.split(";").map((each) => each.trim());
    const duration = rest.find((each) => each.startsWith("dur="));
    if (name && duration) stages[name] = Number(duration.slice(4)) / 1000;
  }
  return stages;
}

/** The reply to one request: {reply, timings, seconds}. Without a body it is a GET. */
export async function ask(route, body, { signal, onWait } = {}) {
  let started = performance.now();
  const waited = onWait && ((wait) => { started = performance.now() + 1000 * wait.seconds; onWait(wait); });
  const response = await patient(route, body, signal, waited);
  const reply = await response.json();
  return { reply, timings: timingsOf(response.headers.get("Server-Timing")), seconds: Math.max(0, performance.now() - started) / 1000 };
}

/** The lines of a stream of bytes. */
async function* linesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      yield* lines;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {}); // whoever stops reading frees the slot of the model
  }
}

/** The events of a stream, as they come: the values behind `data:`. */
export async function* stream(route, body, { signal, onWait } = {}) {
  const response = await patient(route, { ...body, stream: true }, signal, onWait);
  for await (const line of linesOf(response.body)) {
    if (!line.startsWith("data:")) continue;
    const text = line.slice(5).trim();
    if (text === "[DONE]") return;
    const event = JSON.parse(text);
    if (event.error) throw new ServerError(event.error.code ?? 500, event.error.message ?? "The answer broke off.");
    yield event;
  }
}

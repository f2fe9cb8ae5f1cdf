// Forecast: the next steps of a pasted series, with intervals.

import { el, format } from "/static/picture/base.js";
import { count, percent } from "./parts.js";
import { seriesChart } from "./series-chart.js";
import { readTable } from "./table-text.js";

const HISTORY = 3; // so many times the forecast's length is shown of what was before it, and 30 steps at least
const CHARTS = 6;
const WEEK = [0.8, 0.85, 0.9, 1.0, 1.25, 1.5, 0.7];

/** Names of the columns that the model forecasts, and of those that it only reads. */
function columnsOf(model) {
  return { values: model.values?.length ? model.values : ["value"], features: model.features ?? [] };
}

/**
 * Sales of a shop in a week that repeats, under the names that the model knows: the same numbers each time, so that
 * links and pictures agree.
 */
function exampleTable(model, days, stores) {
  const { values, features } = columnsOf(model);
  const cells = [...values, ...features].map((name) => (/[",]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name));
  const lines = [["date", ...(stores.length > 1 ? ["store"] : []), ...cells].join(",")];
  let state = 7;
  const chance = () => (state = (state * 16807) % 2147483647) / 2147483647;
  for (const [store, level] of stores) {
    for (let day = 0; day < days; day++) {
      const date = new Date(Date.UTC(2023, 8, 4 + day));
      const promo = chance() < 0.1 ? 1 : 0;
      const sales = (level + 0.05 * day) * WEEK[date.getUTCDay()] * (1 + 0.2 * promo) * (0.94 + 0.12 * chance());
      const numbers = [...values.map((_, n) => (sales * (1 + 0.5 * n)).toFixed(1)), ...features.map(() => promo)];
      lines.push([date.toISOString().slice(0, 10), ...(stores.length > 1 ? [store] : []), ...numbers].join(","));
    }
  }
  return lines.join("\n");
}

/** How many numbers the model reads at each step. */
function reads(model) {
  const { values, features } = columnsOf(model);
  return values.length + features.length;
}

/** The rows of one series of a table, the column of its times, and their texts. */
function historyOf(table, answer) {
  if (table.values) return { rows: table.values.map((value) => ({ [answer.names[0]]: value })), times: table.values.map((_, n) => String(n + 1)) };
  const { rows, columns } = table;
  const others = columns.filter((name) => !answer.names.includes(name));
  const texts = others.filter((name) => rows.some((row) => typeof row[name] === "string"));
  const group = texts.find((name) => answer.series && rows.some((row) => String(row[name]) === answer.series));
  const own = group ? rows.filter((row) => String(row[group]) === answer.series) : rows;
  const time = texts.find((name) => name !== group) ?? others.find((name) => name !== group && /^(date|time|day|month|year|week|step|hour|t)$/i.test(name));
  return { rows: own, times: own.map((row, n) => (time ? String(row[time]) : String(n + 1))) };
}

function chartOf(table, answer) {
  const { rows, times } = historyOf(table, answer);
  const steps = answer.times.length;
  const first = Math.max(0, rows.length - Math.max(30, HISTORY * steps));
  const shown = rows.slice(first);
  const begin = shown.length - 1;
  const lines = answer.names.flatMap((name, column) => {
    const past = shown.map((row, n) => [n, row[name]]).filter(([, value]) => typeof value === "number");
    const last = past.at(-1);
    const ahead = (values) => values?.[column].map((value, n) => [shown.length + n, value]);
    const many = answer.names.length > 1 ? `${name} ` : "";
    return [
      past.length > 0 && { name: many ? name : "so far", color: (2 * column) % 6, points: past },
      { name: `${many}forecast`, color: (2 * column + 1) % 6, points: ahead(answer.values), from: last?.[0] === begin ? last : null, low: ahead(answer.low), high: ahead(answer.high) },
    ].filter(Boolean);
  });
  const title = [answer.series, answer.names.join(", ")].filter(Boolean).join(": ");
  return seriesChart({ title, times: [...times.slice(first), ...answer.times], begin, lines });
}

function tableOf(answer) {
  const header = ["time", ...answer.names.flatMap((name) => [name, answer.low && "low", answer.high && "high"].filter(Boolean))];
  const rows = answer.times.map((time, step) => [time, ...answer.names.flatMap((_, column) =>
    [answer.values, answer.low, answer.high].filter(Boolean).map((values) => format(values[column][step], 2)))]);
  return el("details", {}, el("summary", { text: "Numbers" }), el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Numbers of the forecast" }, el("table", {},
    el("thead", {}, el("tr", {}, header.map((name, n) => el("th", { scope: "col", class: n ? "number" : null, text: name })))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, n) => el("td", { class: n ? "number" : null, text: cell }))))))));
}

/** @type {import("./view.js").Tab} */
export const forecast = {
  id: "forecast",
  name: "Forecast",
  unit: "step",
  about: "Paste a table or a series; the model continues it.",
  serves: (model) => model.tasks.includes("forecast"),
  box: { key: "table", label: "Table (csv) or numbers", placeholder: "date,sales\n2024-01-01,120\n2024-01-02,134\n…", rows: 9, code: true },
  examples: (model) => [
    { name: "One shop", text: exampleTable(model, 84, [["north", 125]]) },
    { name: "Two shops", text: exampleTable(model, 70, [["north", 125], ["south", 460]]) },
    ...(reads(model) > 1 ? [] : [{ name: "Numbers", text: exampleTable(model, 70, [["north", 125]]).split("\n").slice(1).map((line) => line.split(",")[1]).join(" ") }]),
  ],
  missing(view) {
    if (!view.text.trim()) return "Paste a table with a header, or numbers; or try an example.";
    const table = readTable(view.text);
    const { values, features } = columnsOf(view.model);
    if (table.values && reads(view.model) > 1) return `This model reads ${reads(view.model)} numbers at each step: paste a table with the columns ${[...values, ...features].join(", ")}.`;
    return table.problem ?? "";
  },
  async run(view) {
    const table = readTable(view.text);
    const input = table.values ? { series: { [columnsOf(view.model).values[0]]: table.values } } : { rows: table.rows };
    const { answers } = await view.post("/v1/forecast", { model: view.model.id, input });
    const interval = answers.find((answer) => answer.low)?.interval;
    view.show(() => [
      ...answers.slice(0, CHARTS).flatMap((answer) => [chartOf(table, answer), tableOf(answer)]),
      interval && el("p", { class: "note", text: `The shaded band should hold ${percent(interval)} of the true values.` }),
      answers.length > CHARTS && el("p", { class: "note", text: `${CHARTS} of ${count(answers.length, "series", "series")}.` }),
    ]);
    view.say(answers.slice(0, 2).map((answer) => `${answer.series} forecast of ${count(answer.times.length, "step")}`).join("; "));
  },
};

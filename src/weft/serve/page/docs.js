// The routes of this server, as /openapi.json describes them; each can be tried.

import { ask, onKeyNeeded } from "./api.js";
import { askKey } from "./dialogs.js";

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

onKeyNeeded(askKey);

/** What a schema stands for, with its references followed. */
function followed(schema, all) {
  const name = schema?.$ref?.split("/").pop();
  return name ? all[name] : schema;
}

/** The type of a value in few words. */
function kindOf(schema, all) {
  schema = followed(schema, all) ?? {};
  if (schema.anyOf || schema.oneOf) return [...new Set((schema.anyOf ?? schema.oneOf).map((each) => kindOf(each, all)))].join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(", ");
  const kind = [schema.type ?? "any"].flat().join(" or ");
  if (kind === "array") {
    const item = kindOf(schema.items, all);
    return item.includes(" or ") ? `list of (${item})` : `list of ${item}`;
  }
  const least = schema.minimum ?? schema.exclusiveMinimum;
  const most = schema.maximum ?? schema.exclusiveMaximum;
  return least !== undefined && most !== undefined ? `${kind}, ${least} to ${most}` : kind;
}

function fieldsOf(schema, all) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const needed = schema.required?.includes(name) ? " (required)" : "";
    const usual = field.default === undefined || field.default === null ? "" : ` Default: ${JSON.stringify(field.default)}.`;
    return node("tr", {}, node("td", {}, node("code", {}, name), needed), node("td", {}, kindOf(field, all)), node("td", {}, `${field.description ?? ""}${usual}`));
  });
  const head = node("tr", {}, ...["Field", "Type", "Meaning"].map((title) => node("th", { scope: "col" }, title)));
  return node("div", { class: "wide" }, node("table", {}, node("thead", {}, head), node("tbody", {}, ...rows)));
}

/** A box to send an example and see the reply. */
function trial(path, example) {
  const body = example && node("textarea", { rows: "6", spellcheck: "false", "aria-label": `Body of ${path}` }, JSON.stringify(example, null, 2));
  const out = node("pre", { "aria-live": "polite", hidden: "" });
  const send = node("button", { type: "button" }, "Send");
  send.addEventListener("click", async () => {
    out.hidden = false;
    out.textContent = "...";
    try {
      const { reply } = await ask(path, body ? JSON.parse(body.value) : undefined);
      out.textContent = JSON.stringify(reply, null, 2);
    } catch (error) {
      out.textContent = error.message;
    }
  });
  return node("div", {}, ...(body ? [body] : []), send, out);
}

function operation(path, method, described, all) {
  const box = node("details", { id: described.operationId }, node("summary", {}, node("code", {}, `${method.toUpperCase()} ${path}`), described.summary));
  box.append(node("p", {}, described.description));
  const content = described.requestBody?.content["application/json"];
  if (content) {
    const reference = content.schema.allOf?.[0] ?? content.schema;
    box.append(fieldsOf(followed(reference, all), all), trial(path, Object.values(content.examples ?? {})[0]?.value));
  } else if (!path.includes("{")) {
    box.append(trial(path));
  }
  const replies = Object.entries(described.responses).map(([status, reply]) => node("li", {}, node("code", {}, status), ` ${reply.description}`));
  box.append(node("h3", {}, "Replies"), node("ul", {}, ...replies));
  return box;
}

async function show() {
  const main = document.getElementById("main");
  try {
    const { reply: document_ } = await ask("/openapi.json");
    main.replaceChildren(node("p", {}, document_.info.description));
    for (const [path, methods] of Object.entries(document_.paths)) {
      for (const [method, described] of Object.entries(methods)) main.append(operation(path, method, described, document_.components.schemas));
    }
  } catch (error) {
    main.replaceChildren(node("p", { role: "alert" }, error.message));
  }
}

show();

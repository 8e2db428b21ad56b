// Statistics as tables. Mappings with the same keys share a table; a list of mappings has its own.

import { make, makeToken } from "./elements.js";
import { axisLabels, labelText } from "../values/labels.js";
import { NO_NUMBER, scalar } from "../values/numbers.js";

export const PLACES = ["layer", "head"];
const MOST_HEADS = 1e6; // per layer, to sort by layer and head
const areHeads = (rows) => rows.every((row) => PLACES.every((axis) => Number.isInteger(row[axis])));
const headName = ({ layer, head }) => `${layer}:${head}`;
export const words = (name) => name.replaceAll("_", " ");

export function showTables(container, statistics, onPlace) {
  const shared = new Map();
  const tables = [];
  for (const [name, value] of Object.entries(statistics)) {
    if (Array.isArray(value)) {
      const isOfHeads = name === "heads";
      tables.push(tableOf(words(name), isOfHeads ? distinguished(value) : value, isOfHeads ? onPlace : null));
    }
    else if (value && typeof value === "object") {
      const names = Object.keys(value).join();
      if (!shared.has(names)) shared.set(names, []);
      shared.get(names).push({ "": words(name), ...value });
    } else shared.set(name, [{ "": words(name), value }]);
  }
  for (const rows of shared.values()) tables.push(tableOf("", rows, null));
  container.replaceChildren(...tables);
}

// Rows of heads without redundant columns: kind or module if it follows from the layer, stack if there is only one.
function distinguished(rows) {
  const count = (...names) => new Set(rows.map((row) => names.map((name) => row[name]).join("\n"))).size;
  const dropped = count("layer", "stack", "kind") === count("layer") ? ["kind"] : [];
  if (count("stack") === 1) dropped.push("stack");
  if (count("layer", "stack", "module") === count("layer", "stack")) dropped.push("module");
  const isKept = ([name]) => !dropped.includes(name);
  return rows.map((row) => Object.fromEntries(Object.entries(row).filter(isKept)));
}

// Statistics of each key as a table, for reports without a map of keys.
export function keyTable(report) {
  const ofKeys = report.keys.filter(({ axes }) => String(axes) === "key");
  const hasMap = report.matrices.some(({ axes }) => axes.at(-1).startsWith("key"));
  if (hasMap || !ofKeys.length) return "";
  const labels = axisLabels(report, "key", ofKeys[0].values.length);
  const rows = labels.map((label, i) => ({
    token: labelText(label),
    ...Object.fromEntries(ofKeys.map(({ name, values }) => [name, values[i]])),
  }));
  const { head } = report.settings;
  return tableOf(head ? `head ${head}, token by token` : "statistics of each key", rows, null);
}

// A list in a row becomes one column per number; longer lists are drawn as curves instead.
const MOST_LISTED = 24;
function flattened(row) {
  const cells = {};
  for (const [name, value] of Object.entries(row)) {
    if (Array.isArray(value) && value.length > MOST_LISTED) continue;
    if (Array.isArray(value)) value.forEach((item, i) => (cells[`${name} ${i}`] = item));
    else if (value && typeof value === "object")
      for (const [part, item] of Object.entries(value)) cells[`${name} ${part}`] = item;
    else cells[name] = value;
  }
  return cells;
}

// A sortable table. If its rows are heads, clicking one shows that head.
export function tableOf(title, mappings, onPlace) {
  const rows = mappings.map(flattened);
  const names = Object.keys(rows[0] ?? {}).filter((name) => name !== "layer" || !areHeads(rows));
  const body = make("tbody");
  const heads = names.map((name) => {
    const button = make("button", { type: "button", text: words(name) });
    const kind = typeof rows[0][name] === "string" ? "text" : "number";
    if (!name) return make("td"); // above the row names
    const head = make("th", { scope: "col", class: kind }, rows.length > 1 ? button : words(name));
    button.addEventListener("click", () => sortBy(name, head));
    return head;
  });
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
  const isWhole = (value) => value === null || Number.isInteger(value);
  const areWhole = new Set(names.filter((name) => rows.every((row) => isWhole(row[name]))));
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) => rowOf(row, names, areWhole, onPlace)));
  const sortBy = (name, head) => {
    const isDescending = head.getAttribute("aria-sort") !== "descending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
    const ofRow = (row) => (name === "head" && areHeads(rows) ? row.layer * MOST_HEADS + row.head : row[name]);
    fill([...rows].sort((one, other) => compared(ofRow(one), ofRow(other)) * (isDescending ? -1 : 1)));
  };
  fill(rows);
  const label = `table of ${title || rows.map((row) => row[""]).join(", ")}`;
  const box = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
  return make("section", { class: "table" }, title ? make("h2", { text: title }) : "", box);
}

function compared(one, other) {
  if (typeof one === "string" || typeof other === "string") return String(one).localeCompare(String(other));
  return (one ?? -Infinity) - (other ?? -Infinity) || 0;
}

function rowOf(row, names, areWhole, onPlace) {
  const cells = names.map((name) => {
    const value = row[name];
    if (typeof value === "string") return make("td", { class: "text" }, makeToken(value));
    if (name === "head" && areHeads([row])) return make("td", { class: "number", text: headName(row) });
    return make("td", { class: "number", text: areWhole.has(name) ? (value ?? NO_NUMBER) : scalar(value) });
  });
  const line = make("tr", {}, ...cells);
  if (onPlace && PLACES.every((axis) => axis in row)) {
    const first = cells[names.indexOf("head")];
    const button = make("button", {
      type: "button",
      "aria-label": `Show head ${headName(row)}`,
      text: headName(row),
    });
    button.addEventListener("click", () => onPlace(row));
    first.replaceChildren(button);
  }
  return line;
}

// One card per selected or hovered token: what it looks at, what looks at it, and the statistics of its row.

import { make, makeToken } from "./elements.js";
import { linkTo } from "./linked.js";
import { meaningsOf, tableOf } from "./tables.js";
import { labelText, placeText } from "../values/labels.js";
import { scalar, weightText } from "../values/numbers.js";

const MOST_IN_A_LIST = 8;

// Cards for each source in each matrix, the chosen matrix first.
export function showCards(container, matrices, sources, statistics, onUnpin) {
  const cards = sources.flatMap((source) =>
    matrices.map((matrix) => cardOf(matrix, source, statistics, onUnpin, matrices.length > 1)),
  );
  container.classList.toggle("resting", !cards.length);
  container.replaceChildren(...(cards.length ? cards : [make("p", { class: "quiet", text: HINT })]));
}

const HINT = "Point at a token, or focus it, to see what it looks at and what looks at it; click to select it.";

// Statistics of every row of a matrix as a table, or an empty text if the report has none.
export function everyRow({ rowLabels, place }, report) {
  const shown = report.rows.filter(({ axes, values }) => axes.at(-1) === "query" && values);
  if (!shown.length) return "";
  const mappings = rowLabels.map((label, i) => {
    const pairs = shown.map((tensor) => [tensor.name, tensor.at(place)[i]]);
    return { query: labelText(label), ...Object.fromEntries(pairs) };
  });
  return tableOf("Statistics of each row", mappings, null, { meanings: meaningsOf(report, "rows") });
}

function cardOf(matrix, source, statistics, onUnpin, isNamed) {
  const index = source.query ?? source.key;
  const label = (source.query === null ? matrix.columnLabels : matrix.rowLabels)[index];
  const swatch = make("span", { class: `swatch ${source.colour}`, "aria-hidden": "true" });
  const title = make(
    "h3",
    {},
    swatch,
    make("span", { class: "position", text: label.position }),
    " ",
    makeToken(label.token),
    isNamed ? make("span", { class: "quiet", text: placeText(matrix.place) }) : "",
  );
  linkTo(title, { [source.query === null ? "key" : "query"]: label.position });
  const card = make("article", { class: "card" }, title);
  if (source.isPinned) {
    const button = make("button", {
      type: "button",
      class: "unpin",
      "aria-label": `Deselect ${labelText(label)}`,
      text: "×",
    });
    button.addEventListener("click", () => onUnpin(source));
    title.append(button);
  }
  const lists = make("div", { class: "lists" });
  if (source.query !== null)
    lists.append(listOf("looks at", "key", matrix.row(source.query), matrix.columnLabels, matrix.decimals));
  if (source.key !== null)
    lists.append(listOf("looked at by", "query", matrix.column(source.key), matrix.rowLabels, matrix.decimals));
  card.append(lists, statisticsOf(source, statistics, matrix));
  return card;
}

function listOf(title, side, numbers, labels, decimals) {
  const order = Array.from(numbers.keys()).filter((i) => numbers[i] === numbers[i] && numbers[i] !== 0);
  order.sort((one, other) => numbers[other] - numbers[one]);
  const largest = Math.max(...order.map((i) => Math.abs(numbers[i])));
  const items = order.slice(0, MOST_IN_A_LIST).map((i) => {
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * Math.abs(numbers[i])) / largest}%`;
    const name = make(
      "span",
      { class: "name" },
      make("span", { class: "position", text: labels[i].position }),
      " ",
      makeToken(labels[i].token),
    );
    const number = make("span", { class: "number", text: weightText(numbers[i], decimals) });
    return linkTo(make("li", {}, bar, name, number), { [side]: labels[i].position });
  });
  const rest = order.length - items.length;
  const more = rest > 0 ? make("p", { class: "quiet", text: `and ${rest} more` }) : "";
  return make("div", {}, make("h4", { text: title }), make("ol", {}, ...items), more);
}

// Statistics of the query's row and of the key's column.
function statisticsOf({ query, key }, report, { place }) {
  const { rows, keys } = report;
  const pairs = [];
  const add = (tensors, axis, index) => {
    for (const tensor of tensors) {
      if (tensor.axes.at(-1) === axis) pairs.push([tensor.name, tensor.at(place)[index]]);
    }
  };
  if (query !== null) add(rows, "query", query);
  if (key !== null) add(keys, "key", key);
  return fillStatistics(make("dl", { class: "statistics" }), pairs, meaningsOf(report));
}

// `meanings` are those of the names.
export function fillStatistics(list, pairs, meanings = meaningsOf({})) {
  const text = (value) => (typeof value === "string" ? value : scalar(value));
  const lines = pairs.map(([name, value]) => {
    const { label, title } = meanings(name);
    return make("div", title ? { title } : {}, make("dt", { text: label }), make("dd", { text: text(value) }));
  });
  list.replaceChildren(...lines);
  return list;
}

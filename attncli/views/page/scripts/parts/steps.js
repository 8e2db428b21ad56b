// A computation step by step: formula, shapes, explanation, terms and single numbers.

import { fillStatistics } from "./cards.js";
import { make, makeToken } from "./elements.js";
import { words } from "./tables.js";
import { fixed } from "../values/numbers.js";

export function showSteps(container, steps) {
  container.replaceChildren(
    ...steps.map((step, i) => stepOf(step, `${i + 1} of ${steps.length}: ${step.title}`)),
  );
  container.hidden = !steps.length;
}

function stepOf({ question, formula, prose, shapes, values, tables }, title) {
  const sizes = shapes.map(({ name, axes, sizes: counts, strides }) => {
    const apart = strides ? `, strides ${strides.join(", ")}` : "";
    return `${name} (${axes.join(" × ")}) ${counts.join(" × ")}${apart}`;
  });
  const numbers = Object.entries(values).map(([name, value]) => [
    name,
    Number.isInteger(value) ? String(value) : value,
  ]);
  return make(
    "details",
    { class: "step", open: "" },
    make("summary", {}, make("h2", { text: title })),
    make("p", { class: "formula", text: formula }),
    make("p", { class: "quiet", text: sizes.join("; ") }),
    question ? make("p", { class: "question", text: question }) : "",
    make("p", { text: prose }),
    ...tables.map(termsOf),
    numbers.length ? fillStatistics(make("dl", { class: "statistics" }), numbers) : "",
  );
}

// One row per term, and totals; long tables are shortened.
function termsOf({ title, columns, rows, count, totals }) {
  const isPart = count > rows.length;
  const heading = isPart ? `${title} (${rows.length} of ${count} rows)` : title;
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col", text: words(name) })));
  const areWhole = columns.map((_, i) => rows.every((cells) => Number.isInteger(cells[i])));
  const lineOf = (cells, kind) =>
    make("tr", { class: kind }, ...cells.map((cell, i) => cellOf(cell, areWhole[i])));
  const body = make(
    "tbody",
    {},
    ...rows.map((cells) => lineOf(cells, "")),
    ...totals.map((cells) => lineOf(cells, "total")),
  );
  const table = make("table", {}, make("thead", {}, head), body);
  const box = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": heading }, table);
  return make("div", {}, make("h3", { text: heading }), box);
}

function cellOf(value, isWhole) {
  if (typeof value === "string") return make("td", { class: "text" }, makeToken(value));
  return make("td", { class: "number", text: isWhole && value !== null ? value : fixed(value) });
}

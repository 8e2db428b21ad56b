// Numbers of a report that are drawn as line charts.

import { chartOf } from "./charts.js";
import { spreadsOf } from "./spreads.js";
import { meaningsOf, tableMeaning, tableOf, words } from "./tables.js";
import { axisLabels, labelText } from "../values/labels.js";
import { scalar } from "../values/numbers.js";

// Draw all lists of numbers in rows of statistics, and all one-dimensional tensors: those of the report's picture in
// the first container, or the first one on a page without maps; the others in the second.
export async function showCurves(container, others, report, tensors) {
  await Promise.all(tensors.map((tensor) => tensor.load()));
  // For a curve, the first tensor of axis point has the horizontal positions, the others the values.
  const points = tensors.filter(({ axes }) => axes[0] === "point");
  const places = points.length > 1 ? points.shift() : null;
  const ofTensor = (tensor) => {
    if (tensor.type === "int32") return tableOfWhole(report, tensor);
    return places && points.includes(tensor) ? curveOf(tensor, places) : chartOfTensor(report, tensor);
  };
  const ofTensors = tensors
    .filter((tensor) => tensor !== places && tensor.values.length > 1)
    .map((tensor) => [tensor.name, ofTensor(tensor)]);
  const ofRows = Object.entries(report.statistics)
    .filter(([, value]) => Array.isArray(value))
    .flatMap(([name, value]) =>
      chartsOfRows(tableMeaning(report, name).label, value, meaningsOf(report, name)).map((chart) => [name, chart]),
    );
  // Curves that are compared come first.
  const charts = [...report.spreads.map((each) => ["spreads", spreadsOf(each)]), ...ofRows, ...ofTensors];
  const own = charts.filter(([name]) => report.picture.includes(name));
  if (!own.length && !report.matrices.length) own.push(...charts.slice(0, 1));
  container.replaceChildren(...own.map(([, chart]) => chart));
  others.replaceChildren(...charts.filter((each) => !own.includes(each)).map(([, chart]) => chart));
  for (const each of [container, others]) each.hidden = !each.children.length;
}

// Row statistics of one map, for pages with blocks of weights instead of single rows.
export function showRowCurves(container, report, matrix) {
  const shown =
    matrix.axes[0] === "query_block" ? report.rows.filter(({ axes }) => axes.at(-1) === "query") : [];
  container.replaceChildren(
    ...shown.map((tensor) => {
      return chartOfTensor(report, { ...tensor, axes: ["query"], values: tensor.at(matrix.place) });
    }),
  );
}

function chartOfTensor(report, { name, axes: [axis], values, unit }) {
  const places = Array.from(values.keys());
  const labels = axisLabels(report, axis, values.length).map(labelText);
  const across = { name: words(axis), places, labels, isCounted: true, unit };
  return chartOf(words(name), [{ numbers: Array.from(values) }], across);
}

// Integers such as token ids are a table, not a curve.
function tableOfWhole(report, { name, axes: [axis], values }) {
  const labels = axisLabels(report, axis, values.length);
  return tableOf(
    words(name),
    labels.map((label, i) => ({ [axis]: labelText(label), number: values[i] })),
    null,
  );
}

function curveOf({ name, values, unit }, { name: placesName, values: places }) {
  const text = places.every(Number.isInteger) ? String : (place) => scalar(place);
  const across = { name: words(placesName), places, labels: Array.from(places, (place) => text(place)), unit };
  return chartOf(words(name), [{ numbers: Array.from(values) }], across);
}

// Lists of positions are rankings; they and the lists next to them are not drawn as curves.
const POSITIONS = ["keys", "top_keys"];

// One line per row, named after its first column.
function chartsOfRows(title, rows, meanings) {
  const [first, ...others] = Object.keys(rows[0] ?? {});
  if (POSITIONS.some((name) => others.includes(name))) return [];
  const isList = (name) => rows.every((row) => Array.isArray(row[name]) && row[name].length > 1);
  // The list on the horizontal axis, if there is one.
  const over = rows.length ? ["budget", "step", "false_positive_rate"].find(isList) : undefined;
  const across = over ? rows[0][over] : null;
  const lists = others.filter((name) => isList(name) && name !== over);
  return lists.map((name) => {
    const lines = rows.map((row) => ({
      name: typeof row[first] === "string" ? row[first] : `${meanings(first).label} ${row[first]}`,
      numbers: row[name].map((value) => value ?? NaN),
    }));
    const places = across ?? rows[0][name].map((_, i) => i);
    const axis = { name: over ? meanings(over).label : "place", places, labels: places.map(String) };
    const { label, unit } = meanings(name);
    const isCounted = !["budget", "false_positive_rate"].includes(over);
    // The only list of a table is what its title says, in the unit of the list.
    const [heading, inUnit] = lists.length > 1 ? [`${title}: ${label}`, unit] : [title, unit || label];
    return chartOf(heading, lines, { ...axis, isCounted, unit: inUnit });
  });
}

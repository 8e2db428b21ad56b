// The composition of a report's page: its picture and the table beside it; everything else is folded.

import { chosen, matrix } from "./chosen.js";
import { byId } from "../parts/elements.js";
import { meaningsOf, PLACES, tableMeaning, tableOf } from "../parts/tables.js";
import { labelText } from "../values/labels.js";
import { largestIn } from "../values/numbers.js";

// The picture that the result declares, or the first of these that the report has.
function pictureOf({ picture, matrices, picture_maps: maps, blocks, tensors }, above) {
  if (above.some((section) => Object.hasOwn(blocks, section.id))) return "blocks";
  if (picture.length && !matrices.some(({ name }) => name === picture[0])) return "curves";
  if (maps) return "maps";
  if (matrices.length) return "matrix";
  return tensors.length ? "curves" : "";
}

// Place the maps and the curves: in the scene if they are the report's picture, otherwise among all numbers.
export function arrangeScene(report) {
  const above = [...document.querySelectorAll("#pictures > .block")];
  const picture = pictureOf(report, above);
  const isInScene = { workspace: picture === "matrix", curves: picture === "curves" };
  const second = byId("second");
  for (const [id, isHere] of Object.entries(isInScene)) {
    if (isHere) byId("pictures").append(byId(id));
    else second.append(byId(id));
  }
  if (isInScene.workspace) byId("aside").prepend(byId("controls"));
  else second.insertBefore(byId("controls"), byId("workspace"));
  byId("scene").dataset.picture = picture;
}

// The table beside the picture: the one that the result declares, or the tokens of the chosen map.
export function showRanked(report, onPlace) {
  const { table } = report;
  const rows = table ? report.statistics[table.table] : null;
  const ranked = rows?.length ? rankedTable(report, rows, onPlace) : tokenTable(report);
  byId("ranked").replaceChildren(ranked);
}

function ordered(rows, { by, first, last }) {
  const hasCell = (row, [name, value]) => name !== "" && row[name] === value;
  const group = (row) => hasCell(row, first) - hasCell(row, last);
  const size = (row) => (by ? (row[by] ?? -Number.MAX_VALUE) : 0);
  return [...rows].sort((one, other) => group(other) - group(one) || size(other) - size(one));
}

// The first row of the table beside the picture, or undefined.
export const firstRanked = ({ table, statistics }) => table && ordered(statistics[table.table] ?? [], table)[0];

function rankedTable(report, rows, onPlace) {
  const { table, columns } = report.table;
  const place = PLACES.every((axis) => axis in rows[0]) ? ["head"] : [];
  const { label } = tableMeaning(report, table);
  const names = columns.length ? [...new Set([...place, ...columns])] : null;
  return tableOf(label, ordered(rows, report.table), onPlace, { meanings: meaningsOf(report, table), names });
}

const OF_TOKENS = {
  token: { label: "token" },
  received_mass: { label: "received", title: "Sum of the weights on this token over all queries" },
  looks_most_at: { label: "looks most at", title: "The key to which this token gives the most weight" },
  weight: { label: "weight", title: "The weight on this key" },
};
const ofTokens = (name) => ({ unit: "", about: "", title: "", ...OF_TOKENS[name] });

const TIED = 1e-6; // a smaller difference between weights is rounding

// The tokens of a map of weights, those with the most weight first, and where each looks most.
function tokenTable({ keys }) {
  if (!matrix?.isAttention || chosen.tensor.is_pictured) return "";
  const received = keys.find(({ name, axes }) => name === "received_mass" && axes.at(-1) === "key");
  if (!received?.values) return "";
  const sums = received.at(matrix.place);
  const rows = matrix.columnLabels.map((label, i) => ({ token: labelText(label), received_mass: sums[i] }));
  if (matrix.isSelf) {
    rows.forEach((row, i) => {
      const weights = matrix.row(i);
      const most = largestIn(weights);
      if (most < 0) return;
      const isTied = weights.filter((weight) => weight > weights[most] - TIED).length > 1;
      Object.assign(row, { looks_most_at: isTied ? "several" : labelText(matrix.columnLabels[most]), weight: weights[most] });
    });
  }
  return tableOf("Tokens by the weight they receive", rows, null, { meanings: ofTokens, sort: "received_mass" });
}

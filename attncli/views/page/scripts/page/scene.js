// The composition of a report's page: its picture and the table beside it; everything else is folded.

import { chosen, matrix } from "./chosen.js";
import { byId, make } from "../parts/elements.js";
import { tableOf, words } from "../parts/tables.js";
import { labelText } from "../values/labels.js";
import { largestIn } from "../values/numbers.js";

const MOST_ROWS = 10;

// The picture that the result declares, or the first of these that the report has.
function pictureOf({ picture, matrices, picture_maps: maps, blocks, tensors }, above) {
  if (above.some((section) => Object.hasOwn(blocks, section.id))) return "blocks";
  if (picture === "curves") return "curves";
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
  const ranked = rows?.length ? rankedRows(rows, table) : tokenRows(report);
  byId("ranked").hidden = !ranked;
  byId("ranked").replaceChildren(...(ranked ? [rankedTable(ranked, onPlace)] : []));
}

const ordered = (rows, by) =>
  by ? [...rows].sort((one, other) => (other[by] ?? -Infinity) - (one[by] ?? -Infinity)) : rows;

// The first row of the table beside the picture, or undefined.
export const firstRanked = ({ table, statistics }) => table && ordered(statistics[table.table] ?? [], table.by)[0];

function rankedRows(rows, { table, columns, by }) {
  const places = Object.keys(rows[0]).filter((name) => ["layer", "head"].includes(name));
  const own = columns.length && byId("scene").dataset.picture ? columns : Object.keys(rows[0]);
  const names = [...new Set([...places, ...own])];
  return { title: words(table), rows: ordered(rows, by).map((row) => Object.fromEntries(names.map((name) => [name, row[name]]))) };
}

// The tokens of a map of weights, those with the most weight first, and where each looks most.
function tokenRows({ keys }) {
  if (!matrix?.isAttention || chosen.tensor.is_pictured) return null;
  const received = keys.find(({ name, axes }) => name === "received_mass" && axes.at(-1) === "key");
  if (!received?.values) return null;
  const sums = received.at(matrix.place);
  const rows = matrix.columnLabels.map((label, i) => ({ token: labelText(label), received_mass: sums[i] }));
  if (matrix.isSelf) {
    rows.forEach((row, i) => {
      const most = largestIn(matrix.row(i));
      if (most >= 0) Object.assign(row, { looks_most_at: labelText(matrix.columnLabels[most]), weight: matrix.row(i)[most] });
    });
  }
  rows.sort((one, other) => other.received_mass - one.received_mass);
  return { title: "tokens by received weight", rows };
}

function rankedTable({ title, rows }, onPlace) {
  const box = make("div", {});
  const show = (count) => {
    const table = tableOf(title, rows.slice(0, count), onPlace);
    box.replaceChildren(table);
    if (rows.length <= MOST_ROWS) return;
    const isWhole = count >= rows.length;
    const text = isWhole ? `Show ${MOST_ROWS} rows` : `Show all ${rows.length} rows`;
    const button = make("button", { type: "button", "aria-expanded": String(isWhole), text });
    button.addEventListener("click", () => show(isWhole ? MOST_ROWS : rows.length));
    table.append(button);
  };
  show(MOST_ROWS);
  return box;
}

// Notes, settings and statistics of a report, and the shading of its maps.

import { chosen, sources } from "./chosen.js";
import { surveyed } from "./rankings.js";
import { fillStatistics } from "../parts/cards.js";
import { byId, make, makeToken } from "../parts/elements.js";
import { meaningsOf, PLACES } from "../parts/tables.js";
import { Tensor } from "../values/arrays.js";
import { endsOf, shadingOf } from "../values/colours.js";
import { shortPlace, tokensAlong } from "../values/labels.js";

export function readReport(index) {
  const data = JSON.parse(sources[index].textContent);
  for (const kind of ["tensors", "rows", "keys"]) data[kind] = data[kind].map((tensor) => new Tensor(tensor));
  data.matrices = data.tensors.filter((tensor) => tensor.isMatrix && tensor.shape.every((size) => size > 0));
  const isFull = ({ name }) => Object.hasOwn(data.whole_heads, name);
  data.full = new Map(data.matrices.filter(isFull).map((tensor) => [data.whole_heads[tensor.name], tensor]));
  data.matrices = data.matrices.filter((tensor) => !isFull(tensor));
  return data;
}

// Number of columns without colour: the skipped keys, or the blocks that contain one.
export function skippedOf({ axes, columns }) {
  const axis = axes.at(-1);
  if (axis === "key") return Math.min(chosen.skip, columns - 1);
  if (axis !== "key_block") return 0;
  const size = Math.ceil(tokensAlong(chosen.report, axis).length / columns) || 1;
  return Math.min(Math.ceil(chosen.skip / size), columns - 1);
}

// The tensors compared with this one, which share its colour scale.
export const comparedWith = ({ compared }) =>
  chosen.report.matrices.filter(({ name }) => compared.includes(name));

// The chosen scale. By default log for blocks, whose weights differ by orders of magnitude.
export const scaleOf = ({ axes }) => chosen.scale ?? (axes.at(-1) === "key_block" ? "log" : "linear");

// Common shading of several maps, each a tensor and an index. The range covers these maps, or all maps if
// "all" is chosen, and the tensors compared with them.
export function shadingOfMaps(maps) {
  const [[tensor]] = maps;
  const ends = maps.flatMap(([shown, number]) =>
    [shown, ...comparedWith(shown)].map((each) =>
      endsOf(chosen.range === "all" ? each.values : each.matrix(number), each.columns, skippedOf(each)),
    ),
  );
  const joined = {
    low: Math.min(...ends.map(({ low }) => low)),
    high: Math.max(...ends.map(({ high }) => high)),
    above: Math.min(...ends.map(({ above }) => above)),
  };
  return shadingOf(joined, scaleOf(tensor), tensor.is_weights);
}

export function noteOf(shown, place) {
  const row = chosen.tensor.axes.includes("layer") ? surveyRow(place) : undefined;
  const notes = row?.pattern ? [`Pattern: ${patternsOf(row)}.`] : [];
  if (shown.marks) notes.push(shown.marks_note);
  if (shown.axes.at(-1) === "key_block") notes.push("Each cell is a block of tokens.");
  if (chosen.report.full.size && shown.axes.at(-1) === "key_block") {
    notes.push(`Shown in full: ${[...chosen.report.full.keys()].join(", ")} (framed in the overview).`);
  }
  if (shown.decimals < 4) notes.push(`Numbers on this page have ${shown.decimals} decimals.`);
  return notes.join(" ");
}

// The survey's row of the head at a place, or undefined.
const surveyRow = (place) =>
  surveyed(chosen.report).find((other) => `${other.layer}:${other.head}` === shortPlace(place));
const patternsOf = (row) =>
  [row.pattern, row.rest_pattern && `else ${row.rest_pattern}`].filter(Boolean).join(", ");

// Statistics of the chosen head, from the survey.
export function showHeadStatistics(place) {
  const row = chosen.tensor.axes.includes("layer") ? surveyRow(place) : undefined;
  byId("head-statistics").hidden = !row;
  const isStatistic = ([name, value]) => !PLACES.includes(name) && typeof value !== "string" && name !== "rest_pattern";
  if (!row) return;
  const patterns = patternsOf(row);
  const named = patterns ? [["pattern", patterns]] : [];
  const pairs = [...named, ...Object.entries(row).filter(isStatistic)];
  fillStatistics(byId("head-statistics"), pairs, meaningsOf(chosen.report, "heads"));
}

export function showNotes(report) {
  const { environment, settings, left_out, finding } = report;
  byId("finding").hidden = !finding;
  byId("finding").textContent = finding ?? "";
  const lines = [
    ...report.notes,
    ...left_out.map((text) => `Left out of this page: ${text}; JSON and CSV files have every number.`),
  ];
  const list = make("dl", { class: "statistics" });
  for (const [name, value] of [...Object.entries(settings), ...Object.entries(environment)]) {
    list.append(make("div", {}, make("dt", { text: name }), make("dd", {}, makeToken(value))));
  }
  const details = make("details", {}, make("summary", { text: "Settings" }), list);
  byId("notes").replaceChildren(...lines.map((text) => make("p", { text })), details);
}

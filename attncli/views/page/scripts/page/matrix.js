// One matrix of a report in the form that the map, the tokens and the cards draw.

import { chosen } from "./chosen.js";
import { placesOf } from "./rankings.js";
import { skippedOf } from "./report.js";
import { axisLabels, matrixTitle, shortPlace } from "../values/labels.js";

// The tensor and index of a map: the head's full weights if the page has them, otherwise the pooled map.
export async function mapAt(number) {
  const { report, tensor } = chosen;
  const full = report.full.get(shortPlace(tensor.place(number)));
  if (!full) return [tensor, number];
  await full.load();
  return [full, 0];
}

// The cells of the weights that the report was asked about, framed as marks are.
function askedCells({ named: { from, to } }) {
  const [queries, keys] = [placesOf(from, "query"), placesOf(to, "key")];
  return queries.flatMap((query) => keys.map((key) => [query, key, 1]));
}

export function matrixOf([shown, index], number, shading) {
  const { report, tensor } = chosen;
  const place = tensor.place(number);
  const values = shown.matrix(index);
  const axes = shown.axes.slice(-2);
  const isAttention = axes[0] === "query" && axes[1] === "key";
  return {
    values,
    rows: shown.rows,
    columns: shown.columns,
    axes,
    place,
    shading,
    skip: skippedOf(shown),
    decimals: shown.decimals,
    marks: [...(shown.marks ?? []), ...(isAttention ? askedCells(report) : [])],
    unit: shown.unit,
    isLog: shading.kind === "log",
    title: matrixTitle(shown === tensor ? tensor : { ...shown, name: "weights" }, place),
    rowLabels: axisLabels(report, axes[0], shown.rows),
    columnLabels: axisLabels(report, axes[1], shown.columns),
    row: (i) => values.subarray(i * shown.columns, (i + 1) * shown.columns),
    column: (j) => Float64Array.from({ length: shown.rows }, (_, i) => values[i * shown.columns + j]),
    isAttention,
    isSelf: isAttention && !report.context_tokens.length && shown.rows === shown.columns,
  };
}

export const isSameSize = (one, other) => one.rows === other.rows && one.columns === other.columns;

// Attention of heads over pictures. One query is chosen for all heads.

import { chosen, matrix, overview, pictureView, start } from "./chosen.js";
import { openSheet } from "./sheet.js";
import { showCards } from "../parts/cards.js";
import { byId, fillSelect } from "../parts/elements.js";
import { Picture } from "../parts/picture.js";
import { scaleOf } from "./report.js";
import { shadingOf, showLegend } from "../values/colours.js";
import { axisLabels, labelText, matrixTitle, placeText } from "../values/labels.js";
import { largestIn, weightText } from "../values/numbers.js";

const PIXELS = { small: 56, medium: 112, large: 230 };
const ONE_QUERY = {
  tokens: "This page has only the weights from this token; attn self --head LAYER:HEAD shows one head from every patch",
  context_tokens: "This page has only these weights; attn cross --head LAYER:HEAD shows one head from every word",
};

let picture = null;

// The pictures on the key side.
export function picturesOf(report) {
  const side = report.context_tokens.length ? "context_tokens" : "tokens";
  report.looked ??= report.pictures.filter(({ axis }) => axis === side).map((data) => new Picture(data));
  return report.looked;
}

// Load the pictures and choose the initial query.
export async function startLooks() {
  const { report } = chosen;
  fillSelect(
    byId("picture-choice"),
    picturesOf(report).map(({ name }, i) => [i, name]),
    chosen.picture,
  );
  byId("picture-choice").parentElement.hidden = report.looked.length < 2;
  picture = report.looked[chosen.picture];
  await picture.load();
  if (chosen.query === undefined) chosen.query = picture.query;
  Object.assign(chosen, { lookedQuery: undefined, hovered: null });
}

const queryNow = () => (chosen.lookedQuery === undefined ? chosen.query : chosen.lookedQuery);
const numberNow = () => chosen.hovered ?? chosen.number;

// A head's weights from one query; a null query is the mean over all queries.
function lookOf(number, query) {
  const { tensor, report } = chosen;
  const values = tensor.matrix(number);
  const { rows, columns } = tensor;
  if (rows === 1) return values;
  const row = query === null ? -1 : query - report.first_query;
  if (row >= 0 && row < rows) return values.subarray(row * columns, (row + 1) * columns);
  const sums = new Float64Array(columns);
  for (let i = 0; i < values.length; i++) sums[i % columns] += values[i] || 0;
  return sums.map((sum) => sum / rows);
}

const shadingOfRows = (rows) => {
  const ends = rows.map((row) => picture.endsOf(row));
  const joined = {
    low: Math.min(...ends.map(({ low }) => low)),
    high: Math.max(...ends.map(({ high }) => high)),
    above: Math.min(...ends.map(({ above }) => above)),
  };
  const scale = scaleOf(chosen.tensor);
  return shadingOf(joined, scale === "row" ? "linear" : scale, true);
};

// Shading over the range of this head, or of all heads for this query.
function shadingNow(row, query) {
  if (chosen.range !== "all" || chosen.tensor.count < 2) return shadingOfRows([row]);
  return shadingOfRows(overview.items.map(({ number }) => lookOf(number, query)));
}

export function paintLooks() {
  const query = queryNow();
  const ofAll = chosen.range === "all" ? shadingNow(null, query) : null;
  const most = PIXELS[overview.size];
  overview.paint((canvas, number) => {
    const row = lookOf(number, query);
    picture.paint(canvas, row, ofAll ?? shadingOfRows([row]), most, start.cover);
    canvas.style.aspectRatio = `${picture.width} / ${picture.height}`;
  });
}

// Patches are queries if the queries lie on the picture; otherwise they are only keys.
const areQueries = () => picture.axis === "tokens" && chosen.tensor.rows > 1;

export function showLooks() {
  const { report, tensor } = chosen;
  const queries = axisLabels(report, "query", tensor.rows);
  const written = report.statistics.written;
  const words = Array.isArray(written) && written.length === tensor.rows ? written : null;
  const onSide = picture.axis === "tokens";
  const buttons = [];
  if (tensor.rows > 1) {
    buttons.push({ token: null, label: "all tokens (mean)", hasLook: true });
    queries.forEach((label, i) => {
      const token = report.first_query + i;
      if (onSide && picture.boxes[token]) return;
      buttons.push({ token, label: words ? words[i].token.trim() : label.token || label.position, hasLook: true });
    });
  }
  const keys = axisLabels(report, "key", tensor.columns);
  const isListed = new Set(onSide ? buttons.map(({ token }) => token) : []);
  keys.forEach((label, token) => {
    if (!picture.boxes[token] && !isListed.has(token))
      buttons.push({ token: onSide ? token : -1 - token, label: label.token || label.position, hasLook: false });
  });
  pictureView.show(picture, buttons, { isChoice: areQueries(), note: tensor.rows > 1 ? "" : ONE_QUERY[picture.axis] });
  for (const id of ["tokens", "compared-box", "map-name", "compare-choice"]) byId(id).hidden = true;
  byId("cards").hidden = false;
  byId("parts").classList.remove("compared");
  drawLook();
  chosen.onChange();
}

// The patch with the largest weight from a query outside the picture; null for the mean and for tokens without a row.
export function mostLookedAt(query) {
  const row = query === null || query < 0 ? null : lookOf(numberNow(), query);
  const best = (most, [, token]) => (most === null || row[token] > row[most] ? token : most);
  return row && picture.placed.reduce(best, null);
}

// Draw the current head and query: the large picture, the tokens beside it and the readout.
function drawLook() {
  const { report, tensor } = chosen;
  const [number, query] = [numberNow(), queryNow()];
  const row = lookOf(number, query);
  const shading = shadingNow(row, query);
  pictureView.paint(row, shading, start.cover);
  const weightOf = (token) => {
    if (token === null) return null;
    if (picture.axis === "tokens") return row[token];
    return token < 0 ? row[-1 - token] : null;
  };
  const paintTile = (canvas, token, pixels) => {
    const look = lookOf(number, token);
    picture.paint(canvas, look, shadingOfRows([look]), pixels, start.cover);
  };
  pictureView.mark(query, weightOf, paintTile, tensor.decimals);
  showLegend(byId("legend"), shading, { decimals: tensor.decimals, unit: "weight" });
  const labels = axisLabels(report, "key", tensor.columns);
  const name = query === null ? "all tokens (mean)" : report.tokens[query] ?? "";
  const onPicture = picture.placed.reduce((sum, [, token]) => sum + (row[token] || 0), 0);
  const total = row.reduce((sum, weight) => sum + (weight || 0), 0);
  // Shares make no sense for a difference.
  const isWhole = total > 0 && row.every((weight) => !(weight < 0));
  const best = largestIn(Array.from(row));
  const most = `${labelText(labels[best])}: ${weightText(row[best], tensor.decimals)}`;
  const where = picture.seconds ? "sound" : "picture";
  const share = isWhole ? `; on the ${where}: ${Math.round((100 * onPicture) / total)}%` : "";
  const who = [placeText(tensor.place(number)), name].filter(Boolean).join(" ");
  byId("readout").textContent = `${who} looks most at ${most}${share}`;
  const source = { side: "query", index: 0, query: 0, key: null, colour: "looked" };
  const card = {
    ...matrix,
    place: tensor.place(number),
    row: () => row,
    columnLabels: labels,
    rowLabels: [{ position: "", token: name }],
  };
  showCards(byId("cards"), [card], [source], rowStatistics(query), () => {});
}

// Row statistics of the query, if the report has them.
function rowStatistics(query) {
  const { rows } = chosen.report;
  const index = query === null ? -1 : query - chosen.report.first_query;
  const ofQueries = rows.filter(({ axes }) => axes.at(-1) === "query");
  const at = (tensor) => ({ ...tensor, at: (place) => [tensor.at(place)[index]] });
  return { rows: index < 0 ? [] : ofQueries.map(at), keys: [] };
}

let lookFrame = 0;
function later(work) {
  cancelAnimationFrame(lookFrame);
  lookFrame = requestAnimationFrame(work);
}

// Hover a patch (null: none). It becomes the query if it can; otherwise its weight is read out.
export function lookFrom(token) {
  if (!areQueries()) {
    pictureView.frameAt(token === null ? null : picture.boxes[token]);
    const { tensor, report } = chosen;
    if (token === null) return later(drawLook);
    const label = axisLabels(report, "key", tensor.columns)[token];
    const weight = lookOf(numberNow(), queryNow())[token];
    return later(() => {
      drawLook(); // of the chosen head, if the pointer was on a small map
      byId("readout").textContent = `${labelText(label)}: ${weightText(weight, tensor.decimals)}`;
    });
  }
  chosen.lookedQuery = token ?? undefined;
  later(drawLooks);
}

export function pickQuery(token) {
  if (token !== null && chosen.tensor.rows < 2) return;
  if (token !== null && picture.axis === "tokens" && picture.boxes[token] && !areQueries()) return;
  chosen.query = token;
  chosen.lookedQuery = undefined;
  later(drawLooks);
  chosen.onChange();
  openSheet();
}

function drawLooks() {
  drawLook();
  if (chosen.tensor.count > 1) paintLooks();
}

// Enlarge the thumbnail under the pointer until the pointer leaves it.
export function hoverHead(item) {
  const number = item?.number ?? null;
  if (number === chosen.hovered) return;
  chosen.hovered = number;
  byId("matrix-title").textContent = matrixTitle(chosen.tensor, chosen.tensor.place(numberNow()));
  later(drawLook);
}

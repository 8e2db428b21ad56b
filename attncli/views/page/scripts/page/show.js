// Redraw the page for a chosen report, tensor or matrix.

import { showBlocks, showInBlock } from "./blocks.js";
import { beside, chosen, map, matrix, overview, setMatrices, sides, sources, start } from "./chosen.js";
import { headsOfLayer, showCompared } from "./heads.js";
import { stackOfGrid } from "./linked.js";
import { paintLooks, showLooks, startLooks } from "./looks.js";
import { mapAt, matrixOf } from "./matrix.js";
import { fillSortAndLayer, placesOf, rankings, surveyed } from "./rankings.js";
import {
  comparedWith,
  noteOf,
  readReport,
  scaleOf,
  shadingOfMaps,
  showHeadStatistics,
  showNotes,
  skippedOf,
} from "./report.js";
import { pin, selectOnly, showSources } from "./selection.js";
import { arrangeScene, firstRanked, showRanked } from "./scene.js";
import { closeSheet } from "./sheet.js";
import { everyRow } from "../parts/cards.js";
import { showCurves, showRowCurves } from "../parts/curves.js";
import { byId, fillSelect } from "../parts/elements.js";
import { showPictureMaps } from "../parts/picture_maps.js";
import { showSound } from "../parts/sound.js";
import { showSteps } from "../parts/steps.js";
import { keyTable, showTables, words } from "../parts/tables.js";
import { paint, showLegend } from "../values/colours.js";
import { inLine, placeText, shortPlace } from "../values/labels.js";
import { isNumber } from "../values/numbers.js";

const MOST_TOKENS = 4096;
const MOST_ASKED = 3;

// View settings of each report, restored when it is chosen again.
const left = new WeakMap();

function leave() {
  const { source, report, tensor, sort, isAscending, sought, layer, number } = chosen;
  const index = report?.matrices.indexOf(tensor) ?? -1;
  if (index < 0) return; // it was never drawn
  const names = { from: byId("from").value, to: byId("to").value };
  left.set(source, { sort, isAscending, sought, layer, number, names, index });
}

function comeBack({ names, index: _, ...how }) {
  Object.assign(chosen, how);
  for (const [id, value] of Object.entries(names)) byId(id).value = value;
  if (chosen.tensor.count < 2) return;
  fillSortAndLayer();
  arrangeOverview();
  return choose(chosen.number);
}

export async function showReport(index) {
  leave();
  const report = readReport(index);
  const before = left.get(sources[index]);
  Object.assign(chosen, { source: sources[index], report, ...startOf(report), pins: [], looked: null, picture: 0, query: undefined });
  byId("heading").textContent = report.title;
  byId("settings-line").textContent = report.subtitle;
  document.title = report.title;
  const isReplaced = (name) => report.replaced.includes(name);
  showTables(byId("tables"), report, isReplaced, showHead);
  showSteps(byId("steps"), report.steps);
  showNotes(report);
  await showSound(byId("sound"), report);
  if (chosen.report !== report) return; // another report was chosen in the meantime
  await showPictureMaps(byId("picture-maps"), isReplaced("picture_maps") ? null : report.picture_maps, start);
  if (chosen.report !== report) return; // another report was chosen in the meantime
  await Promise.all([...report.rows, ...report.keys].map((tensor) => tensor.load()));
  byId("tables").prepend(keyTable(report));
  const curves = report.tensors.filter(({ shape }) => shape.length === 1);
  await showCurves(byId("curves"), byId("more-curves"), report, curves);
  if (chosen.report !== report) return; // another report was chosen in the meantime
  const { matrices } = report;
  await showBlocks(report);
  if (chosen.report !== report) return;
  arrangeScene(report);
  for (const id of ["matrix", "controls"]) byId(id).hidden = !matrices.length;
  byId("overview").hidden = true;
  for (const id of ["row-curves", "row-table"]) byId(id).replaceChildren();
  const names = matrices.map((tensor, i) => [i, `${words(tensor.name)} (${tensor.axes.map(words).join(" × ")})`]);
  const isFirst = ({ name }) => name === "weights" || name === "pooled_mean";
  const own = matrices.findIndex(({ name }) => name === report.picture[0]);
  const first = before?.index ?? Math.max(0, own < 0 ? matrices.findIndex(isFirst) : own);
  fillSelect(byId("tensor"), names, first);
  if (matrices.length) await showTensor(first);
  else showRanked(report, showHead);
  if (chosen.report !== report) return;
  if (before) await comeBack(before);
  else selectAsked(report);
  if (chosen.report === report) chosen.onChange();
}

export async function showTensor(index) {
  const { report } = chosen;
  const tensor = report.matrices[index];
  await Promise.all([tensor, ...comparedWith(tensor)].map((each) => each.load()));
  if (chosen.report !== report) return;
  byId("scale").value = scaleOf(tensor);
  const isAlike = chosen.tensor && String(chosen.tensor.leadingShape) === String(tensor.leadingShape);
  if (!isAlike) {
    // A training run starts with its last step, on a colour scale shared by all steps.
    const number = tensor.isOverSteps ? tensor.count - 1 : 0;
    if (tensor.isOverSteps) byId("range").value = chosen.range = "all";
    Object.assign(chosen, { number, ...startOf(report) });
  }
  chosen.tensor = tensor;
  byId("skip").value = chosen.skip;
  byId("skip").parentElement.hidden = !tensor.axes.at(-1).startsWith("key") || tensor.is_pictured;
  if (tensor.is_pictured) await startLooks();
  if (chosen.report !== report) return;
  byId("overview").hidden = tensor.count < 2 || tensor.isOverSteps;
  document.querySelector(".workspace").classList.remove("beside");
  byId("range").parentElement.hidden = tensor.count < 2;
  if (tensor.count > 1) {
    overview.show(tensor, (place) => report.full.has(shortPlace(place)));
    fillSortAndLayer();
    paintOverview();
    arrangeOverview();
    const isShown = overview.shown.some(({ number }) => number === chosen.number);
    if (!isShown || (!isAlike && chosen.sort)) chosen.number = overview.shown[0].number;
    else if (!isAlike && !tensor.isOverSteps) chosen.number = numberOf(firstRanked(report)) ?? (surveyed(report).length && !tensor.is_pictured ? 0 : strongestOf(tensor));
    overview.mark(chosen.number);
  }
  byId("step-choice").hidden = !tensor.isOverSteps;
  if (tensor.isOverSteps) byId("step").max = overview.shown.length - 1;
  await showMatrix();
}

// Select the queries that the report was asked about, without a sheet over the picture.
function selectAsked({ named, matrices }) {
  if (!matrices.length || !matrix.isAttention || chosen.tensor.is_pictured) return;
  const queries = placesOf(named.from, "query").slice(0, MOST_ASKED);
  if (!queries.length) return;
  selectOnly(queries.map((index) => ({ side: "query", index })));
  closeSheet();
}

// Initial view of a report: sorted as the survey was.
function startOf({ settings, statistics, named }) {
  const [first] = Array.isArray(statistics.heads) ? statistics.heads : [];
  const sort = first && Object.hasOwn(first, settings.sort) ? settings.sort : "";
  for (const [id, names] of Object.entries(named)) byId(id).value = inLine(names);
  const sought = { from: [], to: [] };
  return { sort, isAscending: settings.ascending === "true", sought, layer: "", compared: null };
}

function paintOverview() {
  const { tensor, range } = chosen;
  if (tensor.is_pictured) return paintLooks();
  const ofAll = range === "all" ? shadingOfMaps([[tensor, 0]]) : null;
  overview.paint((canvas, number) => {
    const shading = ofAll ?? shadingOfMaps([[tensor, number]]);
    paint(canvas, tensor.matrix(number), tensor.columns, shading, skippedOf(tensor));
  });
}

export function arrangeOverview() {
  const ranking = rankings().find(({ name }) => name === chosen.sort);
  const shown = overview.arrange(ranking, chosen.isAscending, chosen.layer);
  byId("shown").textContent = `${shown.length} of ${overview.items.length}`;
  const choices = shown.map(({ number, place }) => [number, placeText(place)]);
  fillSelect(byId("compare"), [["", "none"], ...choices], chosen.compared ?? "");
  return shown;
}

// The chosen matrix, and the compared one on the same colour scale.
async function showMatrix() {
  const { report, tensor, number } = chosen;
  const other = tensor.is_pictured ? null : chosen.compared;
  const maps = await Promise.all([number, ...(other === null ? [] : [other])].map(mapAt));
  if (chosen.tensor !== tensor || chosen.number !== number) return;
  if (!tensor.is_pictured && chosen.compared !== other) return;
  const shading = shadingOfMaps(maps);
  setMatrices(matrixOf(maps[0], number, shading), other === null ? null : matrixOf(maps[1], other, shading));
  byId("matrix-title").textContent = matrix.title;
  if (tensor.isOverSteps) {
    byId("step").value = overview.shown.findIndex((item) => item.number === number);
    byId("step-number").textContent = matrix.place[0][1];
  }
  byId("matrix-note").textContent = noteOf(maps[0][0], matrix.place);
  showHeadStatistics(matrix.place);
  showRowCurves(byId("row-curves"), report, matrix);
  for (const id of ["previous", "next", "compare-choice"]) byId(id).hidden = tensor.count < 2;
  byId("parts").classList.toggle("pictured", tensor.is_pictured);
  byId("picture").hidden = !tensor.is_pictured;
  showRanked(report, showHead);
  byId("row-table").replaceChildren(matrix.isAttention ? everyRow(matrix, report) : "");
  if (tensor.is_pictured) {
    byId("view-choice").hidden = true;
    showLooks();
    return;
  }
  showLegend(byId("legend"), shading, matrix);
  showCompared();
  const hasTokens = matrix.isAttention && Math.max(matrix.rows, matrix.columns) <= MOST_TOKENS;
  byId("tokens").hidden = !hasTokens;
  byId("view-choice").hidden = !hasTokens;
  byId("parts").classList.toggle("of-two", hasTokens && beside === null);
  map.show(matrix);
  byId("cards").hidden = !matrix.isAttention;
  if (hasTokens) sides.show({ query: matrix.rowLabels, key: matrix.columnLabels });
  if (headsOfLayer().length < 2) chosen.areAllHeads = false;
  const kept = (token) => token.index < (token.side === "query" ? matrix.rows : matrix.columns);
  chosen.pins = matrix.isAttention ? chosen.pins.filter(kept) : [];
  chosen.looked = null;
  showSources();
}

// Show the map or the lines between tokens, where there is room for only one of them.
export function setView(view) {
  byId("parts").dataset.view = view;
  for (const name of ["map", "lines"]) byId(`view-${name}`).setAttribute("aria-pressed", name === view);
}

export function showView(view) {
  setView(view);
  return showMatrix();
}

export async function choose(number) {
  chosen.number = number;
  overview.mark(number);
  await showMatrix();
}

// Scroll the chosen map into view if less than half a screen of it is visible.
export function showChosen() {
  const { top, bottom, height } = byId("parts").getBoundingClientRect();
  const least = Math.min(height, innerHeight / 2);
  if (top + least > innerHeight || bottom < least) byId("matrix").scrollIntoView({ block: "start" });
}

// Select the row of a weight, or the head of a cell in a layer-by-head map.
export function pickCell([row, column]) {
  const { axes, rowLabels, columnLabels } = matrix;
  if (matrix.isAttention) pin({ side: "query", index: row });
  else if (String(axes) === "layer,head") {
    const place = { layer: Number(rowLabels[row].position), head: Number(columnLabels[column].position), stack: stackOfGrid() };
    if (!showInBlock(place)) openHead(place);
  }
}

// Show the head of a survey row. A served page may find its map in another report.
function showHead({ layer, head, stack }) {
  showInBlock({ layer, head, stack })?.scrollIntoView({ block: "nearest" });
  if (!showMapOf({ layer, head, stack })) openHead({ layer, head, stack });
}

// Show a head's map from another report, if the page can open one.
function openHead(place) {
  const hasMaps = !["cross", "encoder"].includes(place.stack); // only the decoder's maps are drawn
  if (hasMaps && chosen.openReportOfHeads) run(chosen.openReportOfHeads().then((isThere) => isThere && showMapOf(place)));
}

// The number of the map with the clearest look: the largest weight as a multiple of an even share of its row. The first
// map of other numbers. On pictures, only the chosen query counts.
function strongestOf({ is_weights: areWeights, is_pictured: isPictured, values, rows, columns }) {
  if (!areWeights) return 0;
  const isLeftOut = (row) => isPictured && rows > 1 && Number.isInteger(chosen.query) && row !== chosen.query;
  let [best, most] = [0, 0];
  for (let start = 0; start < values.length; start += columns) {
    if (isLeftOut((start / columns) % rows)) continue;
    const seen = values.subarray(start, start + columns).filter(isNumber);
    const times = seen.length > 1 ? Math.max(...seen) * seen.length : 0;
    if (times > most) [best, most] = [start, times];
  }
  return Math.floor(best / (rows * columns));
}

// The number of a head's map, or undefined if the tensor does not have it.
function numberOf(place) {
  if (!place) return undefined;
  const { layer, head, stack } = place;
  const row = surveyed(chosen.report).find((other) => other.layer === layer && other.head === head);
  if (stack && row && row.stack !== stack) return undefined;
  return overview.items.find((item) => shortPlace(item.place) === `${layer}:${head}`)?.number;
}

// Show the map of a head. Returns false if the tensor does not have it.
function showMapOf(place) {
  const number = numberOf(place);
  if (number === undefined || byId("overview").hidden) return false;
  run(choose(number).then(showChosen));
  return true;
}

// Compare the chosen map with another one; null ends the comparison.
export function compareWith(number) {
  chosen.compared = number;
  byId("compare").value = number ?? "";
  return showMatrix();
}

export function redraw() {
  if (chosen.tensor.count > 1) paintOverview();
  return showMatrix();
}

// Errors are shown on the page.
export function run(promise) {
  Promise.resolve(promise).catch((error) => {
    byId("problem").hidden = false;
    byId("problem").textContent = `This page could not be drawn: ${error.message}`;
    throw error;
  });
}

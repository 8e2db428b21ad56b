// The address holds what is shown, as in `#head=5:11&query=4&key=2`: what differs from the page as it opens. A choice
// adds an entry to the browser's history, a step with an arrow key or a slider changes the last one.

import { chosen, matrix, sources, start } from "./chosen.js";
import { picturesOf } from "./looks.js";
import { placesOf, rankings } from "./rankings.js";
import { selectOnly } from "./selection.js";
import { run, setView, showReport, showTensor } from "./show.js";
import { byId } from "../parts/elements.js";
import { namesIn, shortPlace } from "../values/labels.js";

const PLACES_OF_MAPS = ["head", "step", "map"];
const SIDES = ["query", "key"];
const NAMES = ["report", "tensor", ...PLACES_OF_MAPS, "compare", "heads", "sort", "order", "layer", "from", "to", "scale", "view"];
NAMES.push("range", "skip", "picture", ...SIDES);
const STEP_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", ",", "."];
// Browsers refuse hundreds of changes in a few seconds.
const MILLISECONDS_BETWEEN_STEPS = 200;

const firsts = new Map(); // by report, what it showed first
let [steppedIn, isChoice] = [null, false]; // where an arrow key was pressed last
let turns = 0; // addresses that were shown
let numShowing = 0;
let shownAddress = location.hash; // as it was read or written last
let [stepTimer, waitingAddress] = [0, null];
let isRefused = false;

const placeName = ({ leading }) => (PLACES_OF_MAPS.includes(leading.at(-1)) ? leading.at(-1) : "map");

// Name and value of everything that is chosen. Names of tokens may occur more than once.
function pairsNow() {
  const { source, report, tensor, number, compared } = chosen;
  const pairs = [["report", sources.indexOf(source) + 1]];
  if (!report.matrices.includes(tensor)) return pairs;
  const placeOf = (map) => shortPlace(tensor.place(map));
  pairs.push(["tensor", tensor.name]);
  if (tensor.count > 1) pairs.push([placeName(tensor), placeOf(number)]);
  pairs.push(["compare", compared === null ? "" : placeOf(compared)], ["heads", chosen.areAllHeads ? "all" : ""]);
  if (tensor.is_pictured) pairs.push(["picture", chosen.picture + 1], ["query", chosen.query ?? "mean"]);
  for (const { side, index } of chosen.pins)
    pairs.push([side, (side === "query" ? matrix.rowLabels : matrix.columnLabels)[index].position]);
  pairs.push(["sort", chosen.sort], ["order", chosen.isAscending ? "ascending" : "descending"], ["layer", chosen.layer]);
  for (const side of ["from", "to"]) pairs.push([side, byId(side).checkValidity() ? byId(side).value : ""]);
  pairs.push(["view", byId("parts").dataset.view], ["scale", chosen.scale ?? ""], ["range", chosen.range], ["skip", chosen.skip]);
  return pairs.map(([name, value]) => [name, String(value)]);
}

// What a report shows first. Colours stay as they are when another report is chosen.
function firstPairs() {
  const range = chosen.tensor?.isOverSteps ? "all" : "each";
  return new Map([...pairsNow(), ["scale", start.scale ?? ""], ["range", range], ["skip", String(start.skip)]]);
}

function addressNow() {
  const first = firsts.get(chosen.source);
  const pairs = pairsNow();
  const isOtherTensor = pairs.some(([name, value]) => name === "tensor" && value !== first.get(name));
  const isShown = ([name, value]) =>
    name === "report"
      ? value !== "1"
      : value !== (first.get(name) ?? "") || (isOtherTensor && PLACES_OF_MAPS.includes(name));
  const text = (value) => encodeURIComponent(value).replaceAll("%3A", ":").replaceAll("%20", "+");
  const shown = pairs.filter(isShown).map(([name, value]) => `${name}=${text(value)}`);
  return `#${shown.join("&")}`;
}

// Pages in sandboxed frames have no address of their own: the browser refuses.
function write(how, text) {
  if (isRefused) return;
  try {
    history[how](history.state, "", text);
    shownAddress = location.hash;
  } catch {
    isRefused = true;
  }
}

function writeWaiting() {
  clearTimeout(stepTimer);
  if (waitingAddress !== null) write("replaceState", waitingAddress);
  waitingAddress = null;
}

function record() {
  if (!firsts.has(chosen.source)) firsts.set(chosen.source, firstPairs());
  if (numShowing) return;
  const text = addressNow();
  if (text === (waitingAddress ?? (shownAddress || "#"))) return;
  if (isChoice) {
    writeWaiting();
    write("pushState", text);
    isChoice = false;
    return;
  }
  waitingAddress = text;
  clearTimeout(stepTimer);
  stepTimer = setTimeout(writeWaiting, MILLISECONDS_BETWEEN_STEPS);
}

function noteEvent({ type, key, target }) {
  if (type !== "change") steppedIn = type === "keydown" && STEP_KEYS.includes(key) ? target : null;
  isChoice = target !== steppedIn && target.type !== "range";
}

// Show what an address describes; parts of it that the page does not have are ignored.
async function showAddress(text) {
  const turn = ++turns;
  const wanted = new URLSearchParams(text.slice(1));
  if (turn > 1 && text && !NAMES.some((name) => wanted.has(name))) return; // an anchor of the page
  const index = sources[wanted.get("report") - 1] ? wanted.get("report") - 1 : 0;
  if (chosen.source !== sources[index] || !firsts.has(sources[index])) {
    byId("report").value = index;
    await showReport(index);
  }
  const { report } = chosen;
  if (turn !== turns || chosen.source !== sources[index] || !report.matrices.length) return;
  if (turn === 1 && !text) return;
  const number = takeOver(report, wanted);
  await showTensor(number);
  if (turn === turns && !chosen.tensor.is_pictured) selectOnly(tokensIn(wanted));
}

// Set everything that is chosen, and return the number of the tensor to show.
function takeOver(report, wanted) {
  const first = firsts.get(chosen.source);
  const valueOf = (name) => wanted.get(name) ?? first.get(name) ?? "";
  const numberOf = (name) => report.matrices.findIndex((each) => each.name === name);
  const number = [valueOf("tensor"), first.get("tensor")].map(numberOf).find((each) => each >= 0);
  const tensor = report.matrices[number];
  const maps = Array.from({ length: tensor.count }, (_, map) => map);
  const mapAt = (place) => maps.find((map) => tensor.count > 1 && shortPlace(tensor.place(map)) === place);
  const place = placeName(tensor);
  const isWhole = (value, end) => /^[0-9]{1,9}$/.test(value) && Number(value) < end;
  const [layer, scale, skip] = ["layer", "scale", "skip"].map(valueOf);
  Object.assign(chosen, {
    tensor,
    number: mapAt(valueOf(place)) ?? mapAt(first.get(place)) ?? (tensor.isOverSteps ? tensor.count - 1 : 0),
    compared: mapAt(valueOf("compare")) ?? null,
    areAllHeads: valueOf("heads") === "all",
    isAscending: valueOf("order") === "ascending",
    layer: tensor.axes[0] === "layer" && isWhole(layer, tensor.shape[0]) ? layer : "",
    scale: start.scales.includes(scale) ? scale : null,
    range: valueOf("range") === "all" ? "all" : "each",
    skip: isWhole(skip, Infinity) ? Number(skip) : start.skip,
    looked: null,
  });
  takeOverSought(valueOf, wanted.has("from") || wanted.has("to"));
  const isRanking = ({ name }) => name === valueOf("sort");
  chosen.sort = valueOf("sort") === "" || rankings().some(isRanking) ? valueOf("sort") : first.get("sort");
  if (tensor.is_pictured) {
    const [picture, query] = ["picture", "query"].map(valueOf);
    const isRow = isWhole(query, report.first_query + tensor.rows) && query >= report.first_query;
    chosen.picture = isWhole(picture - 1, picturesOf(report).length) ? picture - 1 : 0;
    if (tensor.rows > 1 && (isRow || query === "mean")) chosen.query = query === "mean" ? null : Number(query);
  }
  setView(valueOf("view") === "lines" ? "lines" : "map");
  byId("tensor").value = number;
  byId("range").value = chosen.range;
  return number;
}

// The tokens of the ranking by a weight, if the text has them all.
function takeOverSought(valueOf, isWanted) {
  const axes = { from: "query", to: "key" };
  const names = Object.fromEntries(Object.keys(axes).map((side) => [side, namesIn(valueOf(side))]));
  const isThere = Object.entries(axes).every(([side, axis]) => names[side].every((name) => placesOf([name], axis).length));
  chosen.sought = isThere && isWanted ? names : { from: [], to: [] };
  for (const side of Object.keys(axes)) byId(side).value = isThere ? valueOf(side) : "";
}

// The selected tokens, which an address names by their positions.
function tokensIn(wanted) {
  if (!matrix.isAttention) return [];
  const labels = { query: matrix.rowLabels, key: matrix.columnLabels };
  const indexOf = (side, value) => labels[side].findIndex(({ position }) => position === value);
  return Array.from(wanted)
    .filter(([side]) => SIDES.includes(side))
    .map(([side, value]) => ({ side, index: indexOf(side, value) }))
    .filter(({ index }) => index >= 0);
}

export async function followAddress() {
  numShowing++;
  clearTimeout(stepTimer);
  waitingAddress = null;
  shownAddress = location.hash;
  try {
    await showAddress(shownAddress);
  } finally {
    numShowing--;
  }
}

export function listenToAddress() {
  chosen.onChange = record;
  for (const kind of ["pointerdown", "keydown", "click", "change"]) document.addEventListener(kind, noteEvent, true);
  for (const kind of ["popstate", "hashchange"])
    addEventListener(kind, () => location.hash !== shownAddress && run(followAddress()));
}

// Line charts, with a readout at the pointer or at the position of the arrow keys.

import { make, makeSvg, moved } from "./elements.js";
import { tableOf } from "./tables.js";
import { endsOf } from "../values/colours.js";
import { isNumber, rangeEnds, scalar } from "../values/numbers.js";
import { axisOf, tickText } from "../values/ticks.js";

const [CHART_WIDTH, CHART_HEIGHT] = [480, 120];
const MOST_POINTS = 1000;
const CURVE_COLOURS = ["looked", "pin-0", "pin-1", "pin-2", "pin-3", "pin-4", "pin-5"];
// Each line has its own colour and its own dashes, so that lines differ without colours as well.
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "14 4", "4 2", "1 5"];
const colourNameOf = (k) => CURVE_COLOURS[k % CURVE_COLOURS.length];
const dashOf = (k) => DASHES[(k + Math.floor(k / CURVE_COLOURS.length)) % DASHES.length];
const [STEPS_UP, STEPS_ACROSS] = [4, 6];
// Up to this many places are labelled one by one instead of with round numbers.
const FEW_PLACES = 8;
// Characters of labels that fit below a chart on a phone. Token names may be cut, numbers may not.
const LABEL_CHARACTERS = 40;
// Up to this many lines are named at their right end. Names are at least this share of the height apart.
const MOST_NAMED = 5;
const LEAST_GAP = 0.1;

// A chart of lines over the same places. Each line has a name and numbers; the horizontal axis has a name, places
// and labels. `isCounted` if the places are whole numbers; `unit` is that of the numbers.
export function chartOf(title, lines, { name, places, labels, isCounted, unit = "" }) {
  const each = lines.map(({ numbers }) => endsOf(numbers, numbers.length, 0));
  const [low, high] = [Math.min(...each.map((ends) => ends.low)), Math.max(...each.map((ends) => ends.high))];
  const vertical = axisOf(low, high, STEPS_UP);
  const [first, last] = [places[0], places.at(-1)];
  const x = (place) => (last > first ? ((place - first) / (last - first)) * CHART_WIDTH : CHART_WIDTH / 2);
  const y = (value) => CHART_HEIGHT * (1 - (value - vertical.low) / (vertical.high - vertical.low));
  const svg = makeSvg("svg", {
    viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${title}, from ${rangeEnds(low, high).join(" to ")}; arrow keys read the values`,
    tabindex: "0",
  });
  for (const tick of vertical.ticks)
    svg.append(makeSvg("line", { class: "grid", x1: 0, x2: CHART_WIDTH, y1: y(tick), y2: y(tick) }));
  lines.forEach(({ numbers }, k) => {
    for (const part of withoutGaps(numbers)) {
      const isAlone = part.length === 1;
      // With round line caps, a line from a point to itself is a dot.
      const points = thinned(isAlone ? [part[0], part[0]] : part, numbers)
        .map((i) => `${x(places[i]).toFixed(2)},${y(numbers[i]).toFixed(2)}`)
        .join(" ");
      const dash = isAlone ? {} : { "stroke-dasharray": dashOf(k) };
      svg.append(makeSvg("polyline", { points, class: `curve ${colourNameOf(k)}${isAlone ? " alone" : ""}`, ...dash }));
    }
  });
  const said = readerOf(svg, lines, labels, Array.from(places, x));
  const keys = make("div", { class: "keys" }, ...(lines.length > 1 ? lines.map(({ name: text }, k) => curveKey(text, k)) : []));
  const up = make("div", { class: "y-axis", "aria-hidden": "true" });
  const ticks = vertical.ticks.map((tick) => make("span", { text: tickText(tick, vertical.step) }));
  up.append(...ticks.reverse());
  const names = lines.length > 1 && lines.length <= MOST_NAMED ? [namesAtEnds(lines, y)] : [];
  const chart = make("div", { class: "chart" }, up, svg, ...names, horizontalAxis(places, labels, isCounted, x));
  chart.append(make("div", { class: "x-name quiet", text: name }));
  const units = unit && unit !== title ? [make("span", { class: "quiet", text: ` (${unit})` })] : [];
  const caption = make("figcaption", {}, make("b", { text: title }), ...units, " ", said);
  const figure = make("figure", {}, caption, chart, keys, tableOfNumbers(lines, { name, labels, unit: unit || title }));
  figure.classList.toggle("named", names.length > 0);
  return figure;
}

// The names of a few lines at their last numbers, pushed apart where these are close.
function namesAtEnds(lines, y) {
  const lastOf = (numbers) => numbers.findLast(isNumber);
  const ends = lines.map(({ name, numbers }, k) => ({ name, k, at: y(lastOf(numbers) ?? 0) / CHART_HEIGHT }));
  ends.sort((one, other) => one.at - other.at);
  ends.forEach((end, i) => (end.at = Math.max(end.at, i ? ends[i - 1].at + LEAST_GAP : 0)));
  for (let i = ends.length - 1, most = 1; i >= 0; most = ends[i].at - LEAST_GAP, i--) ends[i].at = Math.min(ends[i].at, most);
  const box = make("div", { class: "line-ends", "aria-hidden": "true" });
  const room = make("div", { class: "widest", text: lines.reduce((longest, { name }) => (name.length > longest.length ? name : longest), "") });
  box.append(
    room,
    ...ends.map(({ name, k, at }) => {
      const label = make("span", { class: colourNameOf(k), text: name });
      label.style.top = `${100 * at}%`;
      return label;
    }),
  );
  return box;
}

// The numbers of a chart as a table, filled when it is opened.
function tableOfNumbers(lines, { name, labels, unit }) {
  const details = make("details", { class: "numbers" }, make("summary", { text: "Numbers" }));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const rows = labels.map((label, i) => ({
      [name]: label,
      ...Object.fromEntries(lines.map((line) => [line.name || unit, isNumber(line.numbers[i]) ? line.numbers[i] : null])),
    }));
    details.append(tableOf("", rows, null));
  });
  return details;
}

// Label every place, or round numbers along the axis.
function horizontalAxis(places, labels, isCounted, x) {
  const [first, last] = [places[0], places.at(-1)];
  const { ticks, step } = axisOf(first, last, STEPS_ACROSS, isCounted ? 1 : 0);
  const shown =
    labels.length <= FEW_PLACES && (isCounted || labels.join(" ").length <= LABEL_CHARACTERS)
      ? labels.map((text, i) => [text, places[i]])
      : ticks.filter((tick) => tick >= first && tick <= last).map((tick) => [tickText(tick, step), tick]);
  const axis = make("div", { class: "x-axis", "aria-hidden": "true" });
  for (const [text, place] of shown) {
    const share = x(place) / CHART_WIDTH;
    const label = make("span", { text });
    label.style.left = `${100 * share}%`;
    label.style.maxWidth = `${100 / shown.length}%`;
    label.style.transform = `translateX(${share < 0.02 ? 0 : share > 0.98 ? -100 : -50}%)`;
    axis.append(label);
  }
  return axis;
}

function curveKey(name, k) {
  const swatch = makeSvg("svg", { class: "stroke", viewBox: "0 0 28 8", "aria-hidden": "true" });
  swatch.append(makeSvg("line", { class: `curve ${colourNameOf(k)}`, x1: 0, x2: 28, y1: 4, y2: 4, "stroke-dasharray": dashOf(k) }));
  return make("span", { class: "key quiet" }, swatch, name);
}

// The readout of the numbers at the pointer or at the position of the arrow keys.
function readerOf(svg, lines, labels, across) {
  const cursor = makeSvg("line", { class: "cursor", y1: 0, y2: CHART_HEIGHT, visibility: "hidden" });
  const said = make("span", { class: "said", role: "status" });
  svg.append(cursor);
  let at = 0;
  const look = (i) => {
    at = i;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across[i]);
    cursor.setAttribute("visibility", "visible");
    const value = ({ name, numbers }) => `${name && lines.length > 1 ? `${name} ` : ""}${scalar(numbers[i])}`;
    said.textContent = `${labels[i]}: ${lines.map(value).join(", ")}`;
  };
  for (const event of ["pointermove", "click"]) svg.addEventListener(event, ({ clientX }) => {
    const box = svg.getBoundingClientRect();
    const pointed = ((clientX - box.left) / box.width) * CHART_WIDTH;
    const distance = (i) => Math.abs(across[i] - pointed);
    look(across.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0));
  });
  svg.addEventListener("keydown", (event) => {
    const to = moved(event, at, labels.length, 1);
    if (to === null) return;
    event.preventDefault();
    look(to);
  });
  return said;
}

// With more points than pixels, keep the smallest and the largest of each group.
function thinned(indices, numbers) {
  const few = Math.ceil(indices.length / MOST_POINTS);
  if (few === 1) return indices;
  const kept = [];
  for (let i = 0; i < indices.length; i += few) {
    const part = indices.slice(i, i + few).sort((one, other) => numbers[one] - numbers[other]);
    kept.push(...[part[0], part.at(-1)].sort((one, other) => one - other));
  }
  return kept;
}

// Split the indices into runs without missing numbers.
function withoutGaps(numbers) {
  const runs = [[]];
  numbers.forEach((value, i) => {
    if (isNumber(value)) runs.at(-1).push(i);
    else if (runs.at(-1).length) runs.push([]);
  });
  return runs.filter((run) => run.length);
}

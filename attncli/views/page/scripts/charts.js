// Numbers along one axis as a line, with the number at the pointer or at the arrow keys' place.

const SVG = "http://www.w3.org/2000/svg";
const [CHART_WIDTH, CHART_HEIGHT] = [480, 120];
const MOST_POINTS = 1000;
const CURVE_COLOURS = ["looked", "pin-0", "pin-1", "pin-2", "pin-3", "pin-4", "pin-5"];

function makeSvg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Lines over the same places, each a name and numbers; `labels` say what stands at a place.
function chartOf(title, lines, places, labels) {
  const each = lines.map(({ numbers }) => endsOf(numbers, numbers.length, 0));
  const [low, high] = [Math.min(...each.map((ends) => ends.low)), Math.max(...each.map((ends) => ends.high))];
  const [first, last] = [places[0], places.at(-1)];
  const across = (i) =>
    last > first ? ((places[i] - first) / (last - first)) * CHART_WIDTH : CHART_WIDTH / 2;
  const up = (value) => CHART_HEIGHT - (high > low ? (value - low) / (high - low) : 0.5) * CHART_HEIGHT;
  const svg = makeSvg("svg", {
    viewBox: `-4 -4 ${CHART_WIDTH + 8} ${CHART_HEIGHT + 8}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${words(title)}, from ${rangeEnds(low, high).join(" to ")}; arrow keys read it`,
    tabindex: "0",
  });
  lines.forEach(({ numbers }, k) => {
    for (const part of withoutGaps(numbers)) {
      const points = thinned(part, numbers)
        .map((i) => `${across(i).toFixed(2)},${up(numbers[i]).toFixed(2)}`)
        .join(" ");
      svg.append(makeSvg("polyline", { points, class: `curve ${CURVE_COLOURS[k % CURVE_COLOURS.length]}` }));
    }
  });
  const ends = make("span", { class: "quiet", text: rangeEnds(low, high).join(" to ") });
  const caption = make(
    "figcaption",
    {},
    make("b", { text: words(title) }),
    " ",
    ends,
    " ",
    readerOf(svg, lines, labels, across),
  );
  const keys = lines.length > 1 ? lines.map(({ name }, k) => curveKey(name, k)) : [];
  return make("figure", {}, caption, svg, ...keys);
}

function curveKey(name, k) {
  const swatch = make("span", { class: `swatch ${CURVE_COLOURS[k % CURVE_COLOURS.length]}` });
  return make("span", { class: "key quiet" }, swatch, name);
}

// The text that says the numbers at the pointer's place, or at the one that arrow keys lead to.
function readerOf(svg, lines, labels, across) {
  const cursor = makeSvg("line", { class: "cursor", y1: 0, y2: CHART_HEIGHT, visibility: "hidden" });
  const said = make("span", { class: "said", role: "status" });
  svg.append(cursor);
  let at = 0;
  const look = (i) => {
    at = i;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(i));
    cursor.setAttribute("visibility", "visible");
    said.textContent = `${labels[i]}: ${lines.map(({ numbers }) => scalar(numbers[i])).join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    look(Math.round(share * (labels.length - 1)));
  });
  svg.addEventListener("keydown", (event) => {
    const to = moved(event, at, labels.length, 1);
    if (to === null) return;
    event.preventDefault();
    look(to);
  });
  return said;
}

// Of so many points that they would stand on one another, the least and the most of each few.
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

// Runs of indices that have a number.
function withoutGaps(numbers) {
  const runs = [[]];
  numbers.forEach((value, i) => {
    if (isNumber(value)) runs.at(-1).push(i);
    else if (runs.at(-1).length) runs.push([]);
  });
  return runs.filter((run) => run.length);
}

// Every tensor of one axis, and every list of numbers in the rows of a statistic.
async function showCurves(container, report, tensors) {
  await Promise.all(tensors.map((tensor) => tensor.load()));
  // Of a curve's points the first tensor says where they stand, the others how high.
  const points = tensors.filter(({ axes }) => axes[0] === "point");
  const places = points.length > 1 ? points.shift() : null;
  const charts = tensors
    .filter((tensor) => tensor !== places && tensor.values.length > 1)
    .map((tensor) =>
      tensor.type === "int32"
        ? tableOfWhole(report, tensor)
        : places && points.includes(tensor)
          ? curveOf(tensor, places)
          : chartOfTensor(report, tensor),
    );
  for (const [name, value] of Object.entries(report.statistics)) {
    if (Array.isArray(value)) charts.push(...chartsOfRows(name, value));
  }
  container.replaceChildren(...charts);
  container.hidden = !charts.length;
}

// The statistics of the rows of one map, where the page has blocks of weights and no row by itself.
function showRowCurves(container, report, matrix) {
  const shown =
    matrix.axes[0] === "query_block" ? report.rows.filter(({ axes }) => axes.at(-1) === "query") : [];
  container.replaceChildren(
    ...shown.map((tensor) => {
      return chartOfTensor(report, { name: tensor.name, axes: ["query"], values: tensor.at(matrix.place) });
    }),
  );
}

function chartOfTensor(report, { name, axes: [axis], values }) {
  const labels = axisLabels(report, axis, values.length).map((label) => `${axis} ${labelText(label)}`);
  return chartOf(name, [{ numbers: Array.from(values) }], Array.from(values.keys()), labels);
}

// Whole numbers, such as the ids of tokens, are no curve.
function tableOfWhole(report, { name, axes: [axis], values }) {
  const labels = axisLabels(report, axis, values.length);
  return tableOf(
    words(name),
    labels.map((label, i) => ({ [axis]: labelText(label), number: values[i] })),
    null,
  );
}

function curveOf({ name, values }, places) {
  const labels = Array.from(places.values, (place) => `${words(places.name)} ${scalar(place)}`);
  return chartOf(name, [{ numbers: Array.from(values) }], places.values, labels);
}

// A line for each row, named by the row's first number.
function chartsOfRows(title, rows) {
  const [first, ...others] = Object.keys(rows[0] ?? {});
  const lists = others.filter((name) =>
    rows.every((row) => Array.isArray(row[name]) && row[name].length > 1),
  );
  return lists.map((name) => {
    const lines = rows.map((row) => ({
      name: `${words(first)} ${row[first]}`,
      numbers: row[name].map((value) => value ?? NaN),
    }));
    const places = rows[0][name].map((_, i) => i);
    return chartOf(`${title}: ${name}`, lines, places, places.map(String));
  });
}

// Numbers along one axis as a line, with the number at the pointer or at the arrow keys' place.

const SVG = "http://www.w3.org/2000/svg";
const [CHART_WIDTH, CHART_HEIGHT] = [480, 120];

function makeSvg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// `places` are the horizontal ones (those of the curve's points, or 0, 1, ...); `labels` name them.
function chartOf(title, values, places, labels) {
  const numbers = Array.from(values);
  const known = numbers.filter(isNumber);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const [first, last] = [places[0], places.at(-1)];
  const across = (i) => (last > first ? ((places[i] - first) / (last - first)) * CHART_WIDTH : CHART_WIDTH / 2);
  const up = (value) => CHART_HEIGHT - (high > low ? (value - low) / (high - low) : 0.5) * CHART_HEIGHT;
  const said = make("span", { class: "said", role: "status" });
  const svg = makeSvg("svg", { viewBox: `-4 -4 ${CHART_WIDTH + 8} ${CHART_HEIGHT + 8}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, from ${scalar(low)} to ${scalar(high)}; arrow keys read it`, tabindex: "0" });
  for (const part of withoutGaps(numbers)) {
    const points = part.map((i) => `${across(i).toFixed(2)},${up(numbers[i]).toFixed(2)}`).join(" ");
    svg.append(makeSvg("polyline", { points, class: "curve" }));
  }
  const cursor = makeSvg("line", { class: "cursor", y1: 0, y2: CHART_HEIGHT, visibility: "hidden" });
  svg.append(cursor);
  let at = 0;
  const look = (i) => {
    at = i;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(i));
    cursor.setAttribute("visibility", "visible");
    said.textContent = `${labels[i]}: ${scalar(numbers[i])}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    look(Math.round(share * (numbers.length - 1)));
  });
  svg.addEventListener("keydown", (event) => {
    const to = moved(event, at, numbers.length, 1);
    if (to === null) return;
    event.preventDefault();
    look(to);
  });
  const ends = make("span", { class: "quiet", text: `${scalar(low)} to ${scalar(high)}` });
  return make("figure", {}, make("figcaption", {}, make("b", { text: words(title) }), " ", ends, " ", said), svg);
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

// Every tensor of one axis. Of a curve's points the first is where they stand, the others how high.
async function showCurves(container, report, tensors) {
  const charts = [];
  for (const tensor of tensors) await tensor.load();
  const points = tensors.filter(({ axes }) => axes[0] === "point");
  for (const tensor of tensors) {
    const isPlaces = tensor === points[0] && points.length > 1;
    if (isPlaces || tensor.values.length < 2) continue;
    const isCurve = points.length > 1 && points.includes(tensor);
    const places = isCurve ? points[0].values : Array.from(tensor.values.keys());
    const labels = isCurve
      ? Array.from(places, (place) => `${words(points[0].name)} ${scalar(place)}`)
      : axisLabels(report, tensor.axes[0], tensor.values.length).map((label) => `${tensor.axes[0]} ${labelText(label)}`);
    charts.push(chartOf(tensor.name, tensor.values, places, labels));
  }
  container.replaceChildren(...charts);
  container.hidden = !charts.length;
}

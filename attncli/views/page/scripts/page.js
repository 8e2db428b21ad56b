// The page: what is chosen, and drawing it anew when that changes.

const MOST_TOKENS = 4096;

const start = JSON.parse(document.querySelector("script.start").textContent);
const sources = Array.from(document.querySelectorAll("script.report"));
readMaps(start);

const chosen = {
  report: null,
  tensor: null,
  number: 0,
  scale: start.scale,
  skip: start.skip,
  range: "each",
  sort: "",
  layer: "",
  pins: [],
  looked: null,
};

let matrix = null; // what the map shows

const overview = new Overview(byId("thumbnails"), choose);

const map = new MatrixMap(byId("map"), {
  onCell: lookAtCell,
  onPick: (row) => pin({ side: "query", index: row }),
});

const sides = new TokenSides(byId("tokens"), { onLook: look, onPin: pin });

async function showReport(index) {
  const report = readReport(index);
  Object.assign(chosen, { report, sort: askedSort(report), layer: "", pins: [], looked: null });
  byId("heading").textContent = report.heading;
  document.title = `attn ${report.experiment}`;
  showTables(byId("tables"), report.statistics, showHead);
  showSteps(byId("steps"), report.steps);
  showNotes(report);
  await Promise.all([...report.rows, ...report.keys].map((tensor) => tensor.load()));
  const curves = report.tensors.filter(({ shape }) => shape.length === 1);
  await showCurves(byId("curves"), report, curves);
  if (chosen.report !== report) return; // another one was chosen meanwhile
  const { matrices } = report;
  for (const id of ["matrix", "controls"]) byId(id).hidden = !matrices.length;
  byId("overview").hidden = true;
  byId("row-curves").replaceChildren();
  const names = matrices.map((tensor, i) => [i, `${tensor.name} (${tensor.axes.map(words).join(" × ")})`]);
  const isFirst = ({ name }) => name === "weights" || name === "pooled_mean";
  const first = Math.max(0, matrices.findIndex(isFirst));
  fillSelect(byId("tensor"), names, first);
  if (matrices.length) await showTensor(first);
}

async function showTensor(index) {
  const { report } = chosen;
  const tensor = report.matrices[index];
  await Promise.all([tensor, ...comparedWith(tensor)].map((each) => each.load()));
  if (chosen.report !== report) return;
  byId("scale").value = scaleOf(tensor);
  const isAlike = chosen.tensor && String(chosen.tensor.leadingShape) === String(tensor.leadingShape);
  if (!isAlike) Object.assign(chosen, { number: 0, sort: askedSort(report), layer: "" });
  chosen.tensor = tensor;
  byId("skip").value = chosen.skip;
  byId("skip").parentElement.hidden = !tensor.axes.at(-1).startsWith("key");
  byId("overview").hidden = tensor.count < 2;
  document.querySelector(".workspace").classList.remove("beside");
  byId("range").parentElement.hidden = tensor.count < 2;
  if (tensor.count > 1) {
    overview.show(tensor, (place) => report.full.has(shortPlace(place)));
    fillSortAndLayer();
    paintOverview();
    arrangeOverview();
    const isShown = overview.shown.some(({ number }) => number === chosen.number);
    if (!isShown || (!isAlike && chosen.sort))
      chosen.number = overview.shown[0].number;
    overview.mark(chosen.number);
  }
  await showMatrix();
}

// The statistic that the survey was asked to sort by.
function askedSort({ settings, statistics }) {
  const [first] = Array.isArray(statistics.heads) ? statistics.heads : [];
  return first && Object.hasOwn(first, settings.sort) ? settings.sort : "";
}

function paintOverview() {
  const { tensor, range } = chosen;
  const ofAll = range === "all" ? shadingOfMatrix(tensor, 0) : null;
  overview.paint((number) => ofAll ?? shadingOfMatrix(tensor, number), skippedOf(tensor));
}

function arrangeOverview() {
  const figure = figures().find(({ name }) => name === chosen.sort);
  const shown = overview.arrange(figure?.of, figure ? words(figure.name) : "", chosen.layer);
  byId("shown").textContent = `${shown.length} of ${overview.items.length}`;
}

// The whole weights of the chosen head where the page has them, else the chosen map.
async function showMatrix() {
  const { report, tensor, number } = chosen;
  const place = tensor.place(number);
  const full = report.full.get(shortPlace(place));
  if (full) await full.load();
  if (chosen.tensor !== tensor || chosen.number !== number) return;
  const [shown, index] = full ? [full, 0] : [tensor, number];
  const values = shown.matrix(index);
  const [rowAxis, columnAxis] = shown.axes.slice(-2);
  const shading = shadingOfMatrix(shown, index);
  const skip = skippedOf(shown);
  matrix = {
    values,
    rows: shown.rows,
    columns: shown.columns,
    axes: [rowAxis, columnAxis],
    place,
    shading,
    skip,
    decimals: shown.decimals,
    isLog: shading.kind === "log",
    title: matrixTitle(full ? { ...full, name: "weights" } : tensor, place),
    rowLabels: axisLabels(report, rowAxis, shown.rows),
    columnLabels: axisLabels(report, columnAxis, shown.columns),
    row: (i) => values.subarray(i * shown.columns, (i + 1) * shown.columns),
    column: (j) => Float64Array.from({ length: shown.rows }, (_, i) => values[i * shown.columns + j]),
  };
  matrix.isAttention = rowAxis === "query" && columnAxis === "key";
  matrix.isSelf = matrix.isAttention && !report.context_tokens.length && shown.rows === shown.columns;
  byId("matrix-title").textContent = matrix.title;
  byId("matrix-note").textContent = noteOf(shown);
  showHeadFigures(place);
  showRowCurves(byId("row-curves"), report, matrix);
  for (const id of ["previous", "next"]) byId(id).hidden = tensor.count < 2;
  showLegend(byId("legend"), shading, matrix.decimals);
  map.show(matrix);
  const hasTokens = matrix.isAttention && Math.max(matrix.rows, matrix.columns) <= MOST_TOKENS;
  byId("tokens").hidden = !hasTokens;
  byId("cards").hidden = !matrix.isAttention;
  if (hasTokens) sides.show({ query: matrix.rowLabels, key: matrix.columnLabels });
  const kept = (token) => token.index < (token.side === "query" ? matrix.rows : matrix.columns);
  chosen.pins = matrix.isAttention ? chosen.pins.filter(kept) : [];
  chosen.looked = null;
  showSources();
}

async function choose(number) {
  chosen.number = number;
  overview.mark(number);
  await showMatrix();
}

// The head of a row of the survey, if the tensor shows heads.
function showHead({ layer, head }) {
  const item = overview.items.find(({ place }) => shortPlace(place) === `${layer}:${head}`);
  if (!item || byId("overview").hidden) return;
  choose(item.number);
  byId("matrix").scrollIntoView({ block: "start" });
}

function redraw() {
  if (chosen.tensor.count > 1) paintOverview();
  return showMatrix();
}

// What goes wrong is told on the page.
function run(promise) {
  Promise.resolve(promise).catch((error) => {
    byId("problem").hidden = false;
    byId("problem").textContent = `This page could not be drawn: ${error.message}`;
    throw error;
  });
}

async function open() {
  if (!window.DecompressionStream) throw new Error("it needs a browser from 2023 or later");
  fillSelect(
    byId("scale"),
    start.scales.map((scale) => [scale, scale]),
    start.scale ?? start.scales[0],
  );
  const headings = JSON.parse(document.querySelector("script.headings").textContent);
  fillSelect(
    byId("report"),
    headings.map((heading, i) => [i, `${i + 1}: ${heading}`]),
    0,
  );
  byId("report-choice").hidden = sources.length < 2;
  listen();
  if (sources.length) await showReport(0);
  document.documentElement.dataset.drawn = Math.round(performance.now());
}

run(open());

// The page: what is chosen, and drawing it anew when that changes.

const THEMES = ["automatic", "light", "dark"];
const FULL_HEAD = /^(.+)_(\d+)_(\d+)$/;
const MOST_TOKENS = 4096;

const start = JSON.parse(document.querySelector("script.start").textContent);
const sources = Array.from(document.querySelectorAll("script.report"));
readMaps(start);

const chosen = {
  report: null, tensor: null, number: 0, scale: start.scale, skip: start.skip, range: "each", sort: "", layer: "",
  pins: [], looked: null,
};
let matrix = null; // what the map shows

const overview = new Overview(byId("thumbnails"), choose);
const map = new MatrixMap(byId("map"), { onCell: lookAtCell, onPick: (row) => pin({ side: "query", index: row }) });
const sides = new TokenSides(byId("tokens"), { onLook: look, onPin: pin });

function readReport(index) {
  const data = JSON.parse(sources[index].textContent);
  for (const kind of ["tensors", "rows", "keys"]) data[kind] = data[kind].map((tensor) => new Tensor(tensor));
  data.matrices = data.tensors.filter((tensor) => tensor.isMatrix && tensor.shape.every((size) => size > 0));
  const isPooled = data.matrices.some(({ name }) => name.startsWith("pooled_"));
  data.full = new Map();
  for (const tensor of isPooled ? data.matrices : []) {
    const [, , layer, head] = FULL_HEAD.exec(tensor.name) ?? [];
    if (layer !== undefined) data.full.set(`${layer}:${head}`, tensor);
  }
  data.matrices = data.matrices.filter((tensor) => ![...data.full.values()].includes(tensor));
  return data;
}

async function showReport(index) {
  const report = readReport(index);
  Object.assign(chosen, { report, sort: "", layer: "", pins: [], looked: null });
  byId("heading").textContent = report.heading;
  document.title = `attn ${report.experiment}`;
  showTables(byId("tables"), report.statistics, showHead);
  showSteps(byId("steps"), report.steps);
  showNotes(report);
  await Promise.all([...report.rows, ...report.keys].map((tensor) => tensor.load()));
  await showCurves(byId("curves"), report, report.tensors.filter(({ shape }) => shape.length === 1));
  if (chosen.report !== report) return; // another one was chosen meanwhile
  const { matrices } = report;
  for (const id of ["matrix", "controls"]) byId(id).hidden = !matrices.length;
  byId("overview").hidden = true;
  byId("row-curves").replaceChildren();
  const names = matrices.map((tensor, i) => [i, `${tensor.name} (${tensor.axes.map(words).join(" × ")})`]);
  const first = Math.max(0, matrices.findIndex(({ name }) => name === "weights" || name === "pooled_mean"));
  fillSelect(byId("tensor"), names, first);
  if (matrices.length) await showTensor(first);
}

async function showTensor(index) {
  const { report } = chosen;
  const tensor = report.matrices[index];
  await tensor.load();
  if (chosen.report !== report) return;
  const isAlike = chosen.tensor && String(chosen.tensor.leadingShape) === String(tensor.leadingShape);
  if (!isAlike) Object.assign(chosen, { number: 0, sort: "", layer: "" });
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
    if (!overview.shown.some(({ number }) => number === chosen.number)) chosen.number = overview.shown[0].number;
    overview.mark(chosen.number);
  }
  await showMatrix();
}

// Figures by which heads may be sorted: those of the survey, else means of the statistics of rows.
function figures() {
  const { report, tensor } = chosen;
  const heads = report.statistics.heads;
  if (Array.isArray(heads) && tensor.axes.includes("layer")) {
    const names = Object.keys(heads[0] ?? {}).filter((name) => !PLACES.includes(name) && heads.some((row) => isNumber(row[name])));
    const rows = new Map(heads.map((row) => [`${row.layer}:${row.head}`, row]));
    return names.map((name) => ({ name, of: (place) => rows.get(shortPlace(place))?.[name] }));
  }
  const means = report.rows.filter(({ axes }) => String(axes.slice(0, -1)) === String(tensor.leading));
  return means.map((rows) => ({ name: `mean ${rows.name}`, of: (place) => mean(rows.at(place)) }));
}

function mean(numbers) {
  const known = Array.from(numbers).filter(isNumber);
  return known.reduce((sum, number) => sum + number, 0) / known.length;
}

function fillSortAndLayer() {
  const { tensor } = chosen;
  const sorts = figures().map(({ name }) => [name, words(name)]);
  fillSelect(byId("sort"), [["", "place"], ...sorts], chosen.sort);
  byId("sort-choice").hidden = !sorts.length;
  const numLayers = tensor.axes[0] === "layer" ? tensor.shape[0] : 0;
  fillSelect(byId("layer"), [["", "all"], ...Array.from({ length: numLayers }, (_, i) => [i, i])], chosen.layer);
  byId("layer-choice").hidden = numLayers < 2;
}

// How many columns have no colour: those of skipped keys, or the blocks that hold one.
function skippedOf({ axes, columns }) {
  const axis = axes.at(-1);
  if (axis === "key") return Math.min(chosen.skip, columns - 1);
  if (axis !== "key_block") return 0;
  const size = Math.ceil(tokensAlong(chosen.report, axis).length / columns) || 1;
  return Math.min(Math.ceil(chosen.skip / size), columns - 1);
}

// The shading of one matrix of a tensor: by its own ends, or by those of all.
function shadingOfMatrix(tensor, number) {
  const values = chosen.range === "all" ? tensor.values : tensor.matrix(number);
  return shadingOf(endsOf(values, tensor.columns, skippedOf(tensor)), chosen.scale);
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
    values, rows: shown.rows, columns: shown.columns, axes: [rowAxis, columnAxis], place, shading, skip,
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

// What the survey found about the chosen head.
function showHeadFigures(place) {
  const { heads } = chosen.report.statistics;
  const isHead = Array.isArray(heads) && chosen.tensor.axes.includes("layer");
  const row = isHead && heads.find((other) => `${other.layer}:${other.head}` === shortPlace(place));
  byId("head-figures").hidden = !row;
  if (row) fillFigures(byId("head-figures"), Object.entries(row).filter(([name, value]) => !PLACES.includes(name) && typeof value !== "string"));
}

function noteOf(shown) {
  const notes = [];
  if (shown.axes.at(-1) === "key_block") notes.push("Each cell is a block of tokens.");
  if (chosen.report.full.size && shown.axes.at(-1) === "key_block") {
    notes.push(`In full: ${[...chosen.report.full.keys()].join(", ")} (framed in the overview).`);
  }
  if (shown.decimals < 4) notes.push(`Numbers are kept to ${shown.decimals} decimals here.`);
  return notes.join(" ");
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

// Tokens that are kept, then the one that is looked at, each with its row, its column, or both.
function chosenSources() {
  const tokens = chosen.pins.map((token) => ({ ...token, isPinned: true }));
  const { looked } = chosen;
  if (looked && !tokens.some((token) => isSame(token, looked))) tokens.push({ ...looked, colour: "looked" });
  return tokens.map((token) => ({
    ...token,
    query: matrix.isSelf || token.side === "query" ? token.index : null,
    key: matrix.isSelf || token.side === "key" ? token.index : null,
  }));
}

const isSame = (one, other) => one.index === other.index && (matrix.isSelf || one.side === other.side);

function showSources() {
  if (!matrix.isAttention) {
    byId("readout").textContent = "";
    return;
  }
  const list = chosenSources();
  if (!byId("tokens").hidden) sides.draw(matrix, list);
  showCards(byId("cards"), matrix, list, chosen.report, pin);
  byId("readout").textContent = list.length ? readoutOf(list) : "";
}

// From kept tokens to the one that is looked at, or where that one looks most.
function readoutOf(list) {
  const last = list.at(-1);
  const pairs = [];
  for (const { query } of list.slice(0, -1)) {
    if (query !== null && last.key !== null) pairs.push(cellText(query, last.key));
  }
  for (const { key } of list.slice(0, -1)) {
    if (key !== null && last.query !== null) pairs.push(cellText(last.query, key));
  }
  if (pairs.length) return pairs.join("; ");
  if (last.query !== null) return cellText(last.query, largestIn(matrix.row(last.query)), " looks most at ");
  return cellText(largestIn(matrix.column(last.key)), last.key, " looks most at ");
}

const largestIn = (numbers) => numbers.reduce((best, value, i) => (value > numbers[best] || numbers[best] !== numbers[best] ? i : best), 0);

function cellText(row, column, verb = " → ") {
  const value = weightText(matrix.values[row * matrix.columns + column], matrix.decimals);
  return `${labelText(matrix.rowLabels[row])}${verb}${labelText(matrix.columnLabels[column])}: ${value}`;
}

let frame = 0;

// At most once a frame, however fast the pointer moves.
function look(token) {
  chosen.looked = token;
  if (!token && !byId("tokens").hidden) chosen.looked = focusedToken();
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(showSources);
}

function focusedToken() {
  const token = document.activeElement?.closest?.(".token:focus-visible");
  return token ? { side: token.dataset.side, index: Number(token.dataset.index) } : null;
}

function lookAtCell(cell) {
  if (matrix.isAttention) look(cell && { side: "query", index: cell[0] });
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    showSources();
    if (cell) byId("readout").textContent = cellText(...cell);
  });
}

// Keep a token in a colour of its own; one that is kept already is let go.
function pin({ side, index }) {
  if (!matrix.isAttention) return;
  const token = { side, index };
  const others = chosen.pins.filter((other) => !isSame(other, token));
  if (others.length === chosen.pins.length) {
    const free = PIN_COLOURS.find((colour) => !others.some((other) => other.colour === colour));
    others.push({ ...token, colour: free ?? PIN_COLOURS[index % PIN_COLOURS.length] });
  }
  chosen.pins = others;
  showSources();
}

function showNotes(report) {
  const { environment, settings, left_out } = report;
  const lines = [...report.notes, ...left_out.map((text) => `Left out of this page: ${text}; json and csv have every number.`)];
  const list = make("dl", { class: "figures" });
  for (const [name, value] of [...Object.entries(settings), ...Object.entries(environment)]) {
    list.append(make("div", {}, make("dt", { text: name }), make("dd", {}, makeToken(value))));
  }
  const details = make("details", {}, make("summary", { text: "Settings" }), list);
  byId("notes").replaceChildren(...lines.map((text) => make("p", { text })), details);
}

function redraw() {
  if (chosen.tensor.count > 1) paintOverview();
  return showMatrix();
}

function listen() {
  const onChange = (id, change) => byId(id).addEventListener("change", ({ target }) => run(change(target.value)));
  onChange("report", (value) => showReport(Number(value)));
  onChange("tensor", (value) => showTensor(Number(value)));
  onChange("scale", (value) => ((chosen.scale = value), redraw()));
  onChange("range", (value) => ((chosen.range = value), redraw()));
  onChange("skip", (value) => {
    chosen.skip = Math.max(0, Math.floor(Number(value)) || 0);
    byId("skip").value = chosen.skip;
    return redraw();
  });
  onChange("sort", (value) => ((chosen.sort = value), arrangeOverview(), overview.mark(chosen.number)));
  onChange("layer", (value) => ((chosen.layer = value), arrangeOverview(), overview.mark(chosen.number)));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  sides.clear.addEventListener("click", letAllGo);
  byId("theme").addEventListener("click", ({ target }) => {
    const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "automatic") + 1) % THEMES.length];
    document.documentElement.dataset.theme = theme;
    target.textContent = `Theme: ${theme}`;
    if (matrix) showSources();
  });
  byId("help-button").addEventListener("click", ({ target }) => {
    byId("help").hidden = !byId("help").hidden;
    target.setAttribute("aria-expanded", !byId("help").hidden);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select") || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") letAllGo();
    if (event.key === ",") step(-1);
    if (event.key === ".") step(1);
  });
}

function letAllGo() {
  chosen.pins = [];
  if (matrix) showSources();
}

function step(by) {
  if (chosen.tensor?.count > 1) run(choose(overview.neighbour(chosen.number, by)));
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
  fillSelect(byId("scale"), start.scales.map((scale) => [scale, scale]), start.scale);
  const headings = JSON.parse(document.querySelector("script.headings").textContent);
  fillSelect(byId("report"), headings.map((heading, i) => [i, `${i + 1}: ${heading}`]), 0);
  byId("report-choice").hidden = sources.length < 2;
  listen();
  if (sources.length) await showReport(0);
  document.documentElement.dataset.drawn = Math.round(performance.now());
}

run(open());

// Statistics as tables. Mappings with the same keys share a table; a list of mappings has its own.

import { make, makeToken } from "./elements.js";
import { linkTo } from "./linked.js";
import { axisLabels, labelText } from "../values/labels.js";
import { isNumber, NO_NUMBER, scalar } from "../values/numbers.js";

export const PLACES = ["layer", "head"];
const MOST_HEADS = 1e6; // per layer, to sort by layer and head
const FEW_ROWS = 10; // that are shown at first
const MOST_LISTED = 4; // numbers of a list in one cell
const MOST_BESIDE = 8; // columns of a table with a single row
const OF_NAMES = ["statistic", "ranking", "predicts", "ranked_by"]; // columns whose cells are names of columns
const MOST_UPRIGHT = 8; // columns whose headings are printed upright
const PROSE = 48; // characters; a longer text is wrapped
const headName = ({ layer, head }) => `${layer}:${head}`;
const hasPlace = (row) => PLACES.every((axis) => axis in row);
export const words = (name) => name.replaceAll("_", " ");

// The meaning of a report's columns: a function of a column's name, in general or in one table.
export function meaningsOf({ columns }, table = "") {
  const own = columns?.tables[table]?.columns ?? {};
  return (name) => meaning(name, own[name] ?? columns?.names[name]);
}

// The label and the sentence of a table.
export function tableMeaning({ columns }, table) {
  const { label, about } = meaning(table, columns?.tables[table]?.about);
  return { label: label[0].toUpperCase() + label.slice(1), about };
}

function meaning(name, [about = "", unit = "", label = ""] = []) {
  const inUnit = unit && `in ${unit}`;
  return { label: label || words(name), unit, about, title: about && unit ? `${about} (${inUnit})` : about || inUnit };
}

const plainMeaning = (name) => meaning(name);

// All tables of a report, without those of other parts of the page.
export function showTables(container, report, isReplaced, onPlace) {
  const shared = new Map();
  const tables = [];
  for (const [name, value] of Object.entries(report.statistics)) {
    if (isReplaced(name)) continue;
    const { label, about } = tableMeaning(report, name);
    const meanings = meaningsOf(report, name);
    if (Array.isArray(value)) {
      tables.push(tableOf(label, value, name === "heads" ? onPlace : null, { meanings, about }));
      continue;
    }
    const isMapping = value && typeof value === "object";
    const names = isMapping ? Object.keys(value).join() : name;
    if (!shared.has(names)) shared.set(names, []);
    shared.get(names).push({ label, about, meanings, row: isMapping ? value : { value } });
  }
  for (const [{ label, about, meanings, row }, ...others] of shared.values()) {
    if (!others.length) tables.push(tableOf(label, [row], null, { meanings, about }));
    else {
      const rows = [{ "": label, ...row }, ...others.map((other) => ({ "": other.label, ...other.row }))];
      tables.push(tableOf("", rows, null, { meanings }));
    }
  }
  container.replaceChildren(...tables);
}

// Statistics of each key as a table, for reports without a map of keys.
export function keyTable(report) {
  const ofKeys = report.keys.filter(({ axes }) => String(axes) === "key");
  const hasMap = report.matrices.some(({ axes }) => axes.at(-1).startsWith("key"));
  if (hasMap || !ofKeys.length) return "";
  const labels = axisLabels(report, "key", ofKeys[0].values.length);
  const rows = labels.map((label, i) => ({
    token: labelText(label),
    ...Object.fromEntries(ofKeys.map(({ name, values }) => [name, values[i]])),
  }));
  const { head } = report.settings;
  const title = head ? `Head ${head}, token by token` : "Statistics of each key";
  return tableOf(title, rows, null, { meanings: meaningsOf(report, "keys") });
}

// A sortable table of the first rows, with a button for all of them. If its rows are heads, `onPlace` shows one.
// `meanings` are those of its columns, and `about` is a sentence on its rows. `names` are the only columns to show,
// in this order, where `head` stands for layer and head. `sort` is the column by which it is sorted at first.
export function tableOf(title, rows, onPlace, options = {}) {
  const { meanings = plainMeaning, about = "", names = null, sort = "", isAscending = false } = options;
  const lines = rows.map((row) => ({ row, cells: cellsByColumn(row) }));
  const columns = tableColumns(lines, names).map((column) => ({ ...column, ...meanings(column.name) }));
  if (rows.length === 1 && columns.length > MOST_BESIDE) return listOfRow(title, about, lines[0], columns, meanings);
  const body = make("tbody");
  const view = { sorted: lines, isWhole: false };
  const fill = () => {
    const shown = view.isWhole ? view.sorted : view.sorted.slice(0, FEW_ROWS);
    body.replaceChildren(...shown.map((line) => tableLine(line, columns, meanings, onPlace)));
  };
  const heads = columns.map((column) => columnHeading(column, rows.length > 1 ? sortBy : null));
  function sortBy(name, isUp) {
    const order = isUp ? "ascending" : "descending";
    columns.forEach((column, i) => {
      if (column.name === name) heads[i].setAttribute("aria-sort", order);
      else heads[i].removeAttribute("aria-sort");
    });
    view.sorted = [...lines].sort((one, other) => compared(one.cells[name], other.cells[name], isUp ? 1 : -1));
    fill();
  }
  if (sort && columns.some(({ name }) => name === sort)) sortBy(sort, isAscending);
  else fill();
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
  table.style.setProperty("--columns", columns.length);
  table.classList.toggle("wide", columns.length > MOST_UPRIGHT);
  const label = `table of ${title || rows.map((row) => row[""]).join(", ")}`;
  const box = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, table);
  const section = sectionOf(title, about, box);
  if (rows.length > FEW_ROWS) section.append(moreButton(section, rows.length, view, fill));
  return section;
}

function sectionOf(title, about, content) {
  return make(
    "section",
    { class: "table" },
    title ? make("h2", { text: title }) : "",
    about ? make("p", { class: "quiet about", text: about }) : "",
    content,
  );
}

// A single row of many columns, which would be read by scrolling sideways.
function listOfRow(title, about, { cells }, columns, meanings) {
  const list = make("dl", { class: "statistics" });
  for (const column of columns) {
    const { children, textContent, title: full } = tableCell(cells[column.name], column, 1, meanings);
    const value = make("dd", full ? { title: full } : {}, ...(children.length ? children : [textContent]));
    list.append(make("div", column.title ? { title: column.title } : {}, make("dt", { text: column.label }), value));
  }
  return sectionOf(title, about, list);
}

function moreButton(section, count, view, fill) {
  const button = make("button", { type: "button", class: "more" });
  const show = (isWhole) => {
    view.isWhole = isWhole;
    button.textContent = isWhole ? `Show the first ${FEW_ROWS} rows` : `Show all ${count.toLocaleString("en")} rows`;
    section.classList.toggle("whole", isWhole);
    fill();
  };
  button.addEventListener("click", () => show(!view.isWhole));
  let before = false;
  section.addEventListener("beforeprint", () => {
    before = view.isWhole;
    show(true);
  });
  section.addEventListener("afterprint", () => show(before));
  show(false);
  return button;
}

// Tables are printed with all rows.
for (const kind of ["beforeprint", "afterprint"]) {
  addEventListener(kind, ({ target }) => {
    if (target !== window) return;
    for (const section of document.querySelectorAll("section.table")) section.dispatchEvent(new Event(kind));
  });
}

// The cells of a row by column: layer and head are one cell, and so is a list of numbers.
function cellsByColumn(row) {
  const cells = hasPlace(row) ? { head: null } : {};
  for (const [name, value] of Object.entries(row)) {
    if (value && typeof value === "object" && !Array.isArray(value)) {
      for (const [part, item] of Object.entries(value)) cells[`${name} ${part}`] = item;
    } else cells[name] = value;
  }
  for (const end of Object.keys(row).filter((name) => PLACES.every((axis) => `${name}_${axis}` in row))) {
    for (const axis of PLACES) delete cells[`${end}_${axis}`]; // the end itself is a name such as 5:11
  }
  if (!hasPlace(row)) return cells;
  const { layer, head } = row;
  if (layer !== null && layer !== undefined) {
    const text = Number.isInteger(head) ? headName(row) : `layer ${layer}`;
    cells.head = { text, order: layer * MOST_HEADS + (head ?? MOST_HEADS - 1) };
  }
  delete cells.layer;
  return cells;
}

// The columns that say something about the rows, or those with these names.
function tableColumns(lines, names) {
  const all = names ?? [...new Set(lines.flatMap(({ cells }) => Object.keys(cells)))];
  const of = (name) => lines.map(({ cells }) => cells[name]);
  const dropped = names ? [] : redundant(lines);
  return all
    .filter((name) => !dropped.includes(name) && of(name).some((cell) => !isEmptyCell(cell)))
    .map((name) => {
      const cells = of(name).filter((cell) => !isEmptyCell(cell));
      const isText = cells.some((cell) => typeof cell === "string" || typeof cell === "boolean" || isPlaceCell(cell));
      return { name, kind: isText ? "text" : "number", isWhole: cells.every(Number.isInteger) };
    });
}

const isPlaceCell = (cell) => typeof cell === "object" && cell !== null && "order" in cell;
const isEmptyCell = (cell) =>
  cell === null || cell === undefined || cell === "" || Number.isNaN(cell) || (Array.isArray(cell) && !cell.length);

// The stack if there is only one; and columns of heads that follow from the layer or the stack: kind and module.
function redundant(lines) {
  const count = (...names) => new Set(lines.map(({ row }) => names.map((name) => row[name]).join("\n"))).size;
  const dropped = count("stack") === 1 ? ["stack"] : [];
  if (!lines.every(({ row }) => hasPlace(row))) return dropped;
  if (count("layer", "stack", "kind") === count("layer")) dropped.push("kind");
  if (count("layer", "stack", "module") === count("layer", "stack")) dropped.push("module");
  return dropped;
}

function columnHeading({ name, label, unit, title, kind }, sortBy) {
  if (!name) return make("td"); // above the row names
  const hasUnit = unit && unit !== "weight" && !label.includes(unit);
  const text = [label, ...(hasUnit ? [" ", make("span", { class: "unit", text: unit })] : [])];
  const titled = title ? { title } : {};
  const head = make("th", { scope: "col", class: kind, ...(sortBy ? {} : titled) });
  if (!sortBy) {
    head.append(...text);
    return head;
  }
  const button = make("button", { type: "button", ...titled }, ...text);
  button.addEventListener("click", () => sortBy(name, head.getAttribute("aria-sort") === "descending"));
  head.append(button);
  return head;
}

// Rows without a cell come last in either order.
function compared(one, other, sign) {
  if (isEmptyCell(one) || isEmptyCell(other)) return Number(isEmptyCell(one)) - Number(isEmptyCell(other));
  if (isPlaceCell(one) && isPlaceCell(other)) return sign * (one.order - other.order);
  if (isNumber(one) && isNumber(other)) return sign * (one - other);
  return sign * String(one).localeCompare(String(other));
}

function tableLine({ row, cells }, columns, meanings, onPlace) {
  const line = make("tr", {}, ...columns.map((column, i) => tableCell(cells[column.name], column, i, meanings)));
  linkTo(line, row);
  if (PLACES.every((axis) => Number.isInteger(row[axis]))) {
    const place = columns.findIndex(({ name }) => name === "head");
    if (onPlace && place >= 0) {
      const text = headName(row);
      const button = make("button", { type: "button", "aria-label": `Show head ${text}`, text });
      button.addEventListener("click", () => onPlace(row));
      line.children[place].replaceChildren(button);
    }
  }
  return line;
}

// Tiny numbers have two digits, and all of them in the title.
function numberText(value) {
  const text = scalar(value);
  return text.includes("e-") ? { text: value.toExponential(1), title: text } : { text };
}

function tableCell(cell, { name, kind, isWhole }, place, meanings) {
  const isText = kind === "text";
  const tag = place === 0 && isText && !isEmptyCell(cell) ? "th" : "td";
  const scope = tag === "th" ? { scope: "row" } : {};
  if (isEmptyCell(cell)) return make("td", { class: kind, text: isText ? "" : NO_NUMBER });
  if (isPlaceCell(cell)) return make(tag, { class: "text place", ...scope, text: cell.text });
  if (typeof cell === "boolean") return make(tag, { class: kind, ...scope, text: cell ? "yes" : "no" });
  if (OF_NAMES.includes(name) && typeof cell === "string") {
    const { label, title } = meanings(cell);
    return make(tag, { class: kind, ...scope, ...(title ? { title } : {}), text: label });
  }
  if (typeof cell === "string") {
    const length = cell.length > PROSE ? " prose" : "";
    return make(tag, { class: `text${length}`, ...scope }, makeToken(cell));
  }
  if (!Array.isArray(cell)) return make(tag, { class: kind, ...scope, ...(isWhole ? { text: cell } : numberText(cell)) });
  const listed = cell.map((item) => (Number.isInteger(item) ? item : numberText(item).text)).join(", ");
  if (cell.length <= MOST_LISTED) return make(tag, { class: kind, ...scope, text: listed });
  return make(tag, { class: kind, ...scope, title: listed, text: `${cell.length} numbers` });
}

// Lists, buttons and keyboard shortcuts.

import { chosen, matrix, overview, sides } from "./chosen.js";
import { listenToPointing } from "./linked.js";
import { paintLooks } from "./looks.js";
import { fillSorts, placesOf, soughtRanking } from "./rankings.js";
import { clearSelection, showSources } from "./selection.js";
import { arrangeOverview, choose, compareWith, redraw, run, showReport, showTensor, showView } from "./show.js";
import { closeSheet, listenToSheet } from "./sheet.js";
import { byId } from "../parts/elements.js";
import { namesIn } from "../values/labels.js";

const THEMES = ["automatic", "light", "dark"];

// Sort the maps and choose the first one.
function sortBy(name) {
  chosen.sort = name;
  fillSorts();
  arrangeOverview();
  byId("thumbnails").scrollTop = 0;
  return choose(name ? overview.shown[0].number : chosen.number);
}

// Rank by the weight between the typed tokens.
function seek() {
  const axes = { from: "query", to: "key" };
  for (const each of Object.keys(axes)) chosen.sought[each] = namesIn(byId(each).value);
  if (chosen.canAskWeight?.() && chosen.tensor.axes.at(-1) === "key_block")
    return chosen.sought.to.length && chosen.askWeight(chosen.sought);
  for (const [each, axis] of Object.entries(axes)) {
    const missing = chosen.sought[each].filter((name) => !placesOf([name], axis).length);
    byId(each).setCustomValidity(missing.length ? `The text has no token ${missing.join(" or ")}` : "");
    byId(each).reportValidity();
  }
  return sortBy(soughtRanking() ? "sought" : chosen.sort === "sought" ? "" : chosen.sort);
}

function choseLayer(value) {
  chosen.layer = value;
  const shown = arrangeOverview();
  const isShown = shown.some(({ number }) => number === chosen.number);
  return choose(isShown ? chosen.number : shown[0].number);
}

export function listen() {
  listenToPointing();
  listenToSheet();
  const onChange = (id, change) =>
    byId(id).addEventListener("change", ({ target }) => run(change(target.value)));
  onChange("report", (value) => showReport(Number(value)));
  onChange("tensor", (value) => showTensor(Number(value)));
  onChange("scale", (value) => ((chosen.scale = value), redraw()));
  onChange("range", (value) => ((chosen.range = value), redraw()));
  onChange("skip", (value) => {
    chosen.skip = Math.max(0, Math.floor(Number(value)) || 0);
    byId("skip").value = chosen.skip;
    return redraw();
  });
  onChange("sort", sortBy);
  onChange("layer", choseLayer);
  onChange("from", seek);
  onChange("to", seek);
  onChange("picture-choice", (value) => ((chosen.picture = Number(value)), showTensor(chosen.report.matrices.indexOf(chosen.tensor))));
  onChange("size", (value) => {
    overview.setSize(value);
    if (chosen.tensor.is_pictured) paintLooks();
  });
  onChange("compare", (value) => compareWith(value === "" ? null : Number(value)));
  byId("step").addEventListener("input", ({ target }) => run(choose(overview.shown[target.value].number)));
  byId("order").addEventListener("click", () => {
    chosen.isAscending = !chosen.isAscending;
    run(sortBy(chosen.sort));
  });
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  for (const view of ["map", "lines"])
    byId(`view-${view}`).addEventListener("click", () => run(showView(view)));
  sides.clear.addEventListener("click", clearSelection);
  byId("theme").addEventListener("click", ({ target }) => {
    const theme =
      THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "automatic") + 1) % THEMES.length];
    document.documentElement.dataset.theme = theme;
    target.textContent = `Theme: ${theme}`;
    redrawLines();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawLines);
  byId("help-button").addEventListener("click", ({ target }) => {
    byId("help").hidden = !byId("help").hidden;
    target.setAttribute("aria-expanded", !byId("help").hidden);
  });
  let closed = [];
  let theme;
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const details of closed) details.open = true;
    ({ theme } = document.documentElement.dataset);
    document.documentElement.dataset.theme = "light";
    redrawLines();
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    redrawLines();
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select") || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape" && (closeSheet() || clearSelection())) event.preventDefault();
    if (event.key === ",") step(-1);
    if (event.key === ".") step(1);
  });
}

// Lines are on a canvas, with the colours of the theme.
function redrawLines() {
  if (matrix) showSources();
}

function step(by) {
  if (chosen.tensor?.count > 1) run(choose(overview.neighbour(chosen.number, by)));
}

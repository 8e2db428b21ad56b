// Pointing at a token, a head or a row of a table highlights it everywhere on the page.

import { beside, chosen, comparedMap, map, matrix, overview } from "./chosen.js";
import { surveyed } from "./rankings.js";
import { byId } from "../parts/elements.js";
import { ABOUT, aboutElement, aboutRow, linkTo, sameAs } from "../parts/linked.js";

const CLASS = "linked";
const STACKS = ["cross", "encoder", "decoder"];
let linkFrame = 0;
let lastLink = { about: "{}", matrix: null };
let linkedPairs = [];

// Highlight everything about the same head or tokens; an empty object ends it.
export function link(about) {
  cancelAnimationFrame(linkFrame);
  linkFrame = requestAnimationFrame(() => highlight(about));
}

function highlight(about) {
  const text = JSON.stringify(about);
  if (text === lastLink.about && matrix === lastLink.matrix) return;
  lastLink = { about: text, matrix };
  for (const element of document.querySelectorAll(`.${CLASS}`)) element.classList.remove(CLASS);
  linkedPairs = chosen.report ? sameAs(about, !chosen.report.context_tokens.length) : [];
  addClass();
  markMaps(linkedPairs);
  const item = overview.items.find(({ element }) => element.matches(`.${CLASS}`));
  overview.grid.frameAt(overview.grid.pointed, item?.number);
}

// Also called for elements that were added while others are highlighted.
function addClass() {
  if (!linkedPairs.length) return;
  // With a head, rows of other heads that have the same token are not about the same.
  const others = linkedPairs[0][0] === "head" ? ":not([data-head])" : "";
  const selector = linkedPairs
    .map(([name, value]) => `[data-${name}~="${CSS.escape(value)}"]${name === "head" ? "" : others}`)
    .join();
  for (const element of byId("main").querySelectorAll(selector)) element.classList.add(CLASS);
}

// The stack of the heads whose maps or numbers are shown, as rows of tables name it.
function stackOfMaps() {
  const { heads } = chosen.report.statistics;
  const isOne = !Array.isArray(heads) || heads.every(({ stack }) => stack === heads[0].stack);
  return isOne ? "self" : surveyed(chosen.report)[0]?.stack;
}
export const stackOfGrid = () => STACKS.find((name) => chosen.tensor.name.endsWith(` ${name}`));

function nameThumbnails() {
  if (overview.items[0]?.element.dataset.head) return;
  for (const { element, place } of overview.items) {
    const { layer, head } = Object.fromEntries(place);
    linkTo(element, { layer, head, stack: stackOfMaps() });
  }
}

// What a cell of a map is about: the head of a layer-by-head map, or the tokens of its row and its column.
export function aboutCell({ axes, rowLabels, columnLabels }, [row, column]) {
  const [one, other] = [rowLabels[row].position, columnLabels[column].position];
  if (isGrid(axes)) return aboutRow({ layer: Number(one), head: Number(other), stack: stackOfGrid() });
  return aboutRow({ [axes[0]]: one, [axes[1]]: other });
}

const isGrid = (axes) => String(axes) === "layer,head";

// Frames around rows and columns of the maps, unless the pointer is on one.
function markMaps(pairs) {
  if (!matrix || chosen.tensor.is_pictured || map.cell || comparedMap.cell) return;
  for (const [drawn, { axes, rowLabels, columnLabels }] of [[map, matrix], [comparedMap, beside]].slice(0, beside ? 2 : 1)) {
    const ends = isGrid(axes) ? headEnds(pairs) : axes.map((axis) => pairs.find(([name]) => name === axis)?.[1]);
    const cell = [rowLabels, columnLabels].map((labels, i) => labels.findIndex(({ position }) => position === ends[i]));
    drawn.mark(...cell.map((index) => (index < 0 ? null : index)));
  }
}

// The layer and the head of a grid, if it has the highlighted head.
function headEnds(pairs) {
  const name = pairs.find(([attribute]) => attribute === "head")?.[1] ?? "";
  const [, stack, ...ends] = /^(?:(\w+):)?([0-9]+):([0-9]+)$/.exec(name) ?? [];
  return stack === stackOfGrid() ? ends : [];
}

const aboutAt = (target) => {
  const element = target?.closest?.(ABOUT);
  return element ? aboutElement(element) : {};
};
const aboutFocused = () => aboutAt(document.activeElement?.closest?.(":focus-visible"));

export function listenToPointing() {
  const main = byId("main");
  const point = ({ target }) => {
    nameThumbnails();
    if (!target.closest(".map-cells")) link(aboutAt(target)); // a map says itself which cell is under the pointer
  };
  for (const kind of ["pointerover", "focusin"]) main.addEventListener(kind, point);
  main.addEventListener("pointerleave", () => link(aboutFocused()));
  main.addEventListener("focusout", () => link({}));
  overview.grid.onPoint = (item) => link(item ? aboutElement(item.element) : {});
  new MutationObserver(addClass).observe(main, { childList: true, subtree: true });
}

// The heads by how much they need the keys that they would forget; the text with the keys that the selected head
// forgets, shaded by the weight that one query gives them; and the loss by the share of the cache that is left.

import { chartOf } from "attn/parts/charts.js";
import { make, makeToken } from "attn/parts/elements.js";
import { headCell, moveWithArrows } from "attn/parts/head_cells.js";
import { showShadeKey } from "attn/parts/shade_key.js";
import { shadingOf, showLegend } from "attn/values/colours.js";
import { fixed, scalar } from "attn/values/numbers.js";
import { shade } from "attn/values/shades.js";

// A longer text is cut to this many tokens on either side of each highlighted token.
const LONG_TEXT = 1500;
const AROUND = 12;
const LEAST_LISTED = 0.005;
const FORGOTTEN_HINT = "Select a head to see the keys that it forgets.";
const NAMES = {
  needle: "rise of the needle's loss",
  worst: "largest change of a prediction (KL)",
  kl: "mean change of the predictions (KL)",
  loss: "rise of the loss",
};
const SHORT_NAMES = { needle: "needle's loss", kl: "KL", loss: "loss" };
const UNIT = "nats per token";

// Returns the function that shows a head, given its layer and number.
export function show(container, { tokens, statistics }) {
  const { forgotten, heads, curve } = statistics;
  const headRows = (rows, layer, head) => rows.filter((row) => row.layer === layer && row.head === head);
  const text = make("div", { class: "forgotten-text", "aria-live": "polite" });
  const showHead = ({ layer, head }) => {
    const keys = headRows(forgotten, layer, head);
    const [lost] = headRows(heads, layer, head);
    if (!lost) return;
    for (const { row, cell } of grid.cells) cell.ariaSelected = row === lost;
    const numbers = Object.entries(NAMES).filter(([name]) => name in lost).map(([name, said]) => `${said} ${scalar(lost[name], 2)}`);
    text.replaceChildren(
      make("h2", { text: `Keys that head ${layer}:${head} forgets` }),
      make("p", { class: "quiet", text: `Without them: ${numbers.join(", ")} (${UNIT}). Weight on the keys that it keeps: ${fixed(lost.kept_weight, 2)}.` }),
      ...(keys.length ? [forgottenKeysLine(keys, tokens), keyOf(), textWithForgotten(keys, tokens)] : [make("p", { text: "This head forgets no key here." })]),
    );
  };
  const grid = gridOf(heads, showHead);
  const charts = curve?.length > 1 ? make("div", { class: "forgotten-curve" }, curveOf(curve)) : "";
  container.replaceChildren(grid.element, make("div", {}, text, charts));
  showHead(heads[0]);
  return showHead;
}

// A cell per head, by the measure that the heads are sorted by.
function gridOf(heads, showHead) {
  const need = "needle" in heads[0] ? "needle" : "worst";
  const rows = [...heads].sort((one, other) => one.layer - other.layer || one.head - other.head);
  const numbers = rows.map((row) => row[need]).filter((number) => number !== null);
  const shading = shadingOf({ low: Math.min(...numbers), high: Math.max(...numbers), above: 0 }, "linear", true);
  const legend = make("p", { class: "legend" });
  showLegend(legend, shading, { decimals: 2, unit: `${NAMES[need]}, ${UNIT}` });
  const body = make("tbody");
  const cells = rows.map((row) => {
    const cell = headCell(row, row[need], shading, fixed(row[need], 2));
    cell.setAttribute("aria-label", `head ${row.layer}:${row.head}: ${fixed(row[need], 2)}`);
    for (const event of ["click", "focus"]) cell.addEventListener(event, () => showHead(row));
    return { row, cell };
  });
  for (const layer of new Set(rows.map((row) => row.layer))) {
    const own = cells.filter(({ row }) => row.layer === layer);
    body.append(make("tr", {}, make("th", { scope: "row", text: `layer ${layer}` }), ...own.map(({ cell }) => cell)));
  }
  moveWithArrows(cells.map(({ cell }) => cell), rows);
  const numbersOfHeads = [...new Set(rows.map(({ head }) => head))];
  const top = make("tr", {}, make("th", { scope: "col", text: "head" }), ...numbersOfHeads.map((head) => make("th", { scope: "col", text: head })));
  const table = make("table", { role: "grid", "aria-label": `Heads by the ${NAMES[need]} without the keys that they forget` }, make("thead", {}, top), body);
  const hint = make("p", { class: "quiet", text: FORGOTTEN_HINT });
  return { cells, element: make("div", { class: "forgotten-heads" }, make("h2", { text: "Heads that need their old keys most" }), legend, table, hint) };
}

// The changes when more and more heads are limited, by the share of the cache that is left.
function curveOf(curve) {
  const sorted = [...curve].sort((one, other) => one.cache - other.cache);
  const names = ["needle", "kl", "loss"].filter((name) => name in sorted[0]);
  const lines = names.map((name) => ({ name: SHORT_NAMES[name], numbers: sorted.map((row) => row[name]) }));
  const places = sorted.map(({ cache }) => 100 * cache);
  const labels = places.map((place) => fixed(place, 0));
  return chartOf(`Rise with a smaller cache, ${UNIT}`, lines, { name: "share of the cache that is left, in %", places, labels, isCounted: false });
}

function keyOf() {
  const legend = make("p", { class: "legend" });
  showShadeKey(legend, "weight of the framed token on each forgotten key", "1");
  return legend;
}

// Tokens are quoted, so that a number is not read as a position.
function forgottenKeysLine(keys, tokens) {
  const describe = (i) => `token ${i} "${tokens[i]}"`;
  const listed = keys.filter(({ key_weight }, i) => !i || key_weight >= LEAST_LISTED).map(({ key, key_weight }) => `${describe(key)} (${fixed(key_weight, 2)})`);
  return make("p", { text: `From ${describe(keys[0].query)}, the head gives the most weight to ${listed.join(", ")}` });
}

function textWithForgotten(keys, tokens) {
  const { query } = keys[0];
  const weights = new Map(keys.map(({ key, key_weight }) => [key, key_weight]));
  const highlighted = [query, ...weights.keys()];
  const isNear = (i) => tokens.length <= LONG_TEXT || highlighted.some((position) => Math.abs(i - position) <= AROUND);
  const text = make("div", { class: "written", tabindex: 0, role: "region", "aria-label": "the text with the forgotten keys" });
  let wasShown = true;
  tokens.forEach((token, i) => {
    if (!isNear(i)) {
      if (wasShown) text.append(" … ");
      wasShown = false;
      return;
    }
    wasShown = true;
    const element = make("span", { class: i === query ? "token query" : "token" }, makeToken(token));
    element.dataset.token = i;
    if (weights.has(i)) {
      shade(element, weights.get(i));
      element.classList.add("forgotten");
      element.title = fixed(weights.get(i), 4);
    }
    text.append(element, "\u200b");
  });
  return text;
}

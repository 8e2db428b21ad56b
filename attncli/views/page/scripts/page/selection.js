// Selected and hovered tokens, and the readout about them.

import { beside, chosen, comparedMap, map, matrix, sides } from "./chosen.js";
import { ofOwnSide, showHeadKeys, views } from "./heads.js";
import { aboutCell, link } from "./linked.js";
import { isSameSize } from "./matrix.js";
import { closeSheet, openSheet } from "./sheet.js";
import { showCards } from "../parts/cards.js";
import { byId } from "../parts/elements.js";
import { PIN_COLOURS } from "../parts/tokens.js";
import { axisLabels, labelText, placeText } from "../values/labels.js";
import { largestIn, weightText } from "../values/numbers.js";

// The selected tokens, then the hovered one, each with its row, its column or both.
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

export function showSources() {
  if (chosen.tensor.is_pictured) return; // looks.js handles pictures
  chosen.onChange();
  if (!matrix.isAttention) {
    byId("readout").textContent = "";
    return;
  }
  const list = chosenSources();
  if (!byId("tokens").hidden) {
    const drawn = views();
    sides.draw(matrix, drawn, drawn.length === 1 ? list : list.map(ofOwnSide), chosen);
    showHeadKeys(list.at(-1));
  }
  showCards(byId("cards"), shownMatrices(), list, chosen.report, pin);
  byId("readout").textContent = list.length ? said((shown) => readoutOf(list, shown)) : "";
}

// The chosen matrix, and the compared one if both have the same tokens.
const shownMatrices = () => (beside && isSameSize(beside, matrix) ? [matrix, beside] : [matrix]);

// Text for each matrix, prefixed with its name if there are two.
function said(textOf) {
  const shown = shownMatrices();
  if (shown.length === 1) return textOf(matrix);
  return shown.map((each) => `${placeText(each.place)}: ${textOf(each)}`).join(" | ");
}

// Weights between the selected tokens and the hovered one; without a selection, the hovered token's largest weight.
function readoutOf(list, shown) {
  const last = list.at(-1);
  const pairs = [];
  for (const { query } of list.slice(0, -1)) {
    if (query !== null && last.key !== null) pairs.push(cellText(shown, query, last.key));
  }
  for (const { key } of list.slice(0, -1)) {
    if (key !== null && last.query !== null) pairs.push(cellText(shown, last.query, key));
  }
  if (pairs.length) return pairs.join("; ");
  if (last.query !== null)
    return cellText(shown, last.query, largestIn(shown.row(last.query)), " looks most at ");
  return cellText(shown, largestIn(shown.column(last.key)), last.key, " looks most at ");
}

function cellText({ axes, values, columns, decimals, rowLabels, columnLabels }, row, column, verb) {
  const value = weightText(values[row * columns + column], decimals);
  const between = verb ?? (String(axes) === "layer,head" ? ":" : " → ");
  return `${labelText(rowLabels[row])}${between}${labelText(columnLabels[column])}: ${value}`;
}

// Read a cell of a thumbnail without choosing its map.
export function readThumbnail(cell) {
  const { report, tensor } = chosen;
  byId("thumbnail-readout").textContent = cell
    ? `${placeText(cell.place)}: ${cellText(
        {
          values: tensor.matrix(cell.number),
          columns: tensor.columns,
          decimals: tensor.decimals,
          rowLabels: axisLabels(report, tensor.axes.at(-2), tensor.rows),
          columnLabels: axisLabels(report, tensor.axes.at(-1), tensor.columns),
        },
        cell.row,
        cell.column,
      )}`
    : "";
}

let frame = 0;

// Redraws at most once per frame, however fast the pointer moves.
export function look(token) {
  chosen.looked = token;
  if (!token && !byId("tokens").hidden) chosen.looked = focusedToken();
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(showSources);
}

function focusedToken() {
  const token = document.activeElement?.closest?.(".token:focus-visible");
  return token ? { side: token.dataset.side, index: Number(token.dataset.index) } : null;
}

// Hover a cell of one of two compared maps; the other map marks the same cell.
export function lookAtCell(cell, from = matrix) {
  const isShared = beside && isSameSize(beside, matrix);
  if (isShared) (from === matrix ? comparedMap : map).mark(...(cell ?? [null, null]));
  link(cell ? aboutCell(from, cell) : {});
  if (matrix.isAttention && (isShared || from === matrix)) look(cell && { side: "query", index: cell[0] });
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    showSources();
    if (!cell) return;
    byId("readout").textContent = isShared
      ? said((shown) => cellText(shown, ...cell))
      : cellText(from, ...cell);
  });
}

// Toggle the selection of a token. Each selected token has its own colour.
export function pin({ side, index }) {
  if (!matrix.isAttention) return;
  const token = { side, index };
  const others = chosen.pins.filter((other) => !isSame(other, token));
  chosen.pins = others.length === chosen.pins.length ? withPin(others, token) : others;
  showSelected();
}

// Draw the selection where the eye is. A card that closes leaves the focus to the next one.
function showSelected() {
  const wasInCards = byId("cards").contains(document.activeElement);
  showSources();
  if (wasInCards) (byId("cards").querySelector(".unpin") ?? byId("close-selected")).focus({ preventScroll: true });
  if (chosen.pins.length) openSheet();
  else closeSheet();
}

function withPin(pins, token) {
  const free = PIN_COLOURS.find((colour) => !pins.some((other) => other.colour === colour));
  return [...pins, { ...token, colour: free ?? PIN_COLOURS[token.index % PIN_COLOURS.length] }];
}

// Select these tokens; those that were selected before keep their colours.
export function selectOnly(tokens) {
  const pinOf = (token) => pins.find((pin) => isSame(pin, token));
  let pins = chosen.pins.filter((pin) => tokens.some((token) => isSame(pin, token)));
  for (const token of tokens) if (!pinOf(token)) pins = withPin(pins, token);
  chosen.pins = [...new Set(tokens.map(pinOf))];
  showSelected();
}

// Returns true if there was a selection.
export function clearSelection() {
  const { length } = chosen.pins;
  chosen.pins = [];
  if (matrix) showSources();
  closeSheet();
  return length > 0;
}

export function toggleAllHeads() {
  chosen.areAllHeads = !chosen.areAllHeads;
  showSources();
}

export function switchHeads(heads) {
  for (const head of heads) if (!chosen.offHeads.delete(head)) chosen.offHeads.add(head);
  showSources();
}

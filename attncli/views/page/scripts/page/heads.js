// Maps shown together: the chosen one, the compared one, or all heads of a layer.

import { beside, chosen, comparedMap, matrix, overview, sides } from "./chosen.js";
import { isSameSize, matrixOf } from "./matrix.js";
import { byId, make } from "../parts/elements.js";
import { placeText } from "../values/labels.js";
import { colourOf, headInk } from "../values/shades.js";

const COMPARED_COLOURS = ["looked", "pin-3"];

// The matrices drawn as lines between tokens. Each has its own ink if there are several.
export function views() {
  if (chosen.areAllHeads) return headsOfLayer().filter(({ isOn }) => isOn);
  if (beside && isSameSize(beside, matrix))
    return [
      { matrix, ink: colourOf(COMPARED_COLOURS[0]) },
      { matrix: beside, ink: colourOf(COMPARED_COLOURS[1]) },
    ];
  return [{ matrix, ink: null }];
}

// All heads of the chosen layer; empty if cells are blocks of tokens.
export function headsOfLayer() {
  const { tensor, number } = chosen;
  if (tensor.leading.at(-1) !== "head" || !matrix.isAttention || tensor.axes.at(-1) !== "key") return [];
  const numHeads = tensor.leadingShape.at(-1);
  const first = number - (number % numHeads);
  return overview.items
    .map((item) => item.number)
    .filter((other) => other >= first && other < first + numHeads)
    .map((other) => ({
      head: other - first,
      ink: headInk(other - first),
      isChosen: other === number,
      isOn: !chosen.offHeads.has(other - first),
      matrix: other === number ? matrix : matrixOf([tensor, other], other, matrix.shading),
    }));
}

// With several heads, only the row of a query or the column of a key: both at once could not be distinguished.
export const ofOwnSide = (source) => ({ ...source, [source.side === "query" ? "key" : "query"]: null });

export function showHeadKeys(source) {
  const heads = chosen.tensor.count > 1 ? headsOfLayer() : [];
  sides.showHeads(heads, {
    layer: placeText(matrix.place.slice(0, -1)),
    isOn: chosen.areAllHeads,
    source: source && ofOwnSide(source),
  });
}

// Two compared maps, each with its name.
export function showCompared() {
  const isCompared = beside !== null;
  byId("parts").classList.toggle("compared", isCompared);
  byId("readout").classList.toggle("of-two", isCompared);
  for (const id of ["compared-box", "map-name"]) byId(id).hidden = !isCompared;
  if (!isCompared) return;
  [matrix, beside].forEach(({ place }, i) => {
    const swatch = make("span", { class: `swatch ${COMPARED_COLOURS[i]}`, "aria-hidden": "true" });
    byId(["map-name", "compared-name"][i]).replaceChildren(swatch, ` ${placeText(place)}`);
  });
  comparedMap.show(beside);
}

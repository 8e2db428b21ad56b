// Which maps are looked at together: the chosen one, the one it is compared with, or all heads of its layer.

import { beside, chosen, comparedMap, matrix, overview, sides } from "./chosen.js";
import { isSameSize, matrixOf } from "./matrix.js";
import { byId, make } from "../parts/elements.js";
import { placeText } from "../values/labels.js";
import { colourOf, headInk } from "../values/shades.js";

const COMPARED_COLOURS = ["looked", "pin-3"];

// The matrices whose lines the tokens show, each with an ink where there are several.
export function views() {
  if (chosen.areAllHeads) return headsOfLayer().filter(({ isOn }) => isOn);
  if (beside && isSameSize(beside, matrix))
    return [
      { matrix, ink: colourOf(COMPARED_COLOURS[0]) },
      { matrix: beside, ink: colourOf(COMPARED_COLOURS[1]) },
    ];
  return [{ matrix, ink: null }];
}

// The heads that differ from the chosen one in nothing but the head; none where each token is not one cell.
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

// Of several heads only where a query looks, or who looks at a key: more could not be told apart.
export const ofOwnSide = (source) => ({ ...source, [source.side === "query" ? "key" : "query"]: null });

export function showHeadKeys(source) {
  const heads = chosen.tensor.count > 1 ? headsOfLayer() : [];
  sides.showHeads(heads, {
    layer: placeText(matrix.place.slice(0, -1)),
    isOn: chosen.areAllHeads,
    source: source && ofOwnSide(source),
  });
}

// Both maps, under their names, where two are compared.
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
  comparedMap.show(beside, true);
}

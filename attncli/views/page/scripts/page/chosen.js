// What is chosen, the maps that follow from it, and the parts of the page that show them.

import { byId } from "../parts/elements.js";
import { MatrixMap } from "../parts/map.js";
import { PictureView } from "../parts/picture.js";
import { Overview } from "../parts/overview.js";
import { TokenSides } from "../parts/tokens.js";
import { readMaps } from "../values/colours.js";

export const start = JSON.parse(document.querySelector("script.start").textContent);
export const sources = Array.from(document.querySelectorAll("script.report"));
readMaps(start);

export const chosen = {
  source: null,
  report: null,
  tensor: null,
  number: 0,
  scale: start.scale,
  skip: start.skip,
  range: "each",
  sort: "",
  isAscending: false,
  sought: { from: [], to: [] },
  layer: "",
  compared: null,
  areAllHeads: false,
  offHeads: new Set(),
  pins: [],
  looked: null,
  picture: 0,
  query: null,
  lookedQuery: undefined,
  hovered: null,
  // What a page can do that asks a server: the maps of a head in a table, weights that it does not have.
  openReportOfHeads: null,
  canAskWeight: null,
  askWeight: null,
};

export let matrix = null; // what the map shows
export let beside = null; // what stands beside it

export function setMatrices(first, other) {
  [matrix, beside] = [first, other];
}

export const overview = new Overview(byId("thumbnails"));
export const map = new MatrixMap(byId("map"));
export const comparedMap = new MatrixMap(byId("compared-map"));
export const pictureView = new PictureView(byId("picture"));
export const sides = new TokenSides(byId("tokens"));

// State of the page: the current choice, the matrices it leads to, and the parts that draw them.

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
  // Called when the page is drawn; a page in a file writes what is chosen to its address.
  onChange: () => {},
  // Set by a served page only: open the maps of a head from a table, compute missing weights.
  openReportOfHeads: null,
  canAskWeight: null,
  askWeight: null,
};

export let matrix = null; // shown by the map
export let beside = null; // compared with it

export function setMatrices(first, other) {
  [matrix, beside] = [first, other];
}

export const overview = new Overview(byId("thumbnails"));
export const map = new MatrixMap(byId("map"));
export const comparedMap = new MatrixMap(byId("compared-map"));
export const pictureView = new PictureView(byId("picture"));
export const sides = new TokenSides(byId("tokens"));

// Heads as coloured cells of a table, with a row per layer; arrow keys move from cell to cell.

import { make, moved } from "./elements.js";
import { linkTo } from "./linked.js";
import { isLight, placeIn } from "../values/colours.js";

// The cell of a head in the colour of its number, which it also shows as text, black or white.
export function headCell({ layer, head, stack }, number, shading, text) {
  const place = Math.round(255 * placeIn(shading, number ?? 0));
  const colour = shading.map[Math.max(0, Math.min(255, place))];
  const ink = isLight(colour) ? "on-light" : "on-dark";
  const cell = make("td", { class: `head-cell ${ink}`, tabindex: -1 }, make("span", { text }));
  cell.style.backgroundColor = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
  return linkTo(cell, { layer, head, stack });
}

// Cells of `heads`, which are sorted by layer and have equally many heads in each: one of them is in the tab order.
export function moveWithArrows(cells, heads) {
  const perRow = heads.filter(({ layer }) => layer === heads[0].layer).length;
  if (cells.length) cells[0].tabIndex = 0;
  cells.forEach((cell, i) =>
    cell.addEventListener("keydown", (event) => {
      const to = moved(event, i, cells.length, perRow);
      if (to === null) return;
      event.preventDefault();
      cell.tabIndex = -1;
      cells[to].tabIndex = 0;
      cells[to].focus();
    }),
  );
}

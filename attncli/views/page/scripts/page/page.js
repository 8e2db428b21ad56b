// Entry point of the page: connects its parts and shows the first report.

import { beside, chosen, comparedMap, map, matrix, overview, pictureView, sides, sources, start } from "./chosen.js";
import { listen } from "./controls.js";
import { hoverHead, lookFrom, mostLookedAt, pickQuery } from "./looks.js";
import { look, lookAtCell, pin, readThumbnail, switchHeads, toggleAllHeads } from "./selection.js";
import { choose, compareWith, pickCell, run, showChosen, showReport } from "./show.js";
import { byId, fillSelect } from "../parts/elements.js";
import { playToken } from "../parts/sound.js";

Object.assign(overview, {
  onChoose: (number, isOpened) => run(choose(number).then(() => isOpened && showChosen())),
  onCompare: (number) => run(compareWith(number)),
  onRead: (cell) => (chosen.tensor.is_pictured ? hoverHead(cell) : readThumbnail(cell)),
});
for (const each of [map, comparedMap])
  Object.assign(each, { onLabel: pin, onLookAtLabel: (token) => matrix.isAttention && look(token) });
Object.assign(map, { onCell: (cell) => lookAtCell(cell), onPick: pickCell, onView: (view) => comparedMap.follow(view) });
Object.assign(pictureView, {
  onLook: lookFrom,
  onPick: (token, isBeside) => {
    playToken(pictureView.picture, isBeside ? mostLookedAt(token) : token);
    return pickQuery(token);
  },
});
Object.assign(comparedMap, { onCell: (cell) => lookAtCell(cell, beside), onPick: pickCell, onView: (view) => map.follow(view) });
Object.assign(sides, { onLook: look, onPin: pin, onAllHeads: toggleAllHeads, onSwitchHeads: switchHeads });

export async function open(showFirst = () => showReport(0)) {
  if (!window.DecompressionStream) throw new Error("it needs a browser from 2023 or later");
  fillSelect(
    byId("scale"),
    start.scales.map((scale) => [scale, scale]),
    start.scale ?? start.scales[0],
  );
  const headings = JSON.parse(document.querySelector("script.headings").textContent);
  fillSelect(
    byId("report"),
    headings.map((heading, i) => [i, `${i + 1}: ${heading}`]),
    0,
  );
  byId("report-choice").hidden = sources.length < 2;
  listen();
  if (sources.length) await showFirst();
  document.documentElement.dataset.drawn = Math.round(performance.now());
}

// One row per picture: the picture itself, then its maps with their names.

import { make, makeToken } from "./elements.js";
import { Picture } from "./picture.js";
import { Tensor } from "../values/arrays.js";
import { shadingOf, showLegend } from "../values/colours.js";
import { rangeEnds } from "../values/numbers.js";

const ROW_PIXELS = 240;

export async function showPictureMaps(container, maps, { scale, cover }) {
  container.hidden = !maps;
  container.replaceChildren();
  if (!maps) return;
  const header = make("tr", {}, make("td"), make("th", { scope: "col", text: "picture" }));
  for (const name of maps.names) header.append(make("th", { scope: "col", text: name }));
  const body = make("tbody");
  const table = make("table", { class: "picture-maps" }, make("thead", {}, header), body);
  table.style.setProperty("--columns", maps.names.length + 1);
  const scroller = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": maps.title }, table);
  const leftOut = maps.left_out ? [make("p", { class: "quiet", text: maps.left_out })] : [];
  const legend = make("p", { class: "legend" });
  container.append(make("h2", { text: maps.title }), ...leftOut, legend, scroller);
  maps.drawn ??= maps.rows.map((row) => ({ picture: new Picture(row), weights: new Tensor(row.weights) }));
  for (const { picture, weights } of maps.drawn) {
    await Promise.all([picture.load(), weights.load()]);
    body.append(pictureRow(picture, weights, maps.names, scale, cover, legend));
  }
}

function pictureRow(picture, weights, names, scale, cover, legend) {
  const row = make("tr", {}, make("th", { scope: "row", title: picture.about }, makeToken(picture.name)));
  const { columns } = weights;
  const none = new Float64Array(columns).fill(NaN);
  const add = (values, name) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${name}: ${picture.name}` });
    const shading = shadingOf(picture.endsOf(values), scale === "log" ? "log" : "linear", true);
    picture.paint(canvas, values, shading, ROW_PIXELS, cover);
    const range = shading.low === shading.low ? rangeEnds(shading.low, shading.high).join("–") : "";
    row.append(make("td", {}, canvas, make("div", { class: "quiet range", text: range })));
    return shading;
  };
  add(none, "picture");
  names.forEach((name, i) => {
    const shading = add(weights.values.subarray(i * columns, (i + 1) * columns), name);
    const texts = [shading.kind === "log" ? "smallest" : "0", "largest of each map"];
    showLegend(legend, shading, { unit: "weight", texts });
  });
  return row;
}

// The same text once per way to read, side by side: every token is shaded by its share of the largest score. Pointing
// at a token frames it in every text and reads its scores.

import { start } from "attn/page/chosen.js";
import { link } from "attn/page/linked.js";
import { byId, make } from "attn/parts/elements.js";
import { Picture } from "attn/parts/picture.js";
import { showShadeKey } from "attn/parts/shade_key.js";
import { writtenText } from "attn/parts/written.js";
import { Tensor } from "attn/values/arrays.js";
import { shadingOf } from "attn/values/colours.js";
import { fixed } from "attn/values/numbers.js";

const CARD_PIXELS = 480;

export async function show(container, report) {
  const isPicture = report.picture_maps !== null;
  const cards = isPicture ? await cardsOfPicture(report) : await cardsOfText(report);
  const legend = make("p", { class: "legend" });
  if (!isPicture) showShadeKey(legend, "score of a token, as a share of the largest score of its way", "1");
  const name = `the ${isPicture ? "picture" : "text"} in each way`;
  container.replaceChildren(legend, make("ol", { class: "text-cards", "aria-label": name }, ...cards));
}

// The relevance is a tensor of ways by tokens; a way that only scores sources has no numbers there.
async function cardsOfText({ tokens, statistics, matrices }) {
  const relevance = matrices.find(({ name }) => name === "way_relevance");
  await relevance.load();
  const { ways, sources } = statistics;
  const sourceNames = new Map(sources.map(({ source, name }) => [source, name]));
  const order = ways.map((row, way) => [row, way]).sort(([a], [b]) => (b.spearman ?? -1) - (a.spearman ?? -1));
  const texts = [];
  const look = (place) => {
    link(place === null ? {} : { token: String(place) });
    if (place === null) return byId("readout").replaceChildren();
    const scores = texts.filter(({ finite }) => finite.length).map(({ name, values }) => `${name} ${fixed(values[place], 3)}`);
    byId("readout").textContent = `token ${place} "${tokens[place]}": ${scores.join(", ")}`;
  };
  return order.map(([row, way]) => {
    const values = tokens.map((_, i) => relevance.values[way * relevance.columns + i]);
    // The prompt's first token, which often holds a sink, belongs to no source.
    const finite = values.slice(1).filter((value) => value !== null && Number.isFinite(value));
    const most = Math.max(...finite, 0);
    const shareAt = (i) => (i && finite.length && most > 0 ? Math.max(values[i], 0) / most : 0);
    const titleAt = (i) => (finite.length ? fixed(values[i], 3) : "");
    const name = nameOf(row);
    const { text, elements } = writtenText(tokens, { label: name, shareAt, titleAt, onLook: look });
    elements.forEach((element, i) => (element.dataset.token = i));
    texts.push({ name, values, finite });
    const note = finite.length ? "" : "; scores sources, not tokens";
    return wayCard(row, sourceNames, note, text);
  });
}

const nameOf = ({ way }) => way.replaceAll("_", " ");

// The source that a way ranks first and its rank correlation with the losses, above the text or the picture.
function wayCard(row, sourceNames, note, below) {
  const differs = row.first !== null && row.first_agrees === 0;
  const name = row.first === null ? "none" : sourceNames.get(row.first);
  const first = `first: ${name}${differs ? ", not the source with the largest loss" : ""}`;
  const correlation = row.spearman === null ? "" : `, rank correlation ${fixed(row.spearman, 2)}`;
  const head = make("h2", { text: nameOf(row) });
  const line = make("p", { class: "quiet", text: `${first}${correlation}${note}` });
  return make("li", { class: row.first_agrees === 0 ? "differs" : "" }, head, line, below);
}

// A picture once per way, side by side: values above 0, relative to the largest. The first map shows the losses.
async function cardsOfPicture({ statistics, picture_maps: maps }) {
  const { ways, sources } = statistics;
  const { scale, cover } = start;
  const [row] = maps.rows;
  maps.drawn ??= [{ picture: new Picture(row), weights: new Tensor(row.weights) }];
  const [{ picture, weights }] = maps.drawn;
  await Promise.all([picture.load(), weights.load()]);
  const sourceNames = new Map(sources.map(({ source, name }) => [source, name]));
  const waysByName = new Map(ways.map((each) => [each.way, each]));
  const lost = { way: "lost without it", first: sources[0].source, first_agrees: null, spearman: null };
  return maps.names.map((name, i) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${name}: ${picture.name}` });
    const values = weights.values.subarray(i * weights.columns, (i + 1) * weights.columns);
    const shading = shadingOf(picture.endsOf(values), scale === "log" ? "log" : "linear", true);
    picture.paint(canvas, values, shading, CARD_PIXELS, cover);
    return wayCard(waysByName.get(name) ?? lost, sourceNames, "", canvas);
  });
}

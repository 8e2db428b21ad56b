// The same text under each way to read, side by side: every token shaded by its share of the largest.

import { start } from "attn/page/chosen.js";
import { make, makeToken } from "attn/parts/elements.js";
import { Picture } from "attn/parts/picture.js";
import { Tensor } from "attn/values/arrays.js";
import { shadingOf } from "attn/values/colours.js";
import { fixed } from "attn/values/numbers.js";
import { shade } from "attn/values/shades.js";

const CARD_PIXELS = 480;

// Between tokens of an encoder whose vocabulary writes no blanks (BERT), but before the parts of a word.
function spaced(elements, tokens, explained) {
  if (!explained || explained[0].kind === "answer" || tokens.some((token) => /^[\sĠ▁]/.test(token))) return elements;
  return elements.flatMap((element, i) => (i && !tokens[i].startsWith("##") ? [" ", element] : [element]));
}

export async function show(container, report) {
  const cards = report.picture_maps ? await cardsOfPicture(report) : await cardsOfText(report);
  const read = report.picture_maps ? "picture" : "text";
  container.replaceChildren(make("ol", { class: "ways", "aria-label": `the ${read} in each way` }, ...cards));
}

// The relevance is a tensor of ways by tokens; a way that knows sources alone has no numbers there.
async function cardsOfText({ tokens, statistics, matrices }) {
  const relevance = matrices.find(({ name }) => name === "way_relevance");
  await relevance.load();
  const { ways, sources, explained } = statistics;
  const nameOf = new Map(sources.map(({ source, name }) => [source, name]));
  const order = ways.map((row, way) => [row, way]).sort(([a], [b]) => (b.spearman ?? -1) - (a.spearman ?? -1));
  return order.map(([row, way]) => {
    const values = tokens.map((_, i) => relevance.values[way * relevance.columns + i]);
    // The prompt's first token, where sinks are, counts for no source.
    const known = values.slice(1).filter((value) => value !== null && Number.isFinite(value));
    const most = Math.max(...known, 0);
    const text = tokens.map((token, i) => {
      const element = make("span", { class: "token" }, makeToken(token));
      const share = i && known.length && most > 0 ? Math.max(values[i], 0) / most : 0;
      shade(element, share);
      if (known.length) element.title = fixed(values[i], 3);
      return element;
    });
    const alone = known.length ? "" : "; it knows sources alone";
    return wayCard(row, nameOf, alone, make("div", { class: "written" }, ...spaced(text, tokens, explained)));
  });
}

// Which source a way puts first, and how near its order is to what is lost, above the text or the picture.
function wayCard(row, nameOf, alone, below) {
  const differs = row.first !== null && row.first_agrees === 0;
  const name = row.first === null ? "none" : nameOf.get(row.first);
  const first = `first: ${name}${differs ? ", not the one without which most is lost" : ""}`;
  const correlation = row.spearman === null ? "" : `, rank correlation ${fixed(row.spearman, 2)}`;
  const head = make("h3", { text: row.way.replaceAll("_", " ") });
  const said = make("p", { class: "quiet", text: `${first}${correlation}${alone}` });
  return make("li", { class: row.first_agrees === 0 ? "differs" : "" }, head, said, below);
}

// A picture in each way, side by side: what is above 0, each by its largest. The first map is what is lost.
async function cardsOfPicture({ statistics, picture_maps: maps }) {
  const { ways, sources } = statistics;
  const { scale, cover } = start;
  const [row] = maps.rows;
  maps.drawn ??= [{ picture: new Picture(row), weights: new Tensor(row.weights) }];
  const [{ picture, weights }] = maps.drawn;
  await Promise.all([picture.load(), weights.load()]);
  const nameOf = new Map(sources.map(({ source, name }) => [source, name]));
  const wayOf = new Map(ways.map((each) => [each.way, each]));
  const lost = { way: "lost without it", first: sources[0].source, first_agrees: null, spearman: null };
  return maps.names.map((name, i) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${name}: ${picture.name}` });
    const values = weights.values.subarray(i * weights.columns, (i + 1) * weights.columns);
    const shading = shadingOf(picture.endsOf(values), scale === "log" ? "log" : "linear", true);
    picture.paint(canvas, values, shading, CARD_PIXELS, cover);
    return wayCard(wayOf.get(name) ?? lost, nameOf, "", canvas);
  });
}

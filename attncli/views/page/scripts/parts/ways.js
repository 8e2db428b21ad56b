// The same text under each way to read, side by side: every token shaded by its share of the largest.

import { STRENGTH } from "./answer.js";
import { make, makeToken } from "./elements.js";
import { Picture } from "./picture.js";
import { Tensor } from "../values/arrays.js";
import { shadingOf } from "../values/colours.js";
import { fixed } from "../values/numbers.js";

const CARD_PIXELS = 480;

// Between tokens of an encoder whose vocabulary writes no blanks (BERT), but before the parts of a word.
function spaced(elements, tokens, explained) {
  if (!explained || explained[0].kind === "answer" || tokens.some((token) => /^[\sĠ▁]/.test(token))) return elements;
  return elements.flatMap((element, i) => (i && !tokens[i].startsWith("##") ? [" ", element] : [element]));
}

// `relevance` is a tensor of ways by tokens; a way that knows sources alone has no numbers there.
export function showWays(container, { tokens, statistics }, relevance) {
  const { ways, sources, explained } = statistics;
  const nameOf = new Map(sources.map(({ source, name }) => [source, name]));
  const order = ways.map((row, way) => [row, way]).sort(([a], [b]) => (b.spearman ?? -1) - (a.spearman ?? -1));
  const cards = order.map(([row, way]) => {
    const values = tokens.map((_, i) => relevance.values[way * relevance.columns + i]);
    // The prompt's first token, where sinks are, counts for no source.
    const known = values.slice(1).filter((value) => value !== null && Number.isFinite(value));
    const most = Math.max(...known, 0);
    const text = tokens.map((token, i) => {
      const element = make("span", { class: "token" }, makeToken(token));
      const share = i && known.length && most > 0 ? Math.max(values[i], 0) / most : 0;
      element.style.setProperty("--share", `${Math.round(STRENGTH * share)}%`);
      if (known.length) element.title = fixed(values[i], 3);
      return element;
    });
    const alone = known.length ? "" : "; it knows sources alone";
    return wayCard(row, nameOf, alone, make("div", { class: "written" }, ...spaced(text, tokens, explained)));
  });
  container.replaceChildren(make("ol", { class: "ways", "aria-label": "the text in each way" }, ...cards));
  container.hidden = false;
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
export async function showWaysOnPicture(container, { statistics, picture_maps: maps }, { scale, cover }) {
  const { ways, sources } = statistics;
  const [row] = maps.rows;
  maps.drawn ??= [{ picture: new Picture(row), weights: new Tensor(row.weights) }];
  const [{ picture, weights }] = maps.drawn;
  await Promise.all([picture.load(), weights.load()]);
  const nameOf = new Map(sources.map(({ source, name }) => [source, name]));
  const wayOf = new Map(ways.map((each) => [each.way, each]));
  const lost = { way: "lost without it", first: sources[0].source, first_agrees: null, spearman: null };
  const cards = maps.names.map((name, i) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${name}: ${picture.name}` });
    const values = weights.values.subarray(i * weights.columns, (i + 1) * weights.columns);
    const shading = shadingOf(picture.endsOf(values), scale === "log" ? "log" : "linear", true);
    picture.paint(canvas, values, shading, CARD_PIXELS, cover);
    return wayCard(wayOf.get(name) ?? lost, nameOf, "", canvas);
  });
  container.replaceChildren(make("ol", { class: "ways", "aria-label": "the picture in each way" }, ...cards));
  container.hidden = false;
}

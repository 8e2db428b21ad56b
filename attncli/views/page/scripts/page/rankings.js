// The statistics by which maps may be sorted.

import { chosen } from "./chosen.js";
import { byId, fillSelect, make } from "../parts/elements.js";
import { meaningsOf, PLACES } from "../parts/tables.js";
import { shortPlace, tokensAlong } from "../values/labels.js";
import { isNumber } from "../values/numbers.js";

// The survey rows of the heads on the maps: encoder, decoder or cross-attention heads.
export function surveyed({ statistics, settings, context_tokens: context }) {
  const rows = Array.isArray(statistics.heads) ? statistics.heads : [];
  const alone = settings.maps === "encoder" ? ["encoder"] : ["self", "decoder"];
  const stacks = settings.maps === "cross" || context.length ? ["cross"] : alone;
  return rows.filter(({ stack = "self" }) => stacks.includes(stack));
}

// Rankings of the maps: a name, a label and a value for each. From the survey if there is one, otherwise means of
// the row statistics; and the weight between the tokens typed on the page.
export function rankings() {
  const sought = soughtRanking();
  return sought ? [...computedRankings(), sought] : computedRankings();
}

function computedRankings() {
  const { report, tensor } = chosen;
  const heads = surveyed(report);
  if (heads.length && tensor.axes.includes("layer")) {
    const isStatistic = (name) => !PLACES.includes(name) && heads.some((row) => isNumber(row[name]));
    const meanings = meaningsOf(report, "heads");
    const rows = new Map(heads.map((row) => [`${row.layer}:${row.head}`, row]));
    return Object.keys(heads[0])
      .filter(isStatistic)
      .map((name) => ({
        name,
        label: meanings(name).label,
        of: (place) => rows.get(shortPlace(place))?.[name],
      }));
  }
  const means = report.rows.filter(({ axes }) => String(axes.slice(0, -1)) === String(tensor.leading));
  return means.map((rows) => {
    const name = `mean ${meaningsOf(report)(rows.name).label}`;
    return { name, label: name, of: (place) => mean(rows.at(place)) };
  });
}

function mean(numbers) {
  const known = Array.from(numbers).filter(isNumber);
  return known.reduce((sum, number) => sum + number, 0) / known.length;
}

const weightLabel = ({ from, to }) =>
  `weight${from.length ? ` from ${from.join(", ")}` : ""} to ${to.join(", ")}`;

// Same as --from and --to: weights summed over the keys, averaged over the queries. Queries that see no key are
// excluded.
export function soughtRanking() {
  const { tensor, sought } = chosen;
  if (tensor.axes.at(-1) === "key_block") return null; // a block has no weights of single tokens
  const [queries, keys] = ["from", "to"].map((side, i) => placesOf(sought[side], tensor.axes.at(i - 2)));
  if (!keys.length || (sought.from.length && !queries.length)) return null;
  const rows = sought.from.length ? queries : Array.from({ length: tensor.rows }, (_, i) => i);
  const of = (place, number) => {
    const values = tensor.matrix(number);
    const all = rows.map((i) => values.subarray(i * tensor.columns, (i + 1) * tensor.columns));
    const seeing = all.filter((row) => row.some(isNumber));
    const sums = seeing.map((row) => keys.reduce((sum, j) => sum + (row[j] || 0), 0));
    return mean(sums);
  };
  const named = (places, i) => {
    const tokens = tokensAlong(chosen.report, tensor.axes.at(i));
    const firsts = places.filter((place) => !places.includes(place - 1));
    return firsts.map((first) => {
      const end = tokens.findIndex((_, place) => place > first && !places.includes(place));
      const last = (end < 0 ? tokens.length : end) - 1;
      return `${first}${last > first ? `-${last}` : ""} ${tokens.slice(first, last + 1).join("")}`;
    });
  };
  return { name: "sought", label: weightLabel({ from: named(queries, -2), to: named(keys, -1) }), of };
}

// Positions of the named tokens. A name is a position, a token's text, or a word made of several tokens.
export function placesOf(names, axis) {
  const tokens = tokensAlong(chosen.report, axis);
  return [...new Set(names.flatMap((name) => placesOfName(name, tokens)))].sort((one, other) => one - other);
}

// Same rules as attncli/core/token_names.py: 5, -1 and last are positions; anything else is text, optionally in
// quotes; to#2 is its second occurrence.
function placesOfName(name, tokens) {
  if (name === "last" || /^-?[0-9]{1,9}$/.test(name)) {
    const place = name === "last" ? -1 : Number(name);
    const fromStart = place < 0 ? place + tokens.length : place;
    return fromStart in tokens ? [fromStart] : [];
  }
  const found = occurrences(name, tokens);
  const [, text, number] = name.match(/^(.+)#([0-9]{1,9})$/) ?? [];
  if (found.length || !text) return found.flat();
  return occurrences(text, tokens)[number - 1] ?? [];
}

function occurrences(text, tokens) {
  const found = placesOfText(text, tokens);
  const [, inQuotes] = text.match(/^"(.+)"$/) ?? [];
  return found.length || !inQuotes ? found : placesOfText(inQuotes, tokens);
}

// All tokens with this text; if there are none, all runs of consecutive tokens that spell it.
function placesOfText(text, tokens) {
  const bare = text.replace(/^·/, "");
  const places = [...tokens.keys()];
  const alike = places.filter((i) => tokens[i] === text || tokens[i].replace(/^(##|·)/, "") === bare);
  if (alike.length) return alike.map((i) => [i]);
  const found = [];
  for (const pieces of places.map((i) => piecesFrom(i, text, tokens)).filter(({ length }) => length)) {
    const overlaps = found.at(-1)?.includes(pieces[0]);
    found.push(overlaps ? [...new Set([...found.pop(), ...pieces])] : pieces);
  }
  return found;
}

// The tokens from `start` that spell the word, with or without its leading space; empty if they do not.
function piecesFrom(start, name, tokens) {
  let text = "";
  for (let end = start; end < tokens.length && text.length <= name.length; end++) {
    text += tokens[end].replace(/^##/, "");
    if (text === name || text === `·${name}`)
      return Array.from({ length: end + 1 - start }, (_, i) => start + i);
  }
  return [];
}

export function fillSortAndLayer() {
  const { tensor } = chosen;
  fillSorts();
  const numLayers = tensor.axes[0] === "layer" ? tensor.shape[0] : 0;
  fillSelect(
    byId("layer"),
    [["", "all"], ...Array.from({ length: numLayers }, (_, i) => [i, i])],
    chosen.layer,
  );
  byId("layer-choice").hidden = numLayers < 2;
  const isOf = (...axes) => String(tensor.axes.slice(-2)) === String(axes);
  // Blocks have no weights of single tokens, but a server can compute them.
  const hasTokens = isOf("query", "key") || (chosen.canAskWeight?.() && isOf("query_block", "key_block"));
  byId("sought").hidden = !hasTokens || tensor.rows < 2 || !tokensAlong(chosen.report, "key").length;
  byId("sought-what").textContent = tensor.axes.includes("head") ? "Heads that look" : "Weight";
  const tokens = [...chosen.report.tokens, ...chosen.report.context_tokens];
  byId("known-tokens").replaceChildren(...[...new Set(tokens)].map((value) => make("option", { value })));
}

export function fillSorts() {
  const sorts = rankings().map(({ name, label }) => [name, label]);
  fillSelect(byId("sort"), [["", chosen.tensor.leading.join(", ")], ...sorts], chosen.sort);
  byId("sort-choice").hidden = !sorts.length;
  byId("order").hidden = !chosen.sort;
  byId("order").textContent = chosen.isAscending ? "Smallest first" : "Largest first";
}

// The keys that a limited head forgets: its text, with the forgotten keys with the most weight in the accent
// colour, and the query that gave them this weight.

import { make, makeToken } from "attn/parts/elements.js";
import { fixed, scalar } from "attn/values/numbers.js";
import { shade } from "attn/values/shades.js";

// A longer text is cut to this many tokens on either side of each highlighted token.
const LONG_TEXT = 1500;
const AROUND = 12;
const LEAST_LISTED = 0.005;
const FORGOTTEN_HINT = "Select a cell of the grid or a head of the table below to see the keys that it forgets.";

// Returns the function that shows a head, given its layer and number.
export function show(container, { tokens, statistics }) {
  const { forgotten, heads } = statistics;
  container.ariaLive = "polite";
  const headRows = (rows, layer, head) => rows.filter((row) => row.layer === layer && row.head === head);
  const showHead = ({ layer, head }) => {
    const keys = headRows(forgotten, layer, head);
    const [lost] = headRows(heads, layer, head);
    if (!lost) return;
    const numbers = ["needle", "worst", "kl", "loss"]
      .filter((name) => name in lost)
      .map((name) => `${name} ${scalar(lost[name])}`);
    container.replaceChildren(
      make("h2", { text: `keys that head ${layer}:${head} forgets` }),
      make("p", { class: "quiet", text: `${numbers.join(", ")}; weight kept ${fixed(lost.kept_weight, 2)}` }),
      ...(keys.length
        ? [forgottenKeysLine(keys, tokens), textWithForgotten(keys, tokens)]
        : [make("p", { text: "This head forgets no key here." })]),
      make("p", { class: "quiet", text: FORGOTTEN_HINT }),
    );
  };
  showHead(heads[0]);
  return showHead;
}

// Tokens are quoted, so that a number is not read as a position.
function forgottenKeysLine(keys, tokens) {
  const describe = (i) => `token ${i} "${tokens[i]}"`;
  const listed = keys.filter(({ key_weight }, i) => !i || key_weight >= LEAST_LISTED).map(({ key, key_weight }) => `${describe(key)} (${fixed(key_weight, 2)})`);
  return make("p", { text: `From ${describe(keys[0].query)}, the head gives the most weight to ${listed.join(", ")}` });
}

function textWithForgotten(keys, tokens) {
  const { query } = keys[0];
  const weights = new Map(keys.map(({ key, key_weight }) => [key, key_weight]));
  const highlighted = [query, ...weights.keys()];
  const isNear = (i) => tokens.length <= LONG_TEXT || highlighted.some((position) => Math.abs(i - position) <= AROUND);
  const text = make("div", { class: "written" });
  let wasShown = true;
  tokens.forEach((token, i) => {
    if (!isNear(i)) {
      if (wasShown) text.append(" … ");
      wasShown = false;
      return;
    }
    wasShown = true;
    const element = make("span", { class: i === query ? "token query" : "token" }, makeToken(token));
    element.dataset.token = i;
    if (weights.has(i)) {
      shade(element, weights.get(i));
      element.classList.add("forgotten");
      element.title = fixed(weights.get(i), 4);
    }
    text.append(element, "\u200b");
  });
  return text;
}

// What a head that keeps few keys forgets: its text, with the keys that it looked at most among those in the
// accent colour, and the query from which it did.

import { make, makeToken } from "attn/parts/elements.js";
import { fixed, scalar } from "attn/values/numbers.js";
import { shade } from "attn/values/shades.js";

// Of a longer text so many tokens on both sides of one that is named.
const LONG_TEXT = 1500;
const AROUND = 12;
const LEAST_SAID = 0.005;
const FORGOTTEN_HINT = "A cell of the grid, or a head of the table below, shows what that head forgets.";

// Gives the function that shows a head, by its place.
export function show(container, { tokens, statistics }) {
  const { forgotten, heads } = statistics;
  container.ariaLive = "polite";
  const ofHead = (rows, layer, head) => rows.filter((row) => row.layer === layer && row.head === head);
  const showHead = ({ layer, head }) => {
    const keys = ofHead(forgotten, layer, head);
    const [lost] = ofHead(heads, layer, head);
    if (!lost) return;
    const numbers = ["needle", "worst", "kl", "loss"]
      .filter((name) => name in lost)
      .map((name) => `${name} ${scalar(lost[name])}`);
    container.replaceChildren(
      make("h2", { text: `what head ${layer}:${head} forgets` }),
      make("p", { class: "quiet", text: `${numbers.join(", ")}; weight kept ${fixed(lost.kept_weight, 2)}` }),
      ...(keys.length
        ? [saidOfForgotten(keys, tokens), textWithForgotten(keys, tokens)]
        : [make("p", { text: "Nothing here." })]),
      make("p", { class: "quiet", text: FORGOTTEN_HINT }),
    );
  };
  showHead(heads[0]);
  return showHead;
}

// A token that is a number stands in quotes, so that it is no position.
function saidOfForgotten(keys, tokens) {
  const named = (i) => `token ${i} "${tokens[i]}"`;
  const said = keys.filter(({ key_weight }, i) => !i || key_weight >= LEAST_SAID).map(({ key, key_weight }) => `${named(key)} (${fixed(key_weight, 2)})`);
  return make("p", { text: `From ${named(keys[0].query)}, most weight on ${said.join(", ")}` });
}

function textWithForgotten(keys, tokens) {
  const { query } = keys[0];
  const weights = new Map(keys.map(({ key, key_weight }) => [key, key_weight]));
  const named = [query, ...weights.keys()];
  const isNear = (i) => tokens.length <= LONG_TEXT || named.some((other) => Math.abs(i - other) <= AROUND);
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
    if (weights.has(i)) {
      shade(element, weights.get(i));
      element.classList.add("forgotten");
      element.title = fixed(weights.get(i), 4);
    }
    text.append(element, "\u200b");
  });
  return text;
}

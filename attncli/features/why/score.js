// The score of a head: the row of keys, and the contribution of each part to the score of the selected key.

import { make, makeToken, moved } from "attn/parts/elements.js";
import { showShadeKey } from "attn/parts/shade_key.js";
import { axisLabels, labelText } from "attn/values/labels.js";
import { fixed } from "attn/values/numbers.js";
import { shade } from "attn/values/shades.js";

const WROTE_ON = { key: "wrote on the key", query: "wrote on the query" };
const MOST_SCORE_PARTS = 12;

export function show(container, report, score) {
  const labels = axisLabels(report, "key", score.weights.length);
  const buttons = score.weights.map((weight, key) => {
    const number = weight === null ? "" : ` ${shortWeight(weight)}`;
    const button = make("button", { type: "button", tabindex: -1 }, makeToken(labelText(labels[key])), number);
    shade(button, weight ?? 0);
    button.disabled = weight === null;
    button.addEventListener("click", () => choose(key));
    button.addEventListener("keydown", (event) => {
      const seen = buttons.filter(({ disabled }) => !disabled);
      const to = moved(event, seen.indexOf(button), seen.length, seen.length);
      if (to === null) return;
      event.preventDefault();
      seen[to].focus();
      seen[to].click();
    });
    return button;
  });
  const tables = make("div", { class: "score-parts", "aria-live": "polite" });
  const choose = (key) => {
    buttons.forEach((button, place) => {
      button.ariaPressed = place === key;
      button.tabIndex = place === key ? 0 : -1;
    });
    const sides = Object.keys(WROTE_ON);
    const most = Math.max(...sides.flatMap((side) => score[`${side}_adds`].map((adds) => Math.abs(adds[key]))));
    const tokens = { key: labels[key], query: labels[score.query] };
    tables.replaceChildren(
      ...sides.map((side) => {
        const rows = score.parts.map((part, i) => ({
          part,
          adds: score[`${side}_adds`][i][key],
          without: score[`${side}_without`][i][key],
        }));
        rows.sort((one, other) => Math.abs(other.adds) - Math.abs(one.adds));
        const where = side === "key" ? " at every key" : "";
        const now = `weight without it${where} (now ${shortWeight(score.weights[key])})`;
        return partsTable(`${WROTE_ON[side]}: ${labelText(tokens[side])}`, rows.slice(0, MOST_SCORE_PARTS), most, now);
      }),
    );
  };
  const row = make("div", { class: "score-keys", role: "group", "aria-label": "Keys with their weights" }, ...buttons);
  const title = make("h2", { text: `Head ${report.settings.head} from ${labelText(labels[score.query])}` });
  const legend = make("span", { class: "legend" });
  showShadeKey(legend, "weight of each key", "1");
  const hint = make("span", { class: "quiet", text: "Select a key to split its score." });
  container.replaceChildren(title, make("div", { class: "controls" }, legend, hint), row, tables);
  choose(score.key);
}

// What each part adds to the score, as a bar to the right of the middle or, if it is negative, to the left.
function partsTable(title, rows, most, now) {
  const columns = [["part", "text"], ["adds to the score", ""], ["", ""], [now, ""]];
  const head = columns.map(([text, kind]) => (text ? make("th", { scope: "col", class: kind, text }) : make("td")));
  const body = rows.map(({ part, adds, without }) => {
    const bar = make("span", { class: `bar ${adds < 0 ? "less" : "more"}` });
    const share = (50 * Math.abs(adds)) / (most || 1);
    bar.style.width = `${share}%`;
    bar.style.left = `${adds < 0 ? 50 - share : 50}%`;
    return make(
      "tr",
      {},
      make("td", { class: "text" }, makeToken(part)),
      make("td", { text: fixed(adds, 2) }),
      make("td", { class: "score-bar", "aria-hidden": "true" }, bar),
      make("td", { text: shortWeight(without) }),
    );
  });
  return make("table", {}, make("caption", { text: title }), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

// A small weight has two significant digits.
function shortWeight(weight) {
  if (!(weight > 0 && weight < 0.1)) return fixed(weight, 2);
  return weight < 1e-4 ? weight.toExponential(1) : String(Number(weight.toPrecision(2)));
}

// The score of a head: the row of keys, and the contribution of each part to the score of the clicked key.

import { make, makeToken } from "attn/parts/elements.js";
import { tableOf } from "attn/parts/tables.js";
import { axisLabels, labelText } from "attn/values/labels.js";
import { fixed } from "attn/values/numbers.js";

const WROTE_ON = { key: "wrote on the key", query: "wrote on the query" };
const MOST_SCORE_PARTS = 12;

export function show(container, report, score) {
  const labels = axisLabels(report, "key", score.weights.length);
  const buttons = score.weights.map((weight, key) => {
    const number = weight === null ? "" : ` ${shortWeight(weight)}`;
    const button = make("button", { type: "button" }, makeToken(labelText(labels[key])), number);
    button.style.setProperty("--weight", weight ?? 0);
    button.dataset.key = labels[key].position;
    button.disabled = weight === null;
    button.addEventListener("click", () => choose(key));
    return button;
  });
  const tables = make("div", { class: "score-parts", "aria-live": "polite" });
  const choose = (key) => {
    buttons.forEach((button, place) => (button.ariaPressed = place === key));
    tables.replaceChildren(
      ...Object.entries(WROTE_ON).map(([side, title]) => {
        const rows = score.parts.map((part, i) => ({
          part,
          adds: score[`${side}_adds`][i][key],
          [`${shortWeight(score.weights[key])} →`]: shortWeight(score[`${side}_without`][i][key]),
        }));
        rows.sort((one, other) => Math.abs(other.adds) - Math.abs(one.adds));
        return tableOf(title, rows.slice(0, MOST_SCORE_PARTS), null);
      }),
    );
  };
  const row = make("div", { class: "score-keys", role: "group", "aria-label": "Keys with their weights" }, ...buttons);
  const title = make("h2", { text: `head ${report.settings.head} from ${labelText(labels[score.query])}` });
  container.replaceChildren(title, make("p", { class: "quiet", text: "Click a key to split its score." }), row, tables);
  choose(score.key);
}

// A small weight has two significant digits.
function shortWeight(weight) {
  if (!(weight > 0 && weight < 0.1)) return fixed(weight, 2);
  return weight < 1e-4 ? weight.toExponential(1) : String(Number(weight.toPrecision(2)));
}

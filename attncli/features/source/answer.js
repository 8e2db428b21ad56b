// An answer above its sources. Pointing at a token shades the sources by its weight on each; pointing at a source
// shades the tokens; otherwise, both are shaded by the measurement without each source.

import { make, makeToken, moved } from "attn/parts/elements.js";
import { showShadeKey } from "attn/parts/shade_key.js";
import { fixed } from "attn/values/numbers.js";
import { shade } from "attn/values/shades.js";

const MOST_TEXT = 2000;

// The weights are a tensor (token, source) with the sources in the order of the prompt.
export async function show(container, { statistics, matrices }) {
  const { answer, sources } = statistics;
  const weights = matrices.find(({ name }) => name === "source_weights");
  await weights.load();
  const tokens = answer.map(({ text, token, position }, i) => {
    const element = make("button", { class: "token", type: "button", tabindex: i ? "-1" : "0" });
    if (Number.isInteger(position)) element.dataset.token = position;
    if (!text?.trim()) element.setAttribute("aria-label", token); // a blank
    element.append(makeToken(text || token));
    return element;
  });
  const bars = new Map();
  const items = sources.map((row) => {
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    const number = make("span", { class: "number" });
    const name = make("span", { class: "name" }, makeToken(row.title ? `${row.name} ${row.title}` : row.name));
    const text = make("bdi", { class: "said", text: row.text.slice(0, MOST_TEXT) });
    const item = make("li", { tabindex: "0" }, make("div", { class: "head" }, name, number), bar, text);
    bars.set(row.source, { item, bar, number });
    return item;
  });
  const at = (token, source) => weights.values[token * weights.columns + source - 1];
  const mean = (source) => answer.reduce((sum, _, i) => sum + at(i, source), 0) / answer.length;
  const largest = Math.max(...weights.values);

  function fill(valueOf, most) {
    for (const [source, { item, bar, number }] of bars) {
      const value = valueOf(source);
      const share = Math.max(value, 0) / (most || 1);
      bar.style.width = `${100 * share}%`;
      number.textContent = value === null ? "" : fixed(value, 2);
      shade(item, share);
    }
  }

  // The measurement by removal or by the fit, which sorts the sources.
  const by = sources[0].ranked_by;
  const measured = new Map(sources.map((row) => [row.source, row.ranked_by === by ? row[by] : null]));
  const mostOfSources = Math.max(...measured.values(), 0); // null counts as 0
  const mostOfTokens = Math.max(...answer.map((row) => row.measured), 0);

  const legend = make("span", { class: "legend" });

  function rest() {
    showShadeKey(legend, RESTING[by] ?? "", fixed(mostOfTokens, 2));
    for (const item of items) item.classList.remove("first");
    fill((source) => measured.get(source), mostOfSources);
    tokens.forEach((token, i) =>
      shade(token, answer[i].measured_source === null ? 0 : answer[i].measured / (mostOfTokens || 1)),
    );
  }

  const lookAt = (i) => {
    showShadeKey(legend, `weight of the token ${i} on each source`, fixed(largest, 2));
    for (const [source, { item }] of bars) item.classList.toggle("first", source === answer[i].measured_source);
    fill((source) => at(i, source), largest);
    tokens.forEach((token, other) => shade(token, other === i ? 1 : 0));
  };
  const lookAtSource = (source) => {
    showShadeKey(legend, "weight of each token on this source", fixed(largest, 2));
    fill((other) => (other === source ? mean(other) : 0), largest);
    tokens.forEach((token, i) => shade(token, at(i, source) / (largest || 1)));
  };
  tokens.forEach((token, i) => {
    token.addEventListener("pointerenter", () => lookAt(i));
    token.addEventListener("focus", () => lookAt(i));
    token.addEventListener("keydown", (event) => {
      const to = moved(event, i, tokens.length, tokens.length);
      if (to === null) return;
      event.preventDefault();
      tokens[to].focus();
    });
  });
  sources.forEach(({ source }, i) => {
    items[i].addEventListener("pointerenter", () => lookAtSource(source));
    items[i].addEventListener("focus", () => lookAtSource(source));
  });
  const written = make("div", { class: "written", role: "group", "aria-label": "the answer" }, ...tokens);
  const list = make("ol", { class: "sources" }, ...items);
  for (const part of [written, list]) {
    part.addEventListener("pointerleave", rest);
    part.addEventListener("focusout", rest);
  }
  container.replaceChildren(
    make("h2", { text: "Answer" }),
    written,
    make("div", { class: "controls" }, legend, make("span", { class: "quiet", text: HINT })),
    make("h2", { text: `Sources, ${SORTED[by] ?? "in order"}` }),
    list,
  );
  rest();
}

const RESTING = {
  lost: "loss of each token without its source, in nats",
  effect: "effect of its source on each token",
};
const SORTED = { lost: "by the loss of the answer without each, in nats", effect: "by their effect on the answer" };
const HINT = "Point at a token, or focus it, to see its weight on each source; point at a source to see its tokens.";

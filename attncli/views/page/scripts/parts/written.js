// A text whose tokens are shaded by a measure; the pointer and the arrow keys read the tokens. Words of a vocabulary
// without blanks (BERT) are apart.

import { make, makeToken, moved } from "./elements.js";
import { shade } from "../values/shades.js";

// `label` names the text, `shareAt` and `titleAt` give the shade and the tooltip of a token. `onLook` is told the
// position of the token that is looked at, or null. Returns the element and those of the tokens.
export function writtenText(tokens, { label, shareAt, titleAt, onLook }) {
  const elements = tokens.map((token, i) => {
    const element = make("span", { class: "token" }, makeToken(token));
    shade(element, shareAt(i));
    element.title = titleAt(i);
    return element;
  });
  const text = make("div", { class: "written", tabindex: 0, role: "group", "aria-label": `${label}; arrow keys read the tokens` }, ...spaced(elements, tokens));
  let place = -1;
  const look = (to) => {
    elements[place]?.classList.remove("read");
    elements[to]?.classList.add("read");
    place = to;
    onLook(to < 0 ? null : to);
  };
  // A finger leaves before its click.
  for (const event of ["pointerover", "click"]) text.addEventListener(event, ({ target }) => look(elements.indexOf(target.closest(".token"))));
  for (const event of ["pointerleave", "blur"]) text.addEventListener(event, () => look(-1));
  text.addEventListener("keydown", (event) => {
    const to = moved(event, place, tokens.length, 1);
    if (to === null) return;
    event.preventDefault();
    look(Math.max(0, to));
    elements[place].scrollIntoView({ block: "nearest" });
  });
  return { text, elements };
}

const BLANK = /[\s·Ġ▁]/;

function spaced(elements, tokens) {
  if (tokens.some((token) => BLANK.test(token)) || !tokens.some((token) => token.length > 1 && !/^[<[]/.test(token))) return elements;
  return elements.flatMap((element, i) => (i && !tokens[i].startsWith("##") ? [" ", element] : [element]));
}

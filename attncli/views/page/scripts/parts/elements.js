// Create elements. All text becomes text nodes: nothing is parsed as markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A token or other user text, isolated from the text direction around it.
export const makeToken = (text) => make("bdi", { class: "word", text });

export function fillSelect(select, choices, chosen) {
  select.replaceChildren(...choices.map(([value, text]) => make("option", { value, text })));
  select.value = chosen;
}

export const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// The index an arrow key, Home or End moves to in a grid of `columns` columns; null for other keys.
export function moved(event, index, count, perRow) {
  if (event.ctrlKey || event.altKey || event.metaKey) return null;
  if (event.key === "Home") return 0;
  if (event.key === "End") return count - 1;
  const arrow = ARROWS[event.key];
  if (!arrow) return null;
  const to = index + arrow[0] + arrow[1] * perRow;
  return to < 0 || to >= count ? index : to;
}

// Number of elements in the first row of a wrapped list.
export function columnsOf(elements) {
  const top = elements[0].offsetTop;
  const wrapped = elements.findIndex((element) => element.offsetTop > top + 2);
  return wrapped < 0 ? elements.length : wrapped;
}

// The element above or below another one; rows may have different lengths.
export function inNextRow(elements, index, isDown) {
  const { offsetTop, offsetLeft } = elements[index];
  const below = (other) => (isDown ? 1 : -1) * (other.offsetTop - offsetTop);
  const others = elements.filter((other) => below(other) > 2);
  if (!others.length) return index;
  const top = (isDown ? others[0] : others.at(-1)).offsetTop;
  const row = others.filter((other) => Math.abs(other.offsetTop - top) <= 2);
  const distance = (element) => Math.abs(element.offsetLeft - offsetLeft);
  return elements.indexOf(row.reduce((best, other) => (distance(other) < distance(best) ? other : best)));
}

// Height from an element to the end of the first screen, if that is at least `least`; otherwise the `usual` height.
export function highestOn(element, least, usual) {
  const room = innerHeight - (element.getBoundingClientRect().top + scrollY) - 12;
  return room < least ? usual : Math.min(usual, room);
}

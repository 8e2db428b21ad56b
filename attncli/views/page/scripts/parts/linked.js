// What elements are about: heads (`data-head="5:11"`) and tokens of the text (`data-query`, `data-key`, `data-token`:
// positions). Pointing at such an element, or focusing it, highlights everything that is about the same.

const ATTRIBUTES = ["head", "query", "key", "token"];
export const ABOUT = ATTRIBUTES.map((name) => `[data-${name}]`).join();

// A position: a number, or the start of a label such as `4 on`.
const positionIn = (value, label) => (Number.isInteger(value) ? String(value) : label.exec(value)?.[0]);
const LABEL = /^\d+(?= \S|$)/;
const LABEL_WITH_TOKEN = /^\d+(?= \S)/; // a token may be a number

const HEAD = /^(\w+:)?\d+:\d+$/;

// The head of a row, or both ends of an edge.
function linkedHead({ layer, head, stack = "self", from, to }) {
  if (Number.isInteger(layer) && Number.isInteger(head)) return `${stack === "self" ? "" : `${stack}:`}${layer}:${head}`;
  return [head, from, to].filter((name) => HEAD.test(name)).join(" ") || undefined;
}

// The head and the tokens that a row of a table is about, by attribute.
export function aboutRow(row) {
  const about = {
    head: linkedHead(row),
    query: positionIn(row.query, LABEL),
    key: positionIn(row.key, LABEL),
    token: positionIn(row.position ?? row.token, LABEL_WITH_TOKEN),
  };
  return Object.fromEntries(Object.entries(about).filter(([, value]) => value !== undefined));
}

// Link an element to what a row is about, such as `{ layer: 5, head: 11 }`, `{ head: "5:11" }` or `{ position: 4 }`.
export function linkTo(element, row) {
  Object.assign(element.dataset, aboutRow(row));
  return element;
}

export const aboutElement = ({ dataset }) =>
  Object.fromEntries(ATTRIBUTES.filter((name) => name in dataset).map((name) => [name, dataset[name]]));

// Attributes and values of elements about the same. In self-attention, a token is a query and a key; a pair of tokens is
// a query and a key in every report.
export function sameAs({ head, query, key, token }, isSelf) {
  const tokens = [query, key, token].filter((value) => value !== undefined);
  const pairs = head === undefined ? [] : head.split(" ").map((name) => ["head", name]);
  if (isSelf && tokens.length === 1) return [...pairs, ...["query", "key", "token"].map((name) => [name, tokens[0]])];
  if (query !== undefined) pairs.push(["query", query], ["token", query]);
  if (key !== undefined) pairs.push(["key", key], ...(isSelf ? [["token", key]] : []));
  if (token !== undefined) pairs.push(["query", token], ["token", token]);
  return pairs;
}

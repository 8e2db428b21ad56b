// The tokens that are kept or looked at, and what is said of them.

// Tokens that are kept, then the one that is looked at, each with its row, its column, or both.
function chosenSources() {
  const tokens = chosen.pins.map((token) => ({ ...token, isPinned: true }));
  const { looked } = chosen;
  if (looked && !tokens.some((token) => isSame(token, looked))) tokens.push({ ...looked, colour: "looked" });
  return tokens.map((token) => ({
    ...token,
    query: matrix.isSelf || token.side === "query" ? token.index : null,
    key: matrix.isSelf || token.side === "key" ? token.index : null,
  }));
}

const isSame = (one, other) => one.index === other.index && (matrix.isSelf || one.side === other.side);

function showSources() {
  if (!matrix.isAttention) {
    byId("readout").textContent = "";
    return;
  }
  const list = chosenSources();
  if (!byId("tokens").hidden) sides.draw(matrix, list);
  showCards(byId("cards"), matrix, list, chosen.report, pin);
  byId("readout").textContent = list.length ? readoutOf(list) : "";
}

// From kept tokens to the one that is looked at, or where that one looks most.
function readoutOf(list) {
  const last = list.at(-1);
  const pairs = [];
  for (const { query } of list.slice(0, -1)) {
    if (query !== null && last.key !== null) pairs.push(cellText(query, last.key));
  }
  for (const { key } of list.slice(0, -1)) {
    if (key !== null && last.query !== null) pairs.push(cellText(last.query, key));
  }
  if (pairs.length) return pairs.join("; ");
  if (last.query !== null) return cellText(last.query, largestIn(matrix.row(last.query)), " looks most at ");
  return cellText(largestIn(matrix.column(last.key)), last.key, " looks most at ");
}

const largestIn = (numbers) =>
  numbers.reduce(
    (best, value, i) => (value > numbers[best] || numbers[best] !== numbers[best] ? i : best),
    0,
  );

function cellText(row, column, verb = " → ") {
  const value = weightText(matrix.values[row * matrix.columns + column], matrix.decimals);
  return `${labelText(matrix.rowLabels[row])}${verb}${labelText(matrix.columnLabels[column])}: ${value}`;
}

let frame = 0;

// At most once a frame, however fast the pointer moves.
function look(token) {
  chosen.looked = token;
  if (!token && !byId("tokens").hidden) chosen.looked = focusedToken();
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(showSources);
}

function focusedToken() {
  const token = document.activeElement?.closest?.(".token:focus-visible");
  return token ? { side: token.dataset.side, index: Number(token.dataset.index) } : null;
}

function lookAtCell(cell) {
  if (matrix.isAttention) look(cell && { side: "query", index: cell[0] });
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    showSources();
    if (cell) byId("readout").textContent = cellText(...cell);
  });
}

// Keep a token in a colour of its own; one that is kept already is let go.
function pin({ side, index }) {
  if (!matrix.isAttention) return;
  const token = { side, index };
  const others = chosen.pins.filter((other) => !isSame(other, token));
  if (others.length === chosen.pins.length) {
    const free = PIN_COLOURS.find((colour) => !others.some((other) => other.colour === colour));
    others.push({ ...token, colour: free ?? PIN_COLOURS[index % PIN_COLOURS.length] });
  }
  chosen.pins = others;
  showSources();
}

function letAllGo() {
  chosen.pins = [];
  if (matrix) showSources();
}

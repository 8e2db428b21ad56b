// Places of the nodes and routes of the edges of a layered graph (Sugiyama et al. 1981). An edge that skips rows has
// a bend in each of them, which takes room between the boxes there, so no edge passes through a box.

const BEND = 7; // pixels for a bend
const SPACE = 10; // pixels between neighbours in a row
// If there is room, boxes of a graph of few rows are further apart: pixels, and the share of the width to fill.
const [MOST_SPREAD, FILLED, FEW_ROWS] = [150, 0.9, 4];
const [SWEEPS, SETTLINGS] = [12, 60];
const STRAIGHTNESS = 8; // weight of a link between two bends, relative to one between two nodes

// The nodes of each row, lowest row first, and edges with a `start` and an `end`. Edges with the same `trunk` share
// their bends. Returns the x of each node, the list of x at the rows that each edge passes, and the width.
export function layeredLayout(rows, edges, { width, nodeWidth }) {
  const nodes = new Map();
  const lines = rows.map((names, row) => names.map((name) => item(row, nodeWidth(name), nodes, name)));
  const bends = new Map();
  const chains = edges.map((edge) => {
    const [start, end] = [nodes.get(edge.start), nodes.get(edge.end)];
    const chain = [start];
    for (let row = start.row + 1; row < end.row; row++) {
      const key = `${row} ${edge.trunk}`;
      if (!bends.has(key)) lines[row].push(item(row, BEND, bends, key));
      chain.push(bends.get(key));
    }
    chain.push(end);
    chain.slice(1).forEach((above, i) => {
      chain[i].up.add(above);
      above.down.add(chain[i]);
    });
    return chain;
  });
  order(lines);
  const needed = Math.max(...lines.map(extent));
  const whole = Math.max(width, needed);
  const most = Math.max(...rows.map(({ length }) => length));
  const spread = Math.min(MOST_SPREAD, (FILLED * whole - needed) / most) * Math.min(1, FEW_ROWS / rows.length);
  if (spread > 0) for (const node of nodes.values()) node.size += spread;
  place(lines, whole);
  return {
    width: whole,
    xOf: new Map(Array.from(nodes, ([name, { x }]) => [name, x])),
    routes: chains.map((chain) => chain.map(({ x }) => x)),
  };
}

function item(row, size, items, name) {
  const made = { row, size, isBend: size === BEND, up: new Set(), down: new Set(), x: 0 };
  items.set(name, made);
  return made;
}

const extent = (line) => line.reduce((sum, { size }) => sum + size + SPACE, 0);

// Sort each row by the mean place of its neighbours below, then above, and keep the order with the fewest crossings.
function order(lines) {
  const renumber = () => lines.forEach((line) => line.forEach((each, i) => (each.place = i)));
  renumber();
  let [best, fewest] = [lines.map((line) => [...line]), crossings(lines)];
  for (let sweep = 0; sweep < 2 * SWEEPS && fewest > 0; sweep++) {
    const side = sweep % 2 ? "up" : "down";
    for (const line of sweep % 2 ? [...lines].reverse() : lines) {
      for (const each of line) each.wanted = mean([...each[side]].map(({ place }) => place), each.place);
      line.sort((one, other) => one.wanted - other.wanted);
      line.forEach((each, i) => (each.place = i));
    }
    const count = crossings(lines);
    if (count < fewest) [best, fewest] = [lines.map((line) => [...line]), count];
  }
  best.forEach((line, row) => (lines[row] = line));
  renumber();
}

const mean = (numbers, otherwise) =>
  numbers.length ? numbers.reduce((sum, number) => sum + number, 0) / numbers.length : otherwise;

function crossings(lines) {
  let count = 0;
  for (const line of lines) {
    const links = line.flatMap((each) => Array.from(each.up, (above) => [each.place, above.place]));
    for (const [from, to] of links)
      for (const [otherFrom, otherTo] of links) if (from < otherFrom && to > otherTo) count++;
  }
  return count;
}

// Move each item towards its neighbours in other rows, with at least its size from the neighbours in its own.
function place(lines, width) {
  for (const line of lines) {
    const room = width / line.length;
    line.forEach((each, i) => (each.x = (i + 0.5) * room));
  }
  for (let i = 0; i < SETTLINGS; i++) {
    for (const line of i % 2 ? [...lines].reverse() : lines) settle(line, width);
  }
}

// Least squares with gaps: subtract the gaps, then pool neighbours that are out of order (isotonic regression).
function settle(line, width) {
  let offset = -(line[0].size + SPACE) / 2;
  const offsets = line.map(({ size }) => {
    const middle = offset + (size + SPACE) / 2;
    offset += size + SPACE;
    return middle;
  });
  const pools = [];
  line.forEach((each, i) => {
    let [sum, weight] = [0, 0];
    for (const other of [...each.up, ...each.down]) {
      const strength = each.isBend && other.isBend ? STRAIGHTNESS : 1;
      sum += strength * other.x;
      weight += strength;
    }
    const wanted = weight ? sum / weight : each.x;
    let pool = { at: wanted - offsets[i], weight: weight || 1, count: 1 };
    while (pools.length && pools.at(-1).at >= pool.at) {
      const before = pools.pop();
      const both = before.weight + pool.weight;
      pool = { at: (before.at * before.weight + pool.at * pool.weight) / both, weight: both, count: before.count + pool.count };
    }
    pools.push(pool);
  });
  const [low, high] = [(line[0].size + SPACE) / 2, width - (line.at(-1).size + SPACE) / 2 - offsets.at(-1)];
  let i = 0;
  for (const { at, count } of pools) {
    for (const end = i + count; i < end; i++) line[i].x = offsets[i] + Math.min(Math.max(at, low), Math.max(low, high));
  }
}

// Lines between queries and keys, drawn on a canvas between the two lists.

import { colourOf, FAINTEST, inkOf, signsOf, sizesOf, strengthsOf } from "../values/shades.js";

// Height in pixels shared by the lines of all views at one token; share of the width in which lines bend.
const STRAND = 16;
const TURNS = 0.6;
// With many heads at once, only stronger lines are drawn.
const FAINTEST_OF_MANY = 0.12;

// A drawing context in screen pixels, and the vertical centres of the tokens on both sides.
export function penOn(canvas, lists) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const top = canvas.getBoundingClientRect().top;
  const middles = ({ elements }) =>
    elements.map((element) => {
      const box = element.getBoundingClientRect();
      return box.top + box.height / 2 - top;
    });
  return { context, width, from: middles(lists.query), to: middles(lists.key) };
}

// `lane`, from 0 to 1, keeps the lines of several views beside each other.
function line({ context, width, from, to }, i, j, colour, strength, lane) {
  if (!(strength > FAINTEST)) return;
  const [start, end] = [from[i] + STRAND * (lane - 0.5), to[j] + STRAND * (lane - 0.5)];
  const turn = width * (0.5 + TURNS * (lane - 0.5));
  context.strokeStyle = `rgb(${colour} / ${strength.toFixed(3)})`;
  context.beginPath();
  context.moveTo(0, start);
  context.bezierCurveTo(turn, start, turn, end, width, end);
  context.stroke();
}

const laneOf = (k, views) => (k + 0.5) / views.length;

// With a single head, negative and positive numbers have their own inks.
export const signsOfViews = (views) => (views.length === 1 ? signsOf(views[0].matrix) : null);

// Draw all lines of all views, where a view is a matrix with an ink.
export function drawAll(pen, views) {
  pen.context.lineWidth = views.length > 2 ? 1 : 1.5;
  const signs = signsOfViews(views);
  const strengths = strengthsOf(
    views.map(({ matrix }) => sizesOf(matrix.values, matrix)),
    views.some(({ matrix }) => matrix.isLog),
  );
  views.forEach(({ matrix, ink }, k) => {
    const colour = ink ?? colourOf("line");
    matrix.values.forEach((value, at) => {
      const [i, j] = [Math.floor(at / matrix.columns), at % matrix.columns];
      if (views.length < 3 || strengths[k][at] > FAINTEST_OF_MANY)
        line(pen, i, j, inkOf(value, colour, signs), 0.6 * strengths[k][at], laneOf(k, views));
    });
  });
}

// Solid lines from a query to its keys, dashed lines from a key to the queries that look at it.
export function drawSources(pen, views, sources) {
  const signs = signsOfViews(views);
  const isLog = views.some(({ matrix }) => matrix.isLog);
  pen.context.lineWidth = views.length > 2 ? 1.5 : 2;
  for (const { query, key, colour } of sources) {
    const draw = (lists, sizes, dash, place) => {
      pen.context.setLineDash(dash);
      strengthsOf(sizes, isLog).forEach((strengths, k) => {
        const ink = views[k].ink ?? colourOf(colour);
        strengths.forEach((strength, at) =>
          line(pen, ...place(at), inkOf(lists[k][at], ink, signs), strength, laneOf(k, views)),
        );
      });
    };
    if (query !== null) {
      const rows = views.map(({ matrix }) => matrix.row(query));
      draw(rows, rows.map((row, k) => sizesOf(row, { skip: views[k].matrix.skip })), [], (j) => [query, j]);
    }
    if (key !== null) {
      const columns = views.map(({ matrix }) => matrix.column(key));
      draw(columns, columns.map((column) => sizesOf(column, {})), [3, 4], (i) => [i, key]);
    }
  }
}

// Numbers as positions on a colour map: linear, logarithmic, or linear per row.

import { make } from "../parts/elements.js";
import { rangeEnds } from "./numbers.js";

let maps = {};

export function readMaps(start) {
  maps = { viridis: coloursOf(start.viridis), coolwarm: coloursOf(start.coolwarm) };
}

// 256 opaque colours of four bytes each.
function coloursOf(hexadecimal) {
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const colour = parseInt(hexadecimal.slice(6 * i, 6 * i + 6), 16);
    return ((255 << 24) | ((colour & 255) << 16) | (colour & 0xff00) | (colour >> 16)) >>> 0;
  });
}

// Smallest, largest and smallest positive number, without the first `skip` columns.
export function endsOf(values, columns, skip) {
  let [low, high, above] = [Infinity, -Infinity, Infinity];
  for (let i = 0, j = 0; i < values.length; i++) {
    const value = values[i];
    if (j >= skip && value === value) {
      if (value < low) low = value;
      if (value > high) high = value;
      if (value > 0 && value < above) above = value;
    }
    if (++j === columns) j = 0;
  }
  return { low, high, above };
}

// Shading between two ends, as in attn's other views. A logarithmic scale needs numbers >= 0. Weights start at 0,
// their logarithm at most at a tenth of the largest.
export function shadingOf({ low, high, above }, scale, areWeights) {
  if (low > high) return { kind: "linear", low: NaN, high: NaN, map: maps.viridis };
  if (low < 0 && high > 0) {
    const size = Math.max(-low, high);
    return {
      kind: scale === "row" ? "row" : "linear",
      low: -size,
      high: size,
      isDiverging: true,
      map: maps.coolwarm,
    };
  }
  if (scale === "log" && low >= 0 && high > 0) {
    const least = areWeights ? Math.min(above, high / 10) : above;
    return {
      kind: "log",
      low: least,
      high,
      logLow: Math.log(least),
      logHigh: Math.log(high),
      map: maps.viridis,
    };
  }
  const startsAtZero = areWeights && low >= 0;
  const kind = scale === "row" ? "row" : "linear";
  return { kind, low: startsAtZero ? 0 : low, high, startsAtZero, map: maps.viridis };
}

function between(value, low, high) {
  return high > low ? (value - low) / (high - low) : high > 0 ? 1 : 0;
}

function logPlace(value, { logLow, logHigh }) {
  return logHigh > logLow ? (Math.log(value) - logLow) / (logHigh - logLow) : 1;
}

// Position on the colour map, from 0 to 1. `rowEnds` are the ends of the number's row.
export function placeIn(shading, value, rowEnds) {
  let { low, high } = shading;
  if (shading.kind === "log") return value > 0 ? logPlace(value, shading) : 0;
  if (shading.kind === "row") {
    ({ low, high } = rowEnds);
    if (shading.startsAtZero) low = 0;
    if (shading.isDiverging) [low, high] = [-Math.max(-low, high), Math.max(-low, high)];
  }
  if (shading.isDiverging) return high > 0 ? 0.5 + (0.5 * value) / high : 0.5;
  return between(value, low, high);
}

// RGBA of each number; missing numbers and skipped keys are transparent.
function pixelsOf(values, columns, shading, skip) {
  const pixels = new Uint32Array(values.length);
  for (let start = 0; start < values.length; start += columns) {
    const row = values.subarray(start, start + columns);
    const rowEnds = shading.kind === "row" ? endsOf(row, columns, skip) : null;
    for (let j = skip; j < columns; j++) {
      const value = row[j];
      if (value === value) {
        const place = placeIn(shading, value, rowEnds);
        pixels[start + j] = shading.map[Math.max(0, Math.min(255, Math.round(place * 255)))];
      }
    }
  }
  return pixels;
}

// One pixel per number; CSS scales the canvas.
export function paint(canvas, values, columns, shading, skip) {
  canvas.width = columns;
  canvas.height = values.length / columns;
  const pixels = pixelsOf(values, columns, shading, skip);
  const image = new ImageData(new Uint8ClampedArray(pixels.buffer), columns, canvas.height);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return pixels;
}

// True if black is easier to read than white on this colour: then its contrast is at least 4.5, otherwise that of white.
export function isLight(pixel) {
  const linear = (channel) => (channel <= 10 ? channel / 3295 : ((channel / 255 + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = [0, 8, 16].map((bits) => linear((pixel >> bits) & 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179;
}

// The colours with the numbers at their ends, or with other texts there.
export function showLegend(element, shading, { decimals, unit, texts }) {
  const bar = make("canvas", { class: "legend-bar", role: "img", "aria-label": "colours from low to high" });
  bar.width = 256;
  bar.height = 1;
  bar
    .getContext("2d")
    .putImageData(new ImageData(new Uint8ClampedArray(shading.map.slice().buffer), 256, 1), 0, 0);
  const said = { log: "log scale", row: "scaled per row", linear: "" }[shading.kind];
  const ends = texts
    ? texts
    : shading.kind === "row"
      ? [shading.startsAtZero ? "0" : "row minimum", "row maximum"]
      : rangeEnds(shading.low, shading.high, { decimals, isLog: shading.kind === "log" });
  element.replaceChildren(
    make("span", { text: unit }),
    make("span", { class: "legend-range" }, ends[0], bar, ends[1]),
    make("span", { class: "quiet", text: shading.kind === "row" ? "" : said }),
  );
}

// Weights as strengths from 0 to 1: of the bands behind tokens and of the lines between them.

// Below the first nothing is drawn; the second is how opaque the strongest band is.
const FAINTEST = 0.02;
const OPAQUE = 0.6;

// Bands of equal height, one below the other.
function bandsOf(shares, colours) {
  const height = 100 / shares.length;
  const stops = shares.map(
    (share, i) => `rgb(${colours[i]} / ${(OPAQUE * share).toFixed(3)}) ${i * height}% ${(i + 1) * height}%`,
  );
  return `linear-gradient(to bottom, ${stops.join(", ")})`;
}

function line({ context, width, from, to }, i, j, colour, strength) {
  if (!(strength > FAINTEST)) return;
  context.strokeStyle = `rgb(${colour} / ${strength.toFixed(3)})`;
  context.beginPath();
  context.moveTo(0, from[i]);
  context.bezierCurveTo(width / 2, from[i], width / 2, to[j], width, to[j]);
  context.stroke();
}

// The three numbers of a colour that the style names.
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The inks of numbers of both signs, in the colours of their map; null where all have one sign.
const signsOf = ({ shading }) =>
  shading.isDiverging ? { less: colourOf("negative"), more: colourOf("positive") } : null;

// The ink of a number: by its sign, else that of its source.
const inkOf = (value, ink, signs) => (signs ? (value < 0 ? signs.less : signs.more) : ink);

// From 0 to 1 by the largest size among numbers; none for the first `skip` of each row of `columns`.
function strengthsOf(numbers, { skip = 0, isLog, columns = numbers.length }) {
  const sizes = Float64Array.from(numbers, (value, i) =>
    i % columns < skip || value !== value ? 0 : Math.abs(value),
  );
  const largest = sizes.reduce((most, size) => Math.max(most, size), 0);
  if (!isLog) return sizes.map((size) => (largest > 0 ? size / largest : 0));
  const least = sizes.reduce((most, size) => (size > 0 ? Math.min(most, size) : most), largest);
  const span = Math.log(largest) - Math.log(least);
  return sizes.map((size) => (size > 0 ? (span > 0 ? (Math.log(size) - Math.log(least)) / span : 1) : 0));
}

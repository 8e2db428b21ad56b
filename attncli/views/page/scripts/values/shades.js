// Weights as strengths from 0 to 1: of the bands behind tokens and of the lines between them.

// Below the first nothing is drawn; the second is how opaque the strongest band is.
export const FAINTEST = 0.02;
const OPAQUE = 0.6;
const STRENGTH = 70; // percent of the accent colour at the largest weight
const GOLDEN_ANGLE = 137.508; // degrees, so that neighbours are far apart and all heads differ

// Bands of equal size: one below the other, or from left to right.
export function bandsOf(shares, colours, direction) {
  const size = 100 / shares.length;
  const stops = shares.map(
    (share, i) => `rgb(${colours[i]} / ${(OPAQUE * share).toFixed(3)}) ${i * size}% ${(i + 1) * size}%`,
  );
  return `linear-gradient(to ${direction}, ${stops.join(", ")})`;
}

// Shade an element of a text in the accent colour, by its share of the largest weight.
export function shade(element, share) {
  element.style.setProperty("--share", `${Math.round(STRENGTH * share)}%`);
}

const rootStyle = () => getComputedStyle(document.documentElement);

// The three numbers of a colour that the style names.
export const colourOf = (name) => rootStyle().getPropertyValue(`--${name}`).trim();

// The three numbers of a head's own colour: the same in every layer.
export function headInk(head) {
  const [hue, saturation] = [(215 + head * GOLDEN_ANGLE) % 360, 0.75];
  const lightness = (rootStyle().colorScheme === "dark" ? 0.66 : 0.4) + (head % 2 ? 0.04 : -0.04);
  const reach = saturation * Math.min(lightness, 1 - lightness);
  const channel = (start) => {
    const sector = (start + hue / 30) % 12;
    return Math.round(255 * (lightness - reach * Math.max(-1, Math.min(sector - 3, 9 - sector, 1))));
  };
  return [0, 8, 4].map(channel).join(" ");
}

// The inks of numbers of both signs, in the colours of their map; null where all have one sign.
export const signsOf = ({ shading }) =>
  shading.isDiverging ? { less: colourOf("negative"), more: colourOf("positive") } : null;

// The ink of a number: by its sign, else that of its source.
export const inkOf = (value, ink, signs) => (signs ? (value < 0 ? signs.less : signs.more) : ink);

// The size of each number; 0 for the first `skip` of each row of `columns`.
export function sizesOf(numbers, { skip = 0, columns = numbers.length }) {
  return Float64Array.from(numbers, (value, i) =>
    i % columns < skip || value !== value ? 0 : Math.abs(value),
  );
}

// From 0 to 1 by the largest size in all lists, even in the logarithm where that is asked for.
export function strengthsOf(lists, isLog) {
  let [least, largest] = [Infinity, 0];
  for (const sizes of lists) {
    for (const size of sizes) {
      if (size > largest) largest = size;
      if (size > 0 && size < least) least = size;
    }
  }
  const span = Math.log(largest) - Math.log(least);
  const strength = (size) => {
    if (!(size > 0)) return 0;
    return isLog && span > 0 ? (Math.log(size) - Math.log(least)) / span : isLog ? 1 : size / largest;
  };
  return lists.map((sizes) => sizes.map(strength));
}

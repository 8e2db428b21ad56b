// Weights as strengths from 0 to 1, for the bands behind tokens and the lines between them.

// Strengths below FAINTEST are not drawn; OPAQUE is the opacity of the strongest band, on which text stays legible.
export const FAINTEST = 0.02;
const OPAQUE = 0.45;
const STRENGTH = 52; // percent of the accent colour at the largest weight: text on it keeps a contrast of 4.5
const GOLDEN_ANGLE = 137.508; // degrees: neighbouring heads get distant hues, and no two heads the same

// A gradient of equal bands, stacked or side by side.
export function bandsOf(shares, colours, direction) {
  const size = 100 / shares.length;
  const stops = shares.map(
    (share, i) => `rgb(${colours[i]} / ${(OPAQUE * share).toFixed(3)}) ${i * size}% ${(i + 1) * size}%`,
  );
  return `linear-gradient(to ${direction}, ${stops.join(", ")})`;
}

// Shade an element in the accent colour by its share of the largest weight.
export function shade(element, share) {
  element.style.setProperty("--share", `${Math.round(STRENGTH * share)}%`);
}

const rootStyle = () => getComputedStyle(document.documentElement);

// RGB of a colour variable of the style sheet.
export const colourOf = (name) => rootStyle().getPropertyValue(`--${name}`).trim();

// RGB of a head's colour, the same in every layer.
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

// Inks for negative and positive numbers, from the colour map; null if all have the same sign.
export const signsOf = ({ shading }) =>
  shading.isDiverging ? { less: colourOf("negative"), more: colourOf("positive") } : null;

// The ink of a number: by sign if there are two signs, otherwise the ink of its source.
export const inkOf = (value, ink, signs) => (signs ? (value < 0 ? signs.less : signs.more) : ink);

// Absolute values; 0 for the first `skip` of every `columns` numbers.
export function sizesOf(numbers, { skip = 0, columns = numbers.length }) {
  return Float64Array.from(numbers, (value, i) =>
    i % columns < skip || value !== value ? 0 : Math.abs(value),
  );
}

// Strengths from 0 to 1 relative to the largest size in all lists, on a linear or logarithmic scale.
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

// Numbers as text, with the same digits as the tables in a terminal.

export const NO_NUMBER = "-";
const TOO_WIDE = 1e7;

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Fixed decimals of the exact value; ties round to even.
export function fixed(value, decimals = 4) {
  if (typeof value === "string" || typeof value === "boolean") return String(value);
  if (!isNumber(value)) return NO_NUMBER;
  if (Math.abs(value) >= TOO_WIDE) return value.toExponential(decimals);
  let text = value.toFixed(decimals);
  if (isTie(value, decimals) && "13579".includes(text.at(-1))) text = towardsZero(value, decimals);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

function isTie(value, decimals) {
  const next = value.toFixed(decimals + 1);
  return (
    next.endsWith("5") &&
    Number(next) === value &&
    /^50*$/.test(value.toFixed(60).split(".")[1].slice(decimals))
  );
}

function towardsZero(value, decimals) {
  const next = value.toFixed(decimals + 1).slice(0, -1);
  return next.endsWith(".") ? next.slice(0, -1) : next;
}

// A single number; tiny numbers have an exponent.
export function scalar(value, decimals = 4) {
  if (!isNumber(value) || value === 0) return fixed(value, decimals);
  return Math.abs(value) < 0.5 * 10 ** -decimals ? value.toExponential(decimals) : fixed(value, decimals);
}

// Short form for thumbnails.
export const shortScalar = (value) =>
  isNumber(value) && value !== 0 && Math.abs(value) < 5e-5 ? value.toExponential(0) : scalar(value);

// Text of the ends of a range. On a linear scale an end that is negligible beside the other is written as zero.
export function rangeEnds(low, high, { decimals = 4, isLog = false } = {}) {
  const least = isLog ? 0 : 0.5 * 10 ** -decimals * Math.max(Math.abs(low), Math.abs(high));
  return [low, high].map((end) => scalar(Math.abs(end) < least ? 0 : end, decimals));
}

// A weight in fixed decimals; if these are all zero, the value with an exponent follows in brackets.
export function weightText(value, decimals = 4) {
  const text = fixed(value, decimals);
  return isNumber(value) && value !== 0 && Number(text) === 0 ? `${text} (${value.toExponential(0)})` : text;
}

// Index of the largest number, ignoring NaN.
export const largestIn = (numbers) =>
  numbers.reduce(
    (best, value, i) => (value > numbers[best] || numbers[best] !== numbers[best] ? i : best),
    0,
  );

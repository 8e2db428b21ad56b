// Round numbers along an axis: steps of 1, 2 or 5 times a power of ten.

const STEPS = [1, 2, 5, 10];

// At most about `most` steps, from the last round number below the range to the first one above it.
export function axisOf(low, high, most, leastStep = 0) {
  const size = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(size / most));
  const step = Math.max(leastStep, STEPS.map((n) => n * power).find((each) => each >= 0.999 * (size / most)));
  const first = Math.floor(low / step + 1e-6);
  const last = Math.max(first + 1, Math.ceil(high / step - 1e-6));
  const ticks = Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
  return { low: ticks[0], high: ticks.at(-1), ticks, step };
}

// Text of a tick, with the decimals of its step; very large and very small ticks have an exponent.
export function tickText(value, step) {
  const size = Math.abs(value);
  if (size >= 1e6 || (step < 1e-4 && size > step / 2)) return Number(value.toPrecision(6)).toExponential();
  return (size < step / 2 ? 0 : value).toFixed(Math.max(0, Math.ceil(-Math.log10(step) - 1e-6)));
}

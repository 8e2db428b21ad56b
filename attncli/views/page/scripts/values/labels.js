// Labels of an axis: a position and, if the axis has tokens, the token.

// The tokens along an axis; empty if it has none.
export function tokensAlong(report, axis) {
  const side = axis.split("_")[0];
  if (side === "key") return report.context_tokens.length ? report.context_tokens : report.tokens;
  if (side === "query") return report.tokens.slice(report.first_query);
  if (["column", "source", "way"].includes(side)) return report.context_tokens;
  return side === "token" || side === "row" ? report.tokens : [];
}

export function axisLabels(report, axis, count) {
  const tokens = tokensAlong(report, axis);
  if (axis.endsWith("_block") && tokens.length > count) return blockLabels(tokens, count);
  const areTokens = tokens.length === count && !axis.endsWith("_block");
  const first = axis === "query" ? report.first_query : 0;
  return Array.from({ length: count }, (_, i) => ({
    position: String(first + i),
    token: areTokens ? tokens[i] : "",
  }));
}

// Equal blocks of tokens; the last one may be shorter.
function blockLabels(tokens, count) {
  const size = Math.ceil(tokens.length / count);
  return Array.from({ length: count }, (_, i) => {
    const last = Math.min((i + 1) * size, tokens.length) - 1;
    const position = last > i * size ? `${i * size}–${last}` : String(last);
    return { position, token: tokens.slice(i * size, last + 1).join(" ") };
  });
}

const MOST_SHOWN = 24;
export const shortened = (text) => {
  const characters = Array.from(text);
  return characters.length > MOST_SHOWN ? `${characters.slice(0, MOST_SHOWN - 1).join("")}…` : text;
};
export const labelText = ({ position, token }) => (token ? `${position} ${shortened(token)}` : position);

// 5:11 for layer 5, head 11.
export const shortPlace = (place) => place.map(([, index]) => index).join(":");
// `batch 0, head 5:11` if the place has both a layer and a head, otherwise `layer 5`.
export function placeText(place) {
  const last = place.slice(-2);
  const isHead = last.map(([axis]) => axis).join() === "layer,head";
  const named = (isHead ? place.slice(0, -2) : place).map(([axis, index]) => `${axis} ${index}`);
  return [...named, ...(isHead ? [`head ${shortPlace(last)}`] : [])].join(", ");
}

export function matrixTitle(tensor, place) {
  const axes = tensor.axes.slice(-2).join(" × ").replaceAll("_", " ");
  const where = tensor.shared.length ? `the same for every ${tensor.shared.join(" and ")}` : placeText(place);
  return `${tensor.name.replaceAll("_", " ")} (${axes})${where ? `, ${where}` : ""}`;
}

// Token names on one line; names with a space are quoted.
export function inLine(names) {
  return names.map((name) => (/\s/.test(name) ? `"${name.replaceAll('"', '""')}"` : name)).join(" ");
}

// Parse a line written by `inLine`. Other names keep their quotes: "5" in quotes is text, not a position.
export function namesIn(line) {
  const names = line.matchAll(/"((?:[^"]|"")+)"(?!\S)|\S+/g);
  return Array.from(names, ([name, quoted]) => (/\S\s+\S/.test(quoted) ? quoted.replaceAll('""', '"') : name));
}

// Decode the arrays in the page: bytes grouped by significance, deflated, in base64.

const ARRAY_TYPES = {
  float32: Float32Array,
  float64: Float64Array,
  int32: Int32Array,
  uint16: Uint16Array,
};

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpacked(base64, type) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = ARRAY_TYPES[type].BYTES_PER_ELEMENT;
  const count = planes.length / size;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < size; plane++) {
    for (let i = 0, to = size - 1 - plane; i < count; i++, to += size) bytes[to] = planes[plane * count + i];
  }
  return new ARRAY_TYPES[type](bytes.buffer);
}

// An array with named axes, unpacked on first use.
export class Tensor {
  constructor(data) {
    Object.assign(this, { decimals: 4, ...data });
    this.leading = this.axes.slice(0, -2);
    this.leadingShape = this.shape.slice(0, -2);
    [this.rows, this.columns] = this.shape.slice(-2);
    this.isMatrix = this.shape.length > 1;
    this.count = this.leadingShape.reduce((product, size) => product * size, 1);
    this.isOverSteps = this.axes[0] === "step" && this.count > 1;
  }

  async load() {
    if (this.values) return this.values;
    let values = await unpacked(this.bytes, this.type);
    if (this.table) values = decodedByTable(values, await unpacked(this.table.bytes, this.table.type));
    else if (this.step !== undefined) values = decodedBySteps(values, this.low, this.step);
    if (this.type === "int32") values = Float64Array.from(values, (number) => (number < 0 ? NaN : number));
    delete this.bytes;
    this.values = values;
    return values;
  }

  // Numbers of one matrix. Matrices are counted along all axes but the last two.
  matrix(number) {
    const size = this.rows * this.columns;
    return this.values.subarray(number * size, (number + 1) * size);
  }

  // Index of a matrix on each leading axis; for training steps, the step number.
  place(number) {
    const indices = this.leadingShape.map(() => 0);
    for (let axis = this.leadingShape.length - 1, rest = number; axis >= 0; axis--) {
      indices[axis] = rest % this.leadingShape[axis];
      rest = Math.floor(rest / this.leadingShape[axis]);
    }
    return this.leading.map((axis, i) => [axis, axis === "step" ? this.steps[indices[i]] : indices[i]]);
  }

  // Numbers along the last axes at a place. A missing axis is ignored: the tensor is the same along it.
  at(place, numLast = 1) {
    const where = Object.fromEntries(place);
    const ends = this.shape.slice(-numLast).reduce((product, size) => product * size, 1);
    let number = 0;
    for (let axis = 0; axis < this.axes.length - numLast; axis++) {
      number = number * this.shape[axis] + (where[this.axes[axis]] ?? 0);
    }
    return this.values.subarray(number * ends, (number + 1) * ends);
  }
}

function decodedByTable(codes, table) {
  const values = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) values[i] = table[codes[i]];
  return values;
}

function decodedBySteps(codes, low, step) {
  const values = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) values[i] = codes[i] === 65535 ? NaN : low + step * codes[i];
  return values;
}

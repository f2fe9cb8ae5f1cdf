// Matrix products in WebAssembly, four numbers at a time (SIMD): about six times as fast as plain JavaScript. The program
// is written here instruction by instruction; a browser without SIMD, or one that forbids it, uses plain JavaScript.

const LIVE_PAGE = 1 << 16; // bytes of a page of memory
const LIVE_SCRATCH = 1 << 20; // floats for what a product reads and gives

// A number as WebAssembly writes it, seven bits at a time.
function liveUnsigned(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return [...bytes, value];
}

// product(x, rows, w, stride, outputs, y): rows x inputs times (outputs x inputs), into rows x outputs. x, w and y are
// places in bytes, stride the bytes of a row of inputs; inputs and outputs are multiples of four.
function liveProgram(pages) {
  const [X, ROWS, W, STRIDE, OUTPUTS, Y, row, out, line, at, end, w0, w1, w2, w3, s0, s1, s2, s3, numbers] = Array.from({ length: 20 }, (_, n) => n);
  const get = (local) => [0x20, local];
  const set = (local) => [0x21, local];
  const constant = (value) => [0x41, value]; // up to 63
  const [add, multiply, less] = [[0x6a], [0x6c], [0x49]];
  const load = [0xfd, 0x00, 0x04, 0x00];
  const [addFour, multiplyFour] = [[0xfd, 0xe4, 0x01], [0xfd, 0xe6, 0x01]];
  const zero = [0xfd, 0x0c, ...new Array(16).fill(0)];
  const move = (local, by) => [...get(local), ...by, ...add, ...set(local)];
  const loop = (body, counter, limit) => [0x03, 0x40, ...body, ...get(counter), ...get(limit), ...less, 0x0d, 0x00, 0x0b];
  const pairs = [[w0, s0], [w1, s1], [w2, s2], [w3, s3]];
  // Four inputs of one row with those of four outputs.
  const inner = [...get(at), ...load, ...set(numbers), ...pairs.flatMap(([weight, sum]) => [...get(sum), ...get(numbers), ...get(weight), ...load, ...multiplyFour, ...addFour, ...set(sum), ...move(weight, constant(16))]), ...move(at, constant(16))];
  const total = (sum) => [...[0, 1, 2, 3].flatMap((lane) => [...get(sum), 0xfd, 0x1f, lane]), 0x92, 0x92, 0x92];
  const outputs = [
    ...get(line), ...set(at), ...get(line), ...get(STRIDE), ...add, ...set(end),
    ...get(W), ...get(out), ...get(STRIDE), ...multiply, ...add, ...set(w0),
    ...[[w0, w1], [w1, w2], [w2, w3]].flatMap(([before, after]) => [...get(before), ...get(STRIDE), ...add, ...set(after)]),
    ...pairs.flatMap(([, sum]) => [...zero, ...set(sum)]),
    ...loop(inner, at, end),
    ...pairs.flatMap(([, sum], n) => [...get(Y), ...total(sum), 0x38, 0x02, 4 * n]),
    ...move(Y, constant(16)), ...move(out, constant(4)),
  ];
  const rows = [...constant(0), ...set(out), ...loop(outputs, out, OUTPUTS), ...move(line, get(STRIDE)), ...move(row, constant(1))];
  const body = [2, 9, 0x7f, 5, 0x7b, ...get(X), ...set(line), ...loop(rows, row, ROWS), 0x0b]; // 9 numbers, 5 vectors
  const section = (kind, bytes) => [kind, ...liveUnsigned(bytes.length), ...bytes];
  return Uint8Array.from([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, [1, 0x60, 6, ...new Array(6).fill(0x7f), 0]),
    ...section(3, [1, 0]),
    ...section(5, [1, 0, ...liveUnsigned(pages)]),
    ...section(7, [2, 1, 0x6d, 2, 0, 1, 0x70, 0, 0]), // m: the memory; p: the product
    ...section(10, [1, ...liveUnsigned(body.length), ...body]),
  ]);
}

// Memory for so many floats of weights, and products with them; null where WebAssembly cannot be used.
export function liveKernel(floats) {
  try {
    const pages = Math.ceil((4 * (floats + LIVE_SCRATCH)) / LIVE_PAGE);
    const { m, p } = new WebAssembly.Instance(new WebAssembly.Module(liveProgram(pages))).exports;
    return new LiveKernel(m.buffer, p, LIVE_SCRATCH);
  } catch {
    return null;
  }
}

class LiveKernel {
  constructor(buffer, product, scratch) {
    this.buffer = buffer;
    this.product = product;
    this.scratch = new Float32Array(buffer, 0, scratch);
    this.used = 4 * scratch;
  }

  // A place for a weight, which stays there.
  place(length) {
    const array = new Float32Array(this.buffer, this.used, length);
    this.used += 4 * length;
    return array;
  }

  holds({ data, shape }) {
    return data.buffer === this.buffer && shape.length === 2 && shape[1] % 4 === 0 && shape[0] >= 4 && shape[1] + shape[0] <= this.scratch.length;
  }

  // The products of all rows with the outputs that come in fours; the caller does the rest. y: rows x outputs.
  multiply(x, rows, { data, shape: [outputs, inputs] }, y) {
    const even = outputs - (outputs % 4);
    const together = Math.max(1, Math.floor(this.scratch.length / (inputs + even)));
    for (let first = 0; first < rows; first += together) {
      const count = Math.min(together, rows - first);
      this.scratch.set(x.subarray(first * inputs, (first + count) * inputs));
      const from = count * inputs;
      this.product(0, count, data.byteOffset, 4 * inputs, even, 4 * from);
      if (even === outputs) y.set(this.scratch.subarray(from, from + count * even), first * outputs);
      else for (let row = 0; row < count; row++) y.set(this.scratch.subarray(from + row * even, from + (row + 1) * even), (first + row) * outputs);
    }
    return even;
  }
}

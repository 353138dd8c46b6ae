// Client of protocol 1 of `bert-conformance run 'cmd:node PROGRAM'`: import `serve` and `Unsupported` from a copy.
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";

const ARRAYS = { F64: Float64Array, F32: Float32Array, F16: Uint16Array, BF16: Uint16Array, I64: BigInt64Array };

export class Unsupported extends Error {}

// Returns tensors by name: { dtype, shape, data }; the data of F16 and BF16 are the bits as Uint16Array.
export function load(path) {
  const { buffer, byteOffset, byteLength } = readFileSync(path);
  const start = 8 + Number(new DataView(buffer, byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, byteOffset + 8, start - 8)));
  delete header.__metadata__;
  const read = ({ dtype, shape, data_offsets: [from, to] }) => {
    if (start + to > byteLength) throw new Error(`${path} is cut short`);
    const bytes = buffer.slice(byteOffset + start + from, byteOffset + start + to);
    return { dtype, shape, data: new ARRAYS[dtype](bytes) };
  };
  return Object.fromEntries(Object.entries(header).map(([name, about]) => [name, read(about)]));
}

export function save(tensors, path) {
  const header = {}, parts = [];
  let end = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype, shape, data_offsets: [end, (end += data.byteLength)] };
    parts.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  }
  const text = Buffer.from(JSON.stringify(header)), padding = Buffer.alloc((8 - (text.length % 8)) % 8, " ");
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length + padding.length));
  writeFileSync(path, Buffer.concat([length, text, padding, ...parts]));
}

// `prepare(architecture, weights, device, dtype)` returns, or promises, a function from a batch's tensors to activations.
// With `gradients`, the function also gets `source` for a backward pass, as described in the protocol.
export async function serve(prepare, features = [], gradients = false) {
  console.log = console.info = console.error; // logs must not appear among the replies
  let run;
  const answers = {
    hello: () => ({ protocol: 1, features, gradients }),
    prepare: async ({ architecture, weights, device, dtype }) => void (run = await prepare(architecture, load(weights), device, dtype)),
    run: async ({ inputs, outputs, source }) => void save(await run(load(inputs), source), outputs),
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    const reply = { reply: request.request };
    try {
      Object.assign(reply, await answers[request.request](request));
    } catch (error) {
      if (error instanceof Unsupported) reply.unsupported = error.message;
      else reply.error = String(error?.stack ?? error);
    }
    process.stdout.write(JSON.stringify(reply) + "\n");
  }
}

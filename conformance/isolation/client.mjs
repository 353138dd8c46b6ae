// Client of protocol 2 of `bert-conformance run 'cmd:node PROGRAM'`: import `serve` and `Unsupported` from a copy.
import { readSync, writeSync } from "node:fs";

const ARRAYS = { F64: Float64Array, F32: Float32Array, F16: Uint16Array, BF16: Uint16Array, I64: BigInt64Array };
const NAMES = { F64: "float64", F32: "float32", F16: "float16", BF16: "bfloat16" };
export class Unsupported extends Error {}

// Returns the tensors of a safetensors file by name: { dtype, shape, data }; the data of F16 and BF16 are the bits as Uint16Array.
export function load(file) {
  const start = 8 + Number(file.readBigUInt64LE());
  const { __metadata__, ...header } = JSON.parse(file.subarray(8, start));
  const data = (dtype, [from, to]) => new ARRAYS[dtype](Uint8Array.from(file.subarray(start + from, start + to)).buffer);
  const tensor = ({ dtype, shape, data_offsets }) => ({ dtype, shape, data: data(dtype, data_offsets) });
  return Object.fromEntries(Object.entries(header).map(([name, about]) => [name, tensor(about)]));
}

function read(bytes) {
  for (let at = 0, n; at < bytes.length; at += n) if (!(n = readSync(0, bytes, at, bytes.length - at))) process.exit(); // the input has ended
  return bytes;
}

function receive(line = []) {
  for (let byte; (byte = read(Buffer.alloc(1))[0]) !== 10; ) line.push(byte);
  const message = JSON.parse(Buffer.from(line));
  return [message, message.bytes ? load(read(Buffer.alloc(message.bytes))) : {}];
}

function send(message, { dtype, shape, data } = {}) {
  const header = Buffer.from(data ? JSON.stringify({ 0: { dtype, shape, data_offsets: [0, data.byteLength] } }) : "");
  const start = Buffer.from(BigUint64Array.of(BigInt(header.length)).buffer);
  const content = data ? Buffer.concat([start, header, Buffer.from(data.buffer, data.byteOffset, data.byteLength)]) : header;
  const bytes = Buffer.concat([Buffer.from(JSON.stringify({ ...message, bytes: content.length }) + "\n"), content]);
  for (let at = 0; at < bytes.length; ) at += writeSync(1, bytes, at);
}

// `prepare(architecture, weights, device, dtype)` returns a function from a batch's tensors (and `source`) to activations by name.
export async function serve(prepare, features = [], gradients = false) {
  console.log = console.info = console.error; // logs must not appear among the replies
  for (let run, found, asked; ; ) {
    const [{ request, method, arguments: given }, arrays] = receive(), reply = { reply: request, result: null };
    const named = (places) => Object.fromEntries(Object.entries(places).map(([name, place]) => [name, arrays[place?.array]]));
    const head = ([name, { dtype, shape }], number) => ({ number, name, dtype: NAMES[dtype], shape });
    const parameter = (name) => (send({ parameter: name }), [name, receive()[1][0]]);
    try {
      if (method === "load") reply.result = { protocol: 2, features };
      else if (method === "prepare")
        run = await prepare(given.architecture, Object.fromEntries(given.parameters.map(parameter)), given.device, given.dtype);
      else if (method === "call" && given.seed === null && (gradients || !given.source))
        [found, asked] = [Object.entries(await run(named({ ...given.batch, gradient: given.gradient }), given.source)), 0];
      else if (method === "next") reply.result = { heads: asked++ ? [] : found.map(head) };
      else if (method === "read") reply.result = { array: 0 };
      else throw new Unsupported(`the program does not answer ${method}`);
    } catch (error) {
      const kind = error instanceof Unsupported ? "NotApplicable" : "CandidateCrash";
      reply.failure = { kind, text: kind === "CandidateCrash" ? String(error?.stack ?? error) : error.message };
    }
    send(reply, method === "read" ? found[given.number][1] : undefined);
  }
}

// Runs an ONNX model whose outputs are activations: node onnx_bert.mjs NODE_MODULES MODEL NAMES, the names of its outputs in JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { serve, Unsupported } from "./client.mjs";

const [modules, model, names] = process.argv.slice(2);
const ort = createRequire(`${modules}/`)("onnxruntime-node");
const activations = JSON.parse(readFileSync(names));

await serve(async (architecture, weights, device, dtype) => {
  if (device !== "cpu" || dtype !== "float32") throw new Unsupported("the model is exported in float32, for the CPU");
  const session = await ort.InferenceSession.create(model, { intraOpNumThreads: 1 });
  return async (batch) => {
    const { shape, data } = batch.input_ids;
    const given = (name, value) => batch[name]?.data ?? new BigInt64Array(data.length).fill(value);
    const inputs = { input_ids: data, attention_mask: given("attention_mask", 1n), token_type_ids: given("token_type_ids", 0n) };
    const feeds = Object.entries(inputs).map(([name, array]) => [name, new ort.Tensor("int64", array, shape)]);
    const found = await session.run(Object.fromEntries(feeds));
    const named = activations.map((name, i) => [name, found[session.outputNames[i]]]);
    return Object.fromEntries(named.map(([name, { dims, data }]) => [name, { dtype: "F32", shape: dims, data }]));
  };
});

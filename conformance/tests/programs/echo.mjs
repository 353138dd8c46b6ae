// Answers with a file's activations, read and written by the copy of the client that lies beside it.
import { readFileSync } from "node:fs";
import { load, serve, Unsupported } from "./client.mjs";

await serve((architecture, weights, device, dtype) => {
  const words = weights["bert.embeddings.word_embeddings.weight"];
  if (words.data.length !== architecture.vocab_size * architecture.hidden_size) throw new Error("the weights are not read");
  if (device !== "cpu") throw new Unsupported("it computes on the CPU");
  console.log("prepared");
  return ({ input_ids }) => {
    if (input_ids.dtype !== "I64" || input_ids.data.length !== input_ids.shape[0] * input_ids.shape[1]) throw new Error("no ids");
    return load(readFileSync(`${process.argv[2]}/${dtype}.safetensors`));
  };
});

/** The program of a thread that copies large memories for memory-threads.ts. */
import { open } from "node:fs/promises";
import { parentPort } from "node:worker_threads";
import { CapsuleError } from "../../wire/errors.ts";
import { readDiff } from "./diff-format.ts";
import { type DiffState, DiffWriter } from "./diff-writer.ts";
import type { Call, LoadTask, Reply, SaveTask, SentError } from "./memory-threads.ts";
import { copyPages, loadPages } from "./page-copy.ts";
import { openOf } from "./pagemap.ts";

parentPort?.on("message", async (call: Call) => {
  const { id } = call;
  const reply: Reply = await work(call).then(
    (state) => ({ id, state }),
    (error: unknown) => ({ id, error: describe(error) }),
  );
  parentPort?.postMessage(reply);
});

async function work(call: Call): Promise<DiffState | undefined> {
  if (call.kind === "save") return await save(call.task);
  await load(call.task);
  return undefined;
}

async function save({ process, mappings, base, path, from, state }: SaveTask): Promise<DiffState> {
  using memory = openOf(process, "mem", "r");
  await using writer = await DiffWriter.continue(path, base, state);
  await copyPages(process, mappings, memory, writer, { from });
  return await writer.state();
}

async function load({ process, mappings, memoryBytes, path, pieces }: LoadTask): Promise<void> {
  using memory = openOf(process, "mem", "r+");
  await using file = await open(path, "r");
  await loadPages(memory, mappings, file, await readDiff(file, memoryBytes), pieces);
}

function describe(error: unknown): SentError {
  const { code, message } = error as NodeJS.ErrnoException;
  return { isCapsuleError: error instanceof CapsuleError, code, message: message ?? String(error) };
}

/** Whether anything is started ahead of time. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { waitFor } from "../../../test/wait-for.ts";
import { WarmStarts } from "./warm-starts.ts";

test("nothing is made while nothing is to be kept ready, and then it is", async () => {
  let tried = 0;
  const find = async () => {
    tried++;
    throw new Error("there is no base here");
  };
  const launch = {
    ...{ paths: { data: "/nowhere", capsule: (id: string) => `/nowhere/${id}` }, templates: { find } },
    vmm: { hasWarmProcesses: false, onReplaced() {} },
  } as never;
  const key = { origin: { kind: "base", name: "minimal" }, shape: { vcpus: 1, memoryMb: 512 } } as const;
  const onFailure = () => {};
  let asked = 0;
  const memory = { isRising: () => false, isHigh: () => ++asked === 0 };
  const pool = { newId: () => "cl-1", budgetBytes: 1 << 30, minimum: { key, size: 1 }, onFailure };
  const warm = new WarmStarts(launch, { pool, processes: { maxCount: 0, budgetBytes: 0, onFailure } as never }, memory);
  warm.keep(false);
  warm.open();
  assert.deepEqual([warm.pool().target, tried, asked], [1, 0, 0], "what the memory allows is not asked");
  warm.keep(true);
  await waitFor("one is tried at the next look", () => tried > 0);
  await warm.close();
});

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { readCapsule, readVm, removeVm, writeVm } from "./capsule-folder.ts";
import { Paths } from "./paths.ts";
import { endAll, reapFolder, sweepLeftovers } from "./reaper.ts";

let paths: Paths;
beforeEach(() => {
  paths = new Paths(mkdtempSync(join(tmpdir(), "reaper-")));
  for (const folder of [paths.capsules, paths.work]) mkdirSync(folder);
});
afterEach(() => rmSync(paths.data, { recursive: true }));

const process = { pid: 2 ** 22 + 1, startTicks: 1 };

/** A VMM with these VMs below the data folder; notes which it has ended. */
function vmmOf(...nonces: string[]) {
  const reaped: string[] = [];
  return {
    reaped,
    find: async () => [process],
    findBelow: async () => nonces.map((nonce) => ({ process, nonce })),
    reap: async (nonce: string) => void reaped.push(nonce),
  };
}

/** Journals as a power cut or a person may leave them. */
const damages: [name: string, content: string][] = [
  ["empty", ""],
  ["of NULs", "\0".repeat(106)],
  ["cut off", '{\n "nonce": "ab'],
  ["no object", "null"],
  ["without a process", '{"nonce": "ab"}'],
  ["with half a process", '{"nonce": "ab", "process": {"pid": 7}}'],
];

for (const [name, content] of damages) {
  test(`a journal that is ${name} counts as none and is reported; VMs of other journals run on`, async () => {
    const [damaged, whole] = [paths.capsule("cl-damaged"), paths.capsule("cl-whole")];
    for (const folder of [damaged, whole]) mkdirSync(folder);
    writeFileSync(join(damaged, "vm.json"), content);
    await writeVm(whole, { nonce: "whole", process });
    const vmm = vmmOf("whole", "unnamed");
    const reports: string[] = [];
    await sweepLeftovers(vmm, paths, (folder) => reports.push(folder));
    assert.deepEqual(reports, [damaged]);
    assert.deepEqual(vmm.reaped, ["unnamed"]);
    assert.equal(await reapFolder(vmm, damaged), false);
    assert.equal(await readVm(damaged), undefined);
  });
}

test("what cannot be ended or removed is reported, and the rest is", async () => {
  const [stuck, whole] = ["stuck", "whole"].map((name) => join(paths.work, name)) as [string, string];
  mkdirSync(join(stuck, "vm.json"), { recursive: true });
  mkdirSync(whole);
  await writeVm(whole, { nonce: "whole", process });
  const { reaped, ...vmm } = vmmOf("lasting", "unnamed");
  const reap = async (nonce: string) => {
    if (nonce === "lasting") throw new Error("it does not end");
    reaped.push(nonce);
  };
  const reports: [string, string][] = [];
  await sweepLeftovers({ ...vmm, reap }, paths, (...report) => reports.push(report));
  assert.deepEqual(reaped, ["unnamed", "whole"]);
  assert.deepEqual(readdirSync(paths.work), ["stuck"]);
  const of = (folder: string) => reports.filter(([each]) => each === folder).map(([, why]) => why);
  assert.match(of(paths.data).join(), /it does not end/);
  assert.match(of(stuck).join(), /EISDIR|EPERM/);
});

test("files where folders should be are passed over", async () => {
  for (const folder of [paths.capsules, paths.work]) writeFileSync(join(folder, "stray"), "");
  const stray = join(paths.work, "stray");
  const vmm = vmmOf();
  await sweepLeftovers(vmm, paths, (folder) => assert.fail(folder));
  await endAll(vmm, paths);
  assert.deepEqual(vmm.reaped, []);
  assert.equal(await readCapsule(stray), undefined);
  await removeVm(stray);
});

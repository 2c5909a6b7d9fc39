import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { type Choice, chooseAccelerator } from "./accelerator.ts";
import { parseTimer, rate } from "./tsc.ts";

const folder = await mkdtemp(join(tmpdir(), "accelerator-"));
const memory = join(folder, "accelerator.json");
const device = join(folder, "kvm");
let boots = 0;

/** A measured rate is kept there, so that no test has to wait for a measurement. */
beforeEach(async () => {
  boots = 0;
  await writeFile(device, "");
  await remember({ kvm: null, tscKhz: 2_000_000 });
});
after(() => rm(folder, { recursive: true, force: true }));

async function remember(known: object): Promise<void> {
  const bootId = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  await writeFile(memory, JSON.stringify({ bootId, program: "qemu", version: "10.0.2", isJailed: false, ...known }));
}

function choose(choice: Partial<Choice> = {}) {
  const working = async () => {
    boots++;
  };
  return chooseAccelerator({
    program: "qemu",
    version: "10.0.2",
    wanted: "auto",
    memory,
    device,
    boots: working,
    ...choice,
  });
}

const failing = async () => {
  boots++;
  throw new Error("the guest printed one line and stopped");
};

test("KVM is used where the real kernel has booted on it, and that is found out once", async () => {
  const first = await choose();
  assert.deepEqual(first, { kind: "kvm", cpu: "host", tscKhz: null, why: `a VM booted with ${device}` });
  assert.deepEqual(await choose(), first);
  assert.equal(boots, 1);
});

test("where it has not, emulation is used, and says why", async () => {
  const first = await choose({ boots: failing });
  assert.equal(first.kind, "tcg");
  assert.equal(first.cpu, "max,-erms,-fsrm");
  assert.equal(first.tscKhz, 2_000_000);
  assert.match(first.why, /did not boot.*printed one line and stopped/);
  assert.deepEqual(await choose(), first);
  assert.equal(boots, 1);
});

test("without a device nothing is booted", async () => {
  assert.match((await choose({ device: join(folder, "none") })).why, /none does not exist/);
  assert.equal(boots, 0);
});

test("KVM that was asked for and does not work is an error; emulation that was asked for is not questioned", async () => {
  await assert.rejects(choose({ wanted: "kvm", boots: failing }), /KVM was asked for, and a VM did not boot/);
  assert.equal((await choose({ wanted: "tcg" })).why, "software emulation was asked for");
});

test("an answer does not outlive the machine's boot or another QEMU", async () => {
  const kvm = { works: false, why: "it was so then" };
  await remember({ bootId: "another", kvm });
  assert.equal((await choose()).kind, "kvm");
  await remember({ version: "9.0.0", kvm });
  assert.equal((await choose()).kind, "kvm");
  await writeFile(memory, "{damaged");
  assert.equal((await choose()).kind, "kvm");
  assert.equal(boots, 3);
});

test("the counter's rate is read out of two saved states", () => {
  const state = (ticks: bigint, clockNs: bigint) => {
    const body = Buffer.alloc(32);
    body.writeUInt32BE(2, 4);
    body.writeBigInt64BE(ticks, 8);
    body.writeBigInt64BE(clockNs, 24);
    return Buffer.concat([Buffer.from("QEVM\0\0\0\x03\x04\0\0\0\0\x05timer", "latin1"), body]);
  };
  const first = parseTimer(state(130_842_075n, 50_399_921n));
  const second = parseTimer(state(1_432_774_148n, 551_890_676n));
  assert.deepEqual(first, { ticks: 130_842_075n, clockNs: 50_399_921n });
  assert.equal(rate(first, second), 2_596_124);
  assert.throws(() => rate(first, first), /cannot be measured/);
  assert.throws(() => rate(second, { ticks: 0n, clockNs: second.clockNs + 1n }), /cannot be measured/);
  assert.throws(() => parseTimer(Buffer.from("QEVM and nothing else")), /no timer section/);
  assert.throws(() => parseTimer(Buffer.from("\x05timer\0\0")), /no timer section/);
});

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { type AcceleratorOptions, chooseAccelerator } from "./accelerator.ts";
import { parseTimer, rateKhz } from "./machine/tsc.ts";

const folder = await mkdtemp(join(tmpdir(), "accelerator-"));
const cacheFile = join(folder, "accelerator.json");
const device = join(folder, "kvm");
let boots = 0;

/** The cache holds a counter rate, so that no test waits for a measurement. */
beforeEach(async () => {
  boots = 0;
  await writeFile(device, "");
  await cache({ kvm: null, tscKhz: 2_000_000 });
});
after(() => rm(folder, { recursive: true, force: true }));

async function cache(known: object): Promise<void> {
  const bootId = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  await writeFile(cacheFile, JSON.stringify({ bootId, program: "qemu", version: "10.0.2", isJailed: false, ...known }));
}

function choose(options: Partial<AcceleratorOptions> = {}) {
  const working = async () => {
    boots++;
  };
  return chooseAccelerator({
    program: { version: "10.0.2", command: ["qemu"], readOnly: [] },
    wanted: "auto",
    cacheFile,
    device,
    probeDeadlineMs: 20_000,
    cpu: "host",
    features: async () => "sse2 vendor=A",
    rate: async () => 2_000_000,
    boots: working,
    ...options,
  });
}

const failing = async () => {
  boots++;
  throw new Error("the guest printed one line and stopped");
};

test("KVM is used after a boot on it succeeded, and the boot is tried once", async () => {
  const first = await choose();
  const why = `a VM booted with ${device}`;
  assert.deepEqual(first, { kind: "kvm", cpu: "host", cpuFeatures: "sse2 vendor=A", tscKhz: 2_000_000, why });
  assert.deepEqual(await choose({ features: async () => assert.fail("read again") }), first);
  assert.equal(boots, 1);
});

test("a named CPU model is probed by itself, and QEMU may leave out none of its features", async () => {
  await choose();
  assert.equal((await choose({ cpu: "EPYC-v4" })).cpuFeatures, undefined);
  assert.equal((await choose({ cpu: "EPYC-v4" })).cpu, "EPYC-v4,enforce");
  assert.equal(boots, 2);
  assert.equal((await choose({ cpu: "EPYC-v5", boots: failing })).kind, "tcg");
  assert.equal((await choose()).cpu, "host");
});

test("a boot that reached its deadline is not cached, and the next start tries again with its own deadline", async () => {
  const slow = (_: unknown, signal: AbortSignal) =>
    new Promise<void>((_, reject) => {
      boots++;
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  const first = await choose({ probeDeadlineMs: 20, boots: slow });
  assert.equal(first.kind, "tcg");
  assert.match(first.why, /did not boot.*within 0\.02 s.*CAPSULE_PROBE_DEADLINE_MS/);
  assert.equal((await choose()).kind, "kvm");
  assert.equal(boots, 2);
});

test("emulation is used when the boot fails, with the reason, and the next start tries again", async () => {
  const first = await choose({ boots: failing });
  assert.equal(first.kind, "tcg");
  assert.equal(first.cpu, "max,-erms,-fsrm");
  assert.equal(first.tscKhz, 2_000_000);
  assert.match(first.why, /did not boot.*printed one line and stopped/);
  assert.equal((await choose()).kind, "kvm");
  assert.equal(boots, 2);
});

for (const wanted of ["kvm", "tcg"] as const) {
  test(`the rate of the time stamp counter is measured once: ${wanted}`, async () => {
    await cache({ kvm: null, tscKhz: null });
    let measured = 0;
    const rate = async () => 2_400_000 + measured++;
    for (const _ of [1, 2]) assert.equal((await choose({ wanted, rate })).tscKhz, 2_400_000);
    assert.equal(measured, 1);
  });
}

test("KVM does without a rate that cannot be measured, and the next start measures again; emulation needs it", async () => {
  await cache({ kvm: null, tscKhz: null });
  const rate = async () => {
    throw new Error("QEMU has no TCG");
  };
  const chosen = await choose({ rate });
  assert.deepEqual([chosen.kind, chosen.cpuFeatures, chosen.tscKhz], ["kvm", "sse2 vendor=A", null]);
  assert.match(chosen.why, /^a VM booted with .*; the rate .* could not be measured: .*QEMU has no TCG$/);
  await assert.rejects(choose({ wanted: "tcg", rate }), /QEMU has no TCG/);
  const next = await choose();
  assert.deepEqual([next.tscKhz, next.why], [2_000_000, `a VM booted with ${device}`]);
});

test("a failure that the last release cached is not believed", async () => {
  await cache({ kvm: { works: false, why: "/dev/kvm cannot be opened (EACCES)" } });
  assert.equal((await choose()).kind, "kvm");
});

test("without the device no boot is tried, and with it the next start tries one", async () => {
  assert.match((await choose({ device: join(folder, "none") })).why, /none does not exist/);
  assert.equal(boots, 0);
  assert.equal((await choose()).kind, "kvm");
});

test("KVM that is required and does not work is an error; configured emulation boots nothing", async () => {
  await assert.rejects(choose({ wanted: "kvm", boots: failing }), /KVM was required, but a VM did not boot/);
  assert.equal((await choose({ wanted: "tcg" })).why, "software emulation was configured");
});

test("cached findings are ignored after a reboot, with another QEMU, or when damaged", async () => {
  const kvm = { works: true, why: "an earlier result" };
  await cache({ kvm });
  assert.equal((await choose()).why, kvm.why);
  assert.equal(boots, 0);
  await cache({ bootId: "another", kvm });
  assert.notEqual((await choose()).why, kvm.why);
  await cache({ version: "9.0.0", kvm });
  assert.notEqual((await choose()).why, kvm.why);
  await cache({ kvm });
  assert.notEqual(
    (await choose({ program: { version: "10.0.2", build: "b", command: ["qemu"], readOnly: [] } })).why,
    kvm.why,
  );
  await writeFile(cacheFile, "{damaged");
  assert.equal((await choose()).kind, "kvm");
  assert.equal(boots, 4);
});

test("the counter's rate is computed from two saved states", () => {
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
  assert.equal(rateKhz(first, second), 2_596_124);
  assert.throws(() => rateKhz(first, first), /cannot be measured/);
  assert.throws(() => rateKhz(second, { ticks: 0n, clockNs: second.clockNs + 1n }), /cannot be measured/);
  assert.throws(() => parseTimer(Buffer.from("QEVM and nothing else")), /no timer section/);
  assert.throws(() => parseTimer(Buffer.from("\x05timer\0\0")), /no timer section/);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Machine } from "../../vmm/vmm.ts";
import { isSameMachine, isSameRate, requireSameMachine } from "./machine-record.ts";

const machine: Machine = {
  ...{ qemu: "10.0.2", accelerator: "tcg", cpu: "max", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
};

test("another machine is refused with what differs", () => {
  requireSameMachine(machine, { ...machine }, "it");
  assert.throws(() => requireSameMachine(machine, { ...machine, qemu: "9.0.0" }, "capsule x"), {
    code: "conflict",
    message: "capsule x was saved on another machine: qemu 10.0.2 there, 9.0.0 here",
  });
  const other: Machine = { ...machine, accelerator: "kvm", devices: ["ports:2"], memoryMb: 256 };
  assert.throws(() => requireSameMachine(machine, other, "capsule x"), {
    code: "conflict",
    message: /: accelerator tcg there, kvm here; memoryMb 512 there, 256 here; devices ports:1 there, ports:2 here$/,
  });
});

test("a guest saved on one processor is refused by one with fewer features, and accepted by one with more", () => {
  const saved = { ...machine, cpu: "host", cpuFeatures: "avx sse vendor=A" };
  requireSameMachine(saved, { ...saved, cpuFeatures: "avx avx2 sse vendor=A" }, "it");
  requireSameMachine({ ...machine, cpu: "host" }, saved, "it, saved by an earlier release,");
  assert.throws(() => requireSameMachine(saved, { ...saved, cpuFeatures: "sse vendor=A" }, "capsule x"), {
    code: "conflict",
    message: "capsule x was saved on another machine: this machine's processor lacks avx",
  });
});

test("a guest is refused where the time stamp counter runs at a rate that differs by more than 250 ppm", () => {
  const saved = { ...machine, tscKhz: 2_000_000 };
  for (const tscKhz of [1_999_500, 2_000_000, 2_000_500]) {
    requireSameMachine(saved, { ...machine, tscKhz }, "it");
    assert.ok(isSameRate(saved.tscKhz, tscKhz));
  }
  requireSameMachine(machine, saved, "it, saved by an earlier release,");
  for (const tscKhz of [1_999_499, 2_000_501, 3_000_000]) {
    assert.throws(() => requireSameMachine(saved, { ...machine, tscKhz }, "capsule x"), {
      code: "conflict",
      message: `capsule x was saved on another machine: time stamp counter 2000000 kHz there, ${tscKhz} kHz here`,
    });
  }
});

test("only what could be restored both ways, by one build of QEMU, is the same machine", () => {
  const saved = { ...machine, qemuBuild: "a", tscKhz: 2_000_000 };
  assert.ok(isSameMachine(saved, { ...saved, tscKhz: 2_000_100 }));
  assert.ok(!isSameMachine(saved, { ...saved, qemuBuild: "b" }));
  assert.ok(!isSameMachine(saved, { ...saved, devices: ["ports:1", "net:1"] }));
});

/** Which build of QEMU and which accelerator a saved VM gets. */
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, test } from "node:test";
import { laterParts } from "../../../test/fakes/later-parts.ts";
import type { QemuProgram } from "../../vmm/machine/qemu-program.ts";
import type { Accelerator, Machine, VmSpec } from "../../vmm/vmm.ts";
import { writeCapsule } from "../disk/capsule-folder.ts";
import { requireSameMachine } from "../disk/machine-record.ts";
import { Paths } from "../disk/paths.ts";
import { lackedAccelerator, QemuVmms, type QemuVmmsOptions, trimQemuBuilds } from "./vmms.ts";

const kvm: Accelerator = { kind: "kvm", cpu: "host", cpuFeatures: "avx sse", tscKhz: null, why: "it booted" };
const tcg: Accelerator = { kind: "tcg", cpu: "max,-erms,-fsrm", tscKhz: 2_000_000, why: "no KVM" };

const programOf = (build: string, version: string): QemuProgram => ({
  ...{ build, version },
  command: [`/data/${build}/qemu`],
  readOnly: [],
});
const [old, installed, next] = [programOf("a", "10.0.2"), programOf("b", "10.0.3"), programOf("c", "10.0.4")];

/** Builds whose installed program a test replaces. */
class FakeBuilds {
  current: QemuProgram = installed;
  installed: QemuProgram = installed;
  find({ qemuBuild, qemu }: Pick<Machine, "qemu" | "qemuBuild">) {
    return [old, installed, next].find(({ build, version }) => build === qemuBuild || version === qemu);
  }
  async findSound(saved: Pick<Machine, "qemu" | "qemuBuild">) {
    return this.find(saved);
  }
  async refresh() {
    this.current = this.installed;
  }
  async requireKept() {}
  async trim() {
    return [];
  }

  async take(): Promise<void> {}
}

let builds: FakeBuilds;
let asked: string[];
let problems: string[];
let nowMs = 0;
/** A program whose CPU features cannot be read. */
let unreadable: QemuProgram | undefined;

beforeEach(() => {
  builds = new FakeBuilds();
  asked = [];
  problems = [];
  unreadable = undefined;
});

function vmmsOn(accelerator: Accelerator, more: Pick<QemuVmmsOptions, "parts"> = {}): QemuVmms {
  const features: NonNullable<QemuVmmsOptions["features"]> = async ([program]) => {
    asked.push(program);
    if (program === unreadable?.command[0]) throw new Error("QEMU did not start an empty machine");
    return program === old.command[0] ? "avx" : "avx sse";
  };
  const onProblem = (what: string, error: unknown) => problems.push(`${what}: ${String(error)}`);
  return new QemuVmms({ builds, accelerator, jail: undefined, onProblem, features, now: () => nowMs, ...more });
}

/** The machine of a VM that was saved on a host like this. */
function savedOn(accelerator: Accelerator, program: QemuProgram): Machine {
  builds.current = program;
  const machine = vmmsOn(accelerator).machine(1, 512);
  builds.current = installed;
  return machine;
}

async function requireRestorable(vmms: QemuVmms, saved: Machine): Promise<Machine> {
  const found = await vmms.closest(saved);
  requireSameMachine(saved, found, "it");
  return found;
}

describe("a saved VM", () => {
  test("is restored by the build that saved it; new ones run in the installed build", async () => {
    const vmms = vmmsOn(tcg);
    const found = await requireRestorable(vmms, savedOn(tcg, old));
    assert.deepEqual([found.qemu, found.qemuBuild], ["10.0.2", "a"]);
    assert.deepEqual([vmms.machine(1, 512).qemu, vmms.machine(1, 512).qemuBuild], ["10.0.3", "b"]);
  });

  test("of an earlier release is restored by a build of its version", async () => {
    const { qemuBuild: _, ...saved } = savedOn(tcg, old);
    assert.equal((await requireRestorable(vmmsOn(tcg), saved)).qemuBuild, "a");
    const lost = { ...saved, qemu: "9.2.0" };
    await assert.rejects(requireRestorable(vmmsOn(tcg), lost), {
      code: "conflict",
      message: "it was saved on another machine: qemu 9.2.0 there, 10.0.3 here",
    });
  });

  test("of emulation is restored under emulation where KVM works, and new ones run under KVM", async () => {
    const vmms = vmmsOn(kvm);
    const found = await requireRestorable(vmms, savedOn(tcg, old));
    assert.deepEqual([found.accelerator, found.cpu, found.qemuBuild], ["tcg", "max,-erms,-fsrm", "a"]);
    assert.equal(vmms.machine(1, 512).accelerator, "kvm");
    assert.ok(vmms.accelerates(found));
  });

  test("of KVM is refused where there is only emulation", async () => {
    const vmms = vmmsOn(tcg);
    const saved = savedOn(kvm, installed);
    assert.equal(vmms.accelerates(saved), false);
    assert.equal(vmms.accelerates(savedOn(tcg, installed)), true);
    await assert.rejects(requireRestorable(vmms, saved), {
      code: "conflict",
      message: /^it was saved on another machine: accelerator kvm there, tcg here/,
    });
    const spec = { name: "cl-1", machine: saved } as VmSpec;
    const restored = vmms.restore(spec, { state: "", memory: null }, () => assert.fail("started"));
    await assert.rejects(restored, { code: "conflict", message: "cl-1 needs QEMU 10.0.3 with kvm" });
  });

  test("of KVM needs the processor features that its own build shows, which are read once", async () => {
    const vmms = vmmsOn(kvm);
    await requireRestorable(vmms, { ...savedOn(kvm, old), cpuFeatures: "avx" });
    await assert.rejects(requireRestorable(vmms, { ...savedOn(kvm, old), cpuFeatures: "avx sse" }), /lacks sse/);
    await requireRestorable(vmms, savedOn(kvm, installed));
    assert.deepEqual(asked, old.command);
  });

  test("of an earlier release keeps its devices, and new ones get the newest", async () => {
    const saved = { ...savedOn(tcg, old), devices: ["ports:1"] };
    const vmms = vmmsOn(tcg, { parts: laterParts });
    assert.deepEqual((await requireRestorable(vmms, saved)).devices, ["ports:1"]);
    assert.deepEqual(vmms.machine(1, 512).devices, ["ports:1", "net:1", "later:1"]);
    const latest = await requireRestorable(vmms, { ...saved, devices: laterParts.newest });
    assert.deepEqual(latest.devices, laterParts.newest);
  });

  test("of a later release, with a device that this one does not know, is refused", async () => {
    const saved = { ...savedOn(tcg, installed), devices: laterParts.newest };
    await assert.rejects(requireRestorable(vmmsOn(tcg), saved), {
      code: "conflict",
      message: "it was saved on another machine: devices ports:1 net:1 later:1 there, ports:1 net:1 here",
    });
  });
});

test("after an upgrade new VMs run in the new build, and listeners are told once", async () => {
  const vmms = vmmsOn(tcg);
  let told = 0;
  vmms.onReplaced(() => told++);
  await vmms.refresh();
  assert.equal(told, 0);
  builds.installed = next;
  await Promise.all([vmms.refresh(), vmms.refresh()]);
  assert.equal(told, 1);
  assert.equal(vmms.machine(1, 512).qemuBuild, "c");
});

test("a new build whose CPU features cannot be read is reported once, and the copy in use stays", async () => {
  const vmms = vmmsOn(kvm);
  vmms.onReplaced(() => assert.fail("nothing was replaced"));
  [builds.installed, unreadable] = [next, next];
  await Promise.all([vmms.refresh(), vmms.refresh()]);
  await vmms.refresh();
  assert.equal(vmms.machine(1, 512).qemuBuild, "b");
  assert.deepEqual(problems, [
    "the installed QEMU was replaced, and the new one cannot be used: Error: QEMU did not start an empty machine",
  ]);
  assert.deepEqual(asked, next.command, "not at each create");
  await requireRestorable(vmms, savedOn(kvm, installed));
});

test("its features are read again later, and then it is taken into use", async () => {
  const vmms = vmmsOn(kvm);
  [builds.installed, unreadable] = [next, next];
  await vmms.refresh();
  nowMs += 60_000;
  await vmms.refresh();
  assert.deepEqual([vmms.machine(1, 512).qemuBuild, asked.length, problems.length], ["b", 2, 1]);
  nowMs += 60_000;
  unreadable = undefined;
  await vmms.refresh();
  assert.equal(vmms.machine(1, 512).qemuBuild, "c");
});

test("where that build has replaced a program that was no copy, no VM is made in it", async () => {
  const { build: _, ...inPlace } = installed;
  builds.current = inPlace;
  const vmms = vmmsOn(kvm);
  [builds.installed, unreadable] = [next, next];
  for (const _ of [1, 2]) await assert.rejects(vmms.refresh(), /did not start an empty machine/);
});

test("the machines of everything saved say which builds stay; all stay when a folder is damaged", async () => {
  const machines = [savedOn(tcg, installed), savedOn(tcg, old)];
  const trimmed: (readonly Machine[])[] = [];
  const trim = async (saved: readonly Machine[]) => {
    trimmed.push(saved);
    return ["a build"];
  };
  assert.deepEqual(await trimQemuBuilds({ machines, needed: new Set(), damaged: [] }, { trim }), ["a build"]);
  assert.deepEqual(trimmed, [machines]);
  const damaged = [{ folder: "capsules/cl-3", why: "it is empty" }];
  assert.deepEqual(await trimQemuBuilds({ machines, needed: new Set(), damaged }, { trim }), []);
  assert.equal(trimmed.length, 1);
});

test("an accelerator is missed when most capsules and templates were saved under it", async (t) => {
  const paths = new Paths(mkdtempSync(join(tmpdir(), "vmms-")));
  t.after(() => rmSync(paths.data, { recursive: true }));
  paths.create();
  const add = async (id: string, machine: Machine) => {
    mkdirSync(paths.capsule(id));
    const image = { name: "minimal", hash: "ab" };
    await writeCapsule(paths.capsule(id), { parent: "bases/b", parentSha256: null, image, machine });
  };
  await add("cl-1", savedOn(tcg, installed));
  await add("cl-2", savedOn(kvm, installed));
  assert.equal(await lackedAccelerator(paths, vmmsOn(tcg)), undefined, "one of two");
  await add("cl-3", savedOn(kvm, old));
  mkdirSync(paths.capsule("cl-4"));
  writeFileSync(join(paths.capsule("cl-4"), "capsule.json"), "damaged");
  assert.equal(await lackedAccelerator(paths, vmmsOn(tcg)), "2 of 3 capsules and templates need KVM");
  assert.equal(await lackedAccelerator(paths, vmmsOn(kvm)), undefined);
});

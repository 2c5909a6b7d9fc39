/** The line about KVM for each state of a machine in which it is not used. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { test } from "node:test";
import { noJail } from "../vmm/jail/jail.ts";
import { type Engine, type KvmState, kvmState, weaknessesOf } from "./engine.ts";

const jailed: Engine = {
  accelerator: "tcg",
  accelerator_reason: "a VM did not boot with /dev/kvm: Could not access KVM kernel module",
  jail: { mode: "full", missing: [] },
};
const kvmGroup = { mode: 0o20660, gid: 104 };
const usual: KvmState = { wanted: "auto", device: kvmGroup, hasVirtualization: true, isRoot: true };

const said = (engine: Partial<Engine>, state: Partial<KvmState>) =>
  weaknessesOf({ ...jailed, ...engine }, { ...usual, ...state }).map(({ word, text }) => `${word}: ${text}`);

const opened = "sudo groupadd --system --force kvm && sudo chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm";

test("a device that only root may open is named with its mode, and the commands that open it to the VMs", () => {
  for (const mode of [0o20600, 0o20640, 0o20604]) {
    const shown = (mode & 0o777).toString(8);
    assert.deepEqual(said({}, { device: { mode, gid: 0 } }), [
      `slow: KVM is not used: the users of the VMs may not open /dev/kvm (mode ${shown}, group 0); ${opened}`,
    ]);
  }
  const unusable = { device: { mode: 0o20600, gid: 104 }, isRoot: false };
  assert.match(said({ accelerator_reason: "/dev/kvm cannot be opened (EACCES)" }, unusable)[0]!, /chmod 660/);
});

test("root's group is not opened to the VMs, though the device would be", () => {
  assert.match(said({}, { device: { mode: 0o20660, gid: 0 } })[0]!, /sudo chgrp kvm \/dev\/kvm/);
});

test("a user outside of the device's group is told how to join it", () => {
  const denied = { accelerator_reason: "/dev/kvm cannot be opened (EACCES)" };
  assert.deepEqual(said(denied, { isRoot: false }), [
    'slow: KVM is not used: this user is not in the group of /dev/kvm; sudo usermod -aG kvm "$USER", then sign in again',
  ]);
});

test("each command that a line gives stands on the page about KVM", () => {
  const page = readFileSync(resolve(import.meta.dirname, "../../docs/KVM.md"), "utf8");
  const denied = { accelerator_reason: "/dev/kvm cannot be opened (EACCES)" };
  const lines = [
    ...said({}, { device: { mode: 0o20600, gid: 0 } }),
    ...said(denied, { isRoot: false }),
    ...said({}, { device: undefined }),
  ];
  const commands = lines.flatMap((line) => line.split(/; | && |, then/).filter((part) => part.startsWith("sudo ")));
  assert.equal(commands.length, 5);
  for (const command of commands) assert.ok(page.includes(command), command);
});

test("without a device it depends on the processor", () => {
  assert.deepEqual(said({}, { device: undefined }), [
    "slow: KVM is not used: /dev/kvm does not exist; sudo modprobe kvm_intel || sudo modprobe kvm_amd",
  ]);
  assert.deepEqual(said({}, { device: undefined, hasVirtualization: false }), [
    "slow: KVM is not used: the processor offers no virtualization to this system; see docs/KVM.md",
  ]);
});

test("a device that opens and boots no VM has the probe's reason, on one line", () => {
  const accelerator_reason = `a VM did not boot with /dev/kvm: no answer within 20 s\nand ${"more ".repeat(100)}`;
  for (const device of [kvmGroup, { mode: 0o20666, gid: 0 }]) {
    const [line = "", ...others] = said({ accelerator_reason }, { device });
    assert.match(
      line,
      /^slow: KVM is not used: a VM did not boot with \/dev\/kvm: no answer within 20 s and more .*; see docs\/KVM\.md$/,
    );
    assert.ok(line.length < 300 && others.length === 0, line);
  }
});

test("emulation that was configured names its setting", () => {
  assert.deepEqual(said({}, { wanted: "tcg" }), ["slow: KVM is not used: CAPSULE_ACCELERATOR is tcg; unset it"]);
});

test("what the jail lacks is a warning, with KVM too; nothing is said where nothing is missing", () => {
  assert.deepEqual(said({ accelerator: "kvm" }, {}), []);
  const jail = { ...jailed.jail, missing: ["control groups v2 (boot with them)"] };
  assert.deepEqual(said({ accelerator: "kvm", jail }, {}), [
    "warning: VMs run without control groups v2 (boot with them)",
  ]);
  assert.deepEqual(said({ accelerator: "kvm", jail: noJail }, {}).length, noJail.missing.length);
});

test("the state of this machine can be read", () => {
  const { wanted, hasVirtualization } = kvmState("auto");
  assert.deepEqual([wanted, typeof hasVirtualization], ["auto", "boolean"]);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { laterParts, laterSocketName } from "../../../test/fakes/later-parts.ts";
import type { Machine, VmSpec } from "../vmm.ts";
import { parts } from "./parts.ts";
import { kernelOptions, namesVm, nonceBelow, qemuArgs, socketsOf, stateFdOf } from "./qemu-args.ts";

const tcg: Machine = {
  qemu: "10.0.2",
  accelerator: "tcg",
  cpu: "max,-erms,-fsrm",
  devices: ["ports:1"],
  vcpus: 2,
  memoryMb: 512,
};
const kvm: Machine = { ...tcg, accelerator: "kvm", cpu: "host", vcpus: 1 };

function specOf(machine: Machine): VmSpec {
  const files = {
    dir: "/data/capsules/cl-1",
    memory: "/data/bases/b/memory",
    disk: "/data/capsules/cl-1/disk.qcow2",
    backing: ["/data/images/minimal/root.ext4"],
    kernel: "/data/images/minimal/kernel",
    initrd: "/data/images/minimal/initrd",
  };
  return { name: "cl-1", nonce: "0123abcd", machine, files };
}

/** The whole of it: a change here is a change of the machine, and needs another part or another version of one. */
const bootedUnderTcg = `
-name guest=cl-1 nonce=0123abcd dir=/data/capsules/cl-1,process=qemu-system-x86,debug-threads=on
-no-user-config
-nodefaults
-display none
-machine microvm,memory-backend=ram,acpi=on,pic=off,mem-merge=off,dump-guest-core=off,suppress-vmdesc=on
-global migration.send-configuration=off
-accel tcg,thread=multi,tb-size=128
-cpu max,-erms,-fsrm
-rtc base=utc,clock=vm
-smp cpus=2,sockets=1,cores=2,threads=1,maxcpus=2
-m size=512M
-object memory-backend-file,id=ram,size=512M,mem-path=/data/bases/b/memory,share=off,readonly=on,rom=off
-kernel /data/images/minimal/kernel
-initrd /data/images/minimal/initrd
-append console=ttyS0 quiet panic=-1 reboot=t cryptomgr.notests no5lvl psi=0 lsm=lockdown,landlock,yama nowatchdog sysctl.vm.compaction_proactiveness=0 mitigations=off tsc=reliable tsc_early_khz=2596128
-chardev ringbuf,id=console,size=65536
-serial chardev:console
-chardev socket,id=agent,fd=3,server=on,wait=off
-device virtio-serial-device,max_ports=2
-device virtserialport,chardev=agent,name=capsule.agent
-blockdev {"driver":"qcow2","node-name":"layer","discard":"unmap","detect-zeroes":"unmap","file":{"driver":"file","filename":"/data/capsules/cl-1/disk.qcow2","discard":"unmap"}}
-blockdev {"driver":"raw","node-name":"disk","discard":"unmap","file":"layer"}
-device virtio-blk-device,drive=disk
-chardev socket,id=qmp,fd=4,server=on,wait=off
-mon chardev=qmp,mode=control
-action reboot=shutdown,shutdown=pause
-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
`;

/** One option a line, as above. */
function lines(args: string[]): string[] {
  const options: string[] = [];
  for (const arg of args) {
    if (/^-[a-zA-Z]/.test(arg)) options.push(arg);
    else options[options.length - 1] += ` ${arg}`;
  }
  return options;
}

const expected = bootedUnderTcg.trim().split("\n");

test("a VM booted under software emulation", () => {
  assert.deepEqual(lines(qemuArgs({ spec: specOf(tcg), tscKhz: 2_596_128, isIncoming: false })), expected);
});

test("a restored VM is the same machine, stopped, without a kernel to load", () => {
  const args = lines(qemuArgs({ spec: specOf(tcg), tscKhz: 2_596_128, isIncoming: true }));
  const withoutKernel = expected.filter((line) => !/^-(kernel|initrd|append)/.test(line));
  assert.deepEqual(args, [...withoutKernel, "-S", "-incoming defer"]);
});

test("a warm process has the machine of a restored VM, with a placeholder instead of its disk layer", () => {
  const restored = lines(qemuArgs({ spec: specOf(tcg), tscKhz: 1, isIncoming: true }));
  const warm = lines(qemuArgs({ spec: specOf(tcg), tscKhz: 1, isIncoming: true, placeholderDiskBytes: 4_096 }));
  assert.deepEqual(
    warm.filter((line, index) => line !== restored[index]),
    [
      '-blockdev {"driver":"null-co","node-name":"nothing","read-zeroes":true,"size":4096}',
      '-blockdev {"driver":"raw","node-name":"disk","discard":"unmap","file":"nothing"}',
    ],
  );
});

test("a warm process that warms its translations has qtest besides, invisible to its guest", () => {
  const launch = { spec: specOf(tcg), tscKhz: 1, isIncoming: true, placeholderDiskBytes: 4_096 };
  const [plain, warming] = [lines(qemuArgs(launch)), lines(qemuArgs({ ...launch, warmsTranslations: true }))];
  assert.deepEqual(
    warming.filter((line) => !plain.includes(line)),
    ["-chardev socket,id=qtest-port,fd=5,server=on,wait=off", "-object qtest,id=qtest,chardev=qtest-port,log=none"],
  );
  assert.deepEqual(
    plain.filter((line) => !warming.includes(line)),
    [],
  );
});

test("new machines have the parts that are tested here", () =>
  assert.deepEqual(parts.newest, [...tcg.devices, "net:1"]));

test("a VM with a network has a second port on the serial device, and nothing else more", () => {
  const launch = { tscKhz: 1, isIncoming: true };
  const [without, withNetwork] = [["ports:1"], ["ports:1", "net:1"]].map((devices) =>
    lines(qemuArgs({ ...launch, spec: specOf({ ...tcg, devices }) })),
  );
  assert.deepEqual(
    withNetwork!.filter((line) => !without!.includes(line)),
    [
      "-device virtio-serial-device,max_ports=3",
      "-chardev socket,id=net,fd=4,server=on,wait=off",
      "-device virtserialport,chardev=net,name=capsule.net",
      "-chardev socket,id=qmp,fd=5,server=on,wait=off",
    ],
  );
  assert.ok(without!.includes("-device virtio-serial-device,max_ports=2"));
  assert.equal(withNetwork!.length, without!.length + 2);
});

test("a release with later parts restores a VM with exactly the arguments it was saved with", () => {
  const launch = { spec: specOf(tcg), tscKhz: 1, isIncoming: true };
  assert.deepEqual(qemuArgs({ ...launch, parts: laterParts }), qemuArgs(launch));
});

test("a VM of a later part has its device, and each socket the descriptor of its place", () => {
  const spec = specOf({ ...tcg, devices: laterParts.newest });
  const launch = { spec, tscKhz: 1, isIncoming: true, warmsTranslations: true, parts: laterParts };
  const earlier = lines(qemuArgs({ ...launch, spec: specOf(tcg) }));
  assert.deepEqual(
    lines(qemuArgs(launch)).filter((line) => !earlier.includes(line)),
    [
      "-device virtio-serial-device,max_ports=4",
      "-chardev socket,id=net,fd=4,server=on,wait=off",
      "-device virtserialport,chardev=net,name=capsule.net",
      "-chardev socket,id=later,fd=5,server=on,wait=off",
      "-device virtserialport,chardev=later,name=capsule.later",
      "-chardev socket,id=qmp,fd=6,server=on,wait=off",
      "-chardev socket,id=qtest-port,fd=7,server=on,wait=off",
    ],
  );
  assert.deepEqual(socketsOf(launch), ["agent.sock", "net.sock", laterSocketName, "qmp.sock", "qtest.sock"]);
  assert.equal(stateFdOf({ ...launch, warmsTranslations: false }), 7);
});

test("a VM of an unknown part is not started", () => {
  const spec = specOf({ ...tcg, devices: ["ports:1", "constructor"] });
  assert.throws(() => qemuArgs({ spec, tscKhz: 1, isIncoming: true }), /there is no part "constructor"/);
});

test("a VM booted under KVM differs in accelerator, processor and clock only", () => {
  const args = lines(qemuArgs({ spec: specOf(kvm), tscKhz: null, isIncoming: false }));
  assert.deepEqual(
    args.filter((line, index) => line !== expected[index]),
    [
      "-accel kvm",
      "-cpu host",
      "-smp cpus=1,sockets=1,cores=1,threads=1,maxcpus=1",
      "-append console=ttyS0 quiet panic=-1 reboot=t cryptomgr.notests no5lvl psi=0 lsm=lockdown,landlock,yama nowatchdog sysctl.vm.compaction_proactiveness=0",
    ],
  );
});

test("a QEMU before 8.2 gets no unknown option", () => {
  const args = lines(qemuArgs({ spec: specOf({ ...tcg, qemu: "7.2.22" }), tscKhz: 1, isIncoming: false }));
  assert.ok(args.includes("-object memory-backend-file,id=ram,size=512M,mem-path=/data/bases/b/memory,share=off"));
});

test("commas in paths do not become options", () => {
  const spec = specOf(tcg);
  spec.files.memory = "/a,readonly=off/memory";
  spec.files.dir = "/a,b";
  const args = qemuArgs({ spec, tscKhz: null, isIncoming: false });
  assert.ok(args.some((arg) => arg.includes("mem-path=/a,,readonly=off/memory,share=off")));
  assert.equal(args[1], "guest=cl-1 nonce=0123abcd dir=/a,,b,process=qemu-system-x86,debug-threads=on");
});

test("only the nonce in -name identifies a VM", () => {
  const args = ["qemu-system-x86_64", ...qemuArgs({ spec: specOf(tcg), tscKhz: null, isIncoming: true }), ""];
  assert.ok(namesVm(args, "0123abcd"));
  assert.ok(namesVm(["bwrap", "--unshare-all", ...args], "0123abcd"), "inside a jail's command line too");
  for (const other of ["0123abc", "123abcd", "", "x"]) assert.ok(!namesVm(args, other), `nonce "${other}"`);
  assert.ok(!namesVm(["grep", " nonce=0123abcd "], "0123abcd"));
  assert.ok(!namesVm(["-name"], "0123abcd"));
  assert.ok(!namesVm([], "0123abcd"));
});

test("a kernel panic ends the VM at once, by a reset that QEMU reports", () => {
  assert.match(kernelOptions("tcg"), /\bpanic=-1\b.*\breboot=t\b/);
});

test("a VM is found by its data folder, even when its own folder was removed", () => {
  const nonce = "0123456789abcdef0123456789abcdef";
  const args = ["-name", `guest=cl-x nonce=${nonce} dir=/data/one/capsules/cl-x,debug-threads=on`];
  assert.equal(nonceBelow(args, "/data/one"), nonce);
  for (const other of ["/data/on", "/data/one/capsules/cl-x/y", "/data/two"])
    assert.equal(nonceBelow(args, other), null);
  assert.equal(nonceBelow(["-name", "guest=x"], "/data/one"), null);
  assert.equal(nonceBelow([], "/data/one"), null);
});

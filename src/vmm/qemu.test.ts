/**
 * Real VMs: the built image and the agent in it, on whatever this machine has. One VM is booted and saved; every test
 * starts from there, as capsules do.
 */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync, readlinkSync } from "node:fs";
import { cp, mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { laterParts } from "../../test/fakes/later-parts.ts";
import { saveMemory } from "../../test/save-memory.ts";
import { within } from "../../test/wait-for.ts";
import type { Agent } from "../agent/agent.ts";
import { connectAgent } from "../agent/connection.ts";
import { type Image, loadImage } from "../host/images/images.ts";
import { withoutCpuCommon } from "./device-state.ts";
import { Jail } from "./jail/jail.ts";
import { canWarmTranslations } from "./machine/qemu-args.ts";
import { installedProgram, type QemuProgram } from "./machine/qemu-program.ts";
import { measureTscKhz } from "./machine/tsc.ts";
import { flattenMemory } from "./memory/base-memory.ts";
import { endProcess, findByNonce } from "./process.ts";
import { emptyOverlay } from "./qcow2.ts";
import { Qemu } from "./qemu.ts";
import { Qmp } from "./qmp.ts";
import { saveVm } from "./vm-save.ts";
import type { SavedVm, Vm, VmSpec, WarmProcess } from "./vmm.ts";

const dataDir = process.env.CAPSULE_DATA ?? join(import.meta.dirname, "../../.capsule");
const cpu = "max,-erms,-fsrm";
const memoryMb = 256;
const uids = { first: 1_900_000_000, last: 1_900_000_999 };
const bootMs = 300_000;
const answerMs = 120_000;

let folder = "";
let image: Image;
let program: QemuProgram;
let vmm: Qemu;
/** By vcpus. */
const bases = new Map<number, Promise<Base>>();
const nonces: string[] = [];

interface Base {
  state: string;
  memory: string;
  disk: string;
}

type Saved = SavedVm & { memory: string };

interface Running {
  vm: Vm;
  agent: Agent;
}

before(async () => {
  image = loadImage(dataDir, "minimal"); // says what to do when it is missing
  await mkdir(join(dataDir, "work"), { recursive: true });
  folder = await mkdtemp(join(dataDir, "work", "vmm-test-"));
  program = await installedProgram("qemu-system-x86_64");
  const accelerator = { kind: "tcg", cpu, tscKhz: await measureTscKhz(program.command), why: "tests" } as const;
  vmm = new Qemu({ program, accelerator, jail: await Jail.open({ uids }) });
});

after(async () => {
  for (const nonce of nonces) for (const process of await findByNonce(nonce)) await endProcess(process);
  if (folder !== "") await rm(folder, { recursive: true, force: true });
});

async function specOf(name: string, memory: string, vcpus: number): Promise<VmSpec> {
  const dir = join(folder, name);
  await mkdir(dir, { recursive: true });
  const nonce = crypto.randomUUID();
  nonces.push(nonce);
  const files = {
    dir,
    memory,
    disk: join(dir, "disk"),
    backing: [image.root],
    kernel: image.kernel,
    initrd: image.initrd,
  };
  return { name, nonce, machine: vmm.machine(vcpus, memoryMb), files };
}

function baseOf(vcpus: number): Promise<Base> {
  const base = bases.get(vcpus) ?? makeBase(vcpus);
  bases.set(vcpus, base);
  return base;
}

async function makeBase(vcpus: number): Promise<Base> {
  const zero = join(folder, `zero-${vcpus}`);
  await writeFile(zero, "");
  await truncate(zero, memoryMb << 20);
  const spec = await specOf(`base-${vcpus}`, zero, vcpus);
  const { dir, disk } = spec.files;
  const backingFile = relative(dir, image.root); // true in every folder beside this one
  const overlay = { sizeBytes: image.diskBytes, backingFile, backingFormat: "raw" } as const;
  await writeFile(disk, emptyOverlay(overlay));
  const vm = await vmm.boot(spec, () => {});
  const agent = await connectAgent(vm.agentSocket, { deadlineMs: bootMs }).catch(async (cause: unknown) => {
    throw new Error(`The guest did not come up; ${await vm.state()}, and it printed: ${await vm.console()}`, { cause });
  });
  agent.close();
  await vm.stop();
  const [state, diff, memory] = [join(dir, "state"), join(dir, "diff"), join(dir, "memory")];
  await saveVm(vm, { state, memory: diff });
  await vm.kill();
  await flattenMemory(zero, diff, memory);
  return { state, memory, disk };
}

/** A VM of its own, from the base. */
async function start(name: string, vcpus = 1): Promise<Running> {
  const base = await baseOf(vcpus);
  const spec = await specOf(name, base.memory, vcpus);
  await cp(base.disk, spec.files.disk);
  return wakeUp(spec, { state: base.state, memory: null });
}

async function wakeUp(spec: VmSpec, saved: SavedVm): Promise<Running> {
  const vm = await vmm.restore(spec, saved, () => {});
  assert.equal(await vm.state(), "stopped");
  await vm.resume();
  return { vm, agent: await awake(vm) };
}

async function awake(vm: Vm): Promise<Agent> {
  const agent = await connectAgent(vm.agentSocket, { deadlineMs: answerMs });
  await agent.wake({ entropy: crypto.getRandomValues(new Uint8Array(64)), hostname: "t", machineId: "a".repeat(32) });
  await agent.thaw();
  return agent;
}

/** Standard output of a shell command in the guest, which must succeed. */
async function shell(agent: Agent, script: string): Promise<string> {
  const output: Uint8Array[] = [];
  const exit = await new Promise<{ exitCode: number }>((resolve, reject) => {
    const stream = agent.run(
      { cmd: "/bin/sh", args: ["-c", script] },
      {
        started() {},
        output(_channel, chunk) {
          output.push(Buffer.from(chunk)); // ours only until we return
          stream.consumed(chunk.length);
        },
        exited: resolve,
        failed: reject,
      },
    );
  });
  const text = Buffer.concat(output).toString().trim();
  assert.equal(exit.exitCode, 0, text);
  return text;
}

describe("memory, disk and processes live through many saves and restores", { concurrency: true }, () => {
  for (const vcpus of [1, 2]) test(`${vcpus} vcpus`, () => livesThroughMany(vcpus));
});

async function livesThroughMany(vcpus: number): Promise<void> {
  let { vm, agent } = await start(`cycles-${vcpus}`, vcpus);
  assert.equal(await shell(agent, "nproc"), String(vcpus));
  const { pid } = await agent.start({ cmd: "/bin/sleep", args: ["100000"] });
  let saved: Base | undefined;
  let seen = "";
  for (let cycle = 0; cycle < 5; cycle++) {
    seen = await shell(
      agent,
      `dd if=/dev/urandom bs=1M count=${1 + 2 * cycle} of=/dev/shm/m status=none; cp /dev/shm/m /root/d${cycle}
       kill -0 ${pid} && cat /dev/shm/m /root/d* | sha256sum`,
    );
    agent.close();
    await vm.stop();
    const { dir, disk } = vm.spec.files;
    saved = { state: join(dir, `state-${cycle}`), memory: join(dir, `diff-${cycle}`), disk: join(dir, "disk-copy") };
    await saveVm(vm, saved);
    await vm.kill();
    await cp(disk, saved.disk);
    const spec = { ...vm.spec, nonce: crypto.randomUUID() };
    nonces.push(spec.nonce);
    ({ vm, agent } = await wakeUp(spec, saved));
    assert.equal(await shell(agent, `kill -0 ${pid} && cat /dev/shm/m /root/d* | sha256sum`), seen, `cycle ${cycle}`);
  }
  await shell(agent, "rm /root/d* /dev/shm/m; sync");
  agent.close();
  await vm.kill();
  await cp(saved!.disk, vm.spec.files.disk);
  ({ vm, agent } = await wakeUp(vm.spec, saved!));
  assert.equal(await shell(agent, "cat /dev/shm/m /root/d* | sha256sum"), seen, "the same saved state a second time");
  agent.close();
  await vm.kill();
  assert.deepEqual(
    (await readdir(vm.spec.files.dir)).filter((name) => name.endsWith(".sock") || name === "devices"),
    [],
  );
}

test("a VM can be resumed after a save, and after one that was not completed", async () => {
  const { vm, agent } = await start("unsaved");
  const { dir } = vm.spec.files;
  await saveVm(vm, { state: join(dir, "state"), memory: join(dir, "diff") });
  assert.equal(await vm.state(), "stopped");
  await vm.resume();
  assert.equal(await shell(agent, "echo still here"), "still here");
  {
    await using unsaved = vm.openSave({ state: join(dir, "s"), memory: join(dir, "m") });
    await unsaved.prepare();
  }
  assert.equal(await vm.state(), "running");
  assert.deepEqual(
    (await readdir(dir)).filter((name) => name === "s" || name === "m"),
    [],
  );
  agent.close();
  await vm.kill();
  await vm.kill();
});

test("an emulated kernel disables features that capsules do not use", async () => {
  const { vm, agent } = await start("lean");
  const modules = "mount -t securityfs none /mnt && cat /mnt/lsm && umount /mnt";
  assert.equal(await shell(agent, modules), "lockdown,capability,landlock,yama");
  assert.match(await shell(agent, "cat /sys/devices/system/cpu/vulnerabilities/spectre_v2"), /^Vulnerable/);
  assert.equal(await shell(agent, "ls -d /proc/pressure 2>/dev/null || echo none"), "none");
  agent.close();
  await vm.kill();
});

test("a VM outlives the process that started it and is adopted by the next one", async () => {
  const { vm, agent } = await start("adopted");
  await shell(agent, "echo remembered > /dev/shm/note");
  agent.close();
  vm.detach();
  const script = `
    import { Qemu } from ${JSON.stringify(join(import.meta.dirname, "qemu.ts"))};
    const [options, spec, found] = JSON.parse(process.argv[1]);
    const vm = await new Qemu(options).adopt(spec, found);
    console.log(await vm.state());
    vm.detach();`;
  const options = { program, accelerator: { kind: "tcg", cpu, tscKhz: 1, why: "" } };
  const args = ["--input-type=module-typescript", "-e", script, JSON.stringify([options, vm.spec, vm.process])];
  const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: 120_000 });
  assert.equal(stdout.trim(), "running");

  assert.deepEqual(await vmm.find(vm.spec.nonce), [vm.process]);
  const earlier = { ...vm.process, startTicks: vm.process.startTicks - 1 };
  await assert.rejects(vmm.adopt(vm.spec, earlier), /is not the VM/);
  await assert.rejects(vmm.adopt({ ...vm.spec, nonce: "another" }, vm.process), /is not the VM/);
  const adopted = await vmm.adopt(vm.spec, vm.process);
  const again = await awake(adopted);
  assert.equal(await shell(again, "cat /dev/shm/note"), "remembered");
  again.close();
  adopted.detach();
  await vmm.reap("another", earlier);
  assert.deepEqual(await vmm.find(vm.spec.nonce), [vm.process]);
  await vmm.reap(vm.spec.nonce, vm.process);
  assert.deepEqual(await vmm.find(vm.spec.nonce), []);
});

test("the end of a killed QEMU is reported, also by an adopted VM", async () => {
  const { vm, agent } = await start("killed");
  agent.close();
  vm.detach();
  const adopted = await vmm.adopt(vm.spec, vm.process);
  process.kill(vm.process.pid, "SIGKILL");
  assert.deepEqual(await within("the end is reported", adopted.ended, { deadlineMs: answerMs }), { kind: "exited" });
  await adopted.kill();
});

for (const [how, key, kind] of [
  ["powers itself off", "o", "powered_off"],
  ["resets itself", "b", "reset"],
  ["panics", "c", "reset"],
] as const) {
  test(`a guest that ${how} is reported as such, now and by the next daemon`, async () => {
    const { vm, agent } = await start(`ends-${key}`);
    agent.run({ cmd: "/bin/sh", args: ["-c", `echo ${key} > /proc/sysrq-trigger`] }, silent);
    assert.deepEqual(await within("the end is reported", vm.ended, { deadlineMs: answerMs }), { kind });
    assert.equal(await vm.state(), "shutdown");
    agent.close();
    vm.detach();
    const adopted = await vmm.adopt(vm.spec, vm.process);
    assert.equal(await adopted.state(), "shutdown");
    assert.deepEqual(await adopted.ended, { kind });
    await adopted.kill();
  });
}

const silent = { started() {}, output() {}, exited() {}, failed() {} };

test("a start that fails leaves neither process nor file", async () => {
  const base = await baseOf(1);
  const spec = await specOf("failing", base.memory, 1);
  await cp(base.disk, spec.files.disk);
  const cold = { ...spec, files: { ...spec.files, kernel: "/no/such/kernel" } };
  await assert.rejects(
    vmm.boot(cold, () => {}),
    (error: Error) => /no\/such\/kernel/.test(String(error.cause)),
  );
  const strange = { ...spec, files: { ...spec.files, kernel: image.initrd } };
  await assert.rejects(
    vmm.boot(strange, () => {}),
    ({ cause }: Error) => /QEMU said: .*kernel/.test(String(cause)) && (cause as Error).cause === undefined,
  );
  await assert.rejects(
    vmm.restore(spec, { state: image.kernel, memory: null }, () => {}),
    /could not be restored/,
  );
  const damaged = { state: base.state, memory: image.kernel };
  await assert.rejects(
    vmm.restore(spec, damaged, () => {}),
    { code: "internal_error", message: /memory diff cannot be used: it is no memory diff/ },
  );
  const thrower = () => {
    throw new Error("the journal is full");
  };
  await assert.rejects(vmm.restore(spec, { state: base.state, memory: null }, thrower), /could not be restored/);
  assert.deepEqual(await vmm.find(spec.nonce), []);
  assert.deepEqual(await readdir(spec.files.dir), ["disk"]);
});

test("a signal ends a start, whose process is gone and whose folder is as before", async () => {
  const base = await baseOf(1);
  const spec = await specOf("aborted", base.memory, 1);
  await cp(base.disk, spec.files.disk);
  const abort = new AbortController();
  const onSpawn = () => abort.abort(new Error("no longer wanted"));
  await assert.rejects(
    vmm.restore(spec, { state: base.state, memory: null }, onSpawn, abort.signal),
    /no longer wanted/,
  );
  assert.deepEqual(await vmm.find(spec.nonce), []);
  assert.deepEqual(await readdir(spec.files.dir), ["disk"]);
});

/** A warm process on the base, with folders of its own. */
async function warmOf(name: string): Promise<WarmProcess> {
  const base = await baseOf(1);
  const spec = await specOf(name, base.memory, 1);
  const handoverDir = join(folder, `${name}-handover`);
  await mkdir(handoverDir);
  return vmm.startWarm({ ...spec, handoverDir }, () => {});
}

/** A VM with a folder and a disk layer, and no process. */
async function unstarted(name: string, disk: string, warm: WarmProcess): Promise<VmSpec> {
  const spec = await specOf(name, warm.spec.files.memory, 1);
  await cp(disk, spec.files.disk);
  return { ...spec, nonce: warm.spec.nonce };
}

const isRoot = process.getuid?.() === 0;

test("a warm process becomes the claimed VM, can be saved, and the VM is restored elsewhere", {
  skip: !isRoot,
}, async () => {
  const { vm, agent } = await start("before-warm");
  await shell(agent, "echo on disk > /root/file; sync; echo in memory > /dev/shm/note");
  agent.close();
  await vm.stop();
  const { dir, disk } = vm.spec.files;
  const saved = { state: join(dir, "state"), memory: join(dir, "diff") };
  await saveVm(vm, saved);
  await vm.kill();

  const warm = await warmOf("warm");
  const spec = await unstarted("claimed", disk, warm);
  const claimed = await warm.claim(spec, saved);
  assert.equal(await claimed.state(), "stopped");
  assert.deepEqual(await readdir(warm.spec.files.dir), []);
  assert.deepEqual(await readdir(join(folder, "warm-handover")), []);
  await claimed.resume();
  const inside = await awake(claimed);
  assert.equal(await shell(inside, "cat /root/file /dev/shm/note"), "on disk\nin memory");
  await shell(inside, "echo more >> /root/file; sync");
  inside.close();
  claimed.detach();
  await Promise.all([warm.spec.files.dir, join(folder, "warm-handover")].map((path) => rm(path, { recursive: true })));

  const adopted = await vmm.adopt(spec, warm.process);
  await adopted.stop();
  const again = { state: join(spec.files.dir, "state"), memory: join(spec.files.dir, "diff") };
  await saveVm(adopted, again);
  await adopted.kill();
  const last = await wakeUp(spec, again);
  assert.equal(await shell(last.agent, "cat /root/file /dev/shm/note"), "on disk\nmore\nin memory");
  last.agent.close();
  await last.vm.kill();
});

test("a failed claim ends the process and leaves the disk layer in place", { skip: !isRoot }, async () => {
  const base = await baseOf(1);
  const intact = { state: base.state, memory: null };
  const huge = join(folder, "huge-state");
  await writeFile(huge, Buffer.alloc(3 << 20, "\0"));
  for (const [what, saved, make] of [
    ["state", { ...intact, state: image.kernel }, warmOf],
    ["memory", { ...intact, memory: image.kernel }, warmOf],
    ["process", intact, warmOf],
    ["warmed-state", { ...intact, state: image.kernel }, warmedUp],
    ["warmed-huge-state", { ...intact, state: huge }, warmedUp],
    ["warmed-memory", { ...intact, memory: image.kernel }, warmedUp],
    ["warmed-process", intact, warmedUp],
  ] as const) {
    const warm = await make(`unlucky-${what}`);
    const spec = await unstarted(`unlucky-${what}-vm`, base.disk, warm);
    if (what.endsWith("process")) process.kill(warm.process.pid, "SIGKILL");
    await assert.rejects(warm.claim(spec, saved));
    assert.deepEqual(await vmm.find(warm.spec.nonce), []);
    assert.deepEqual(await readdir(spec.files.dir), ["disk"]);
    const { agent, vm } = await wakeUp(spec, intact);
    agent.close();
    await vm.kill();
  }
});

test("a signal ends a claim, whose process is gone and whose layer is in place", { skip: !isRoot }, async () => {
  const base = await baseOf(1);
  const warm = await warmOf("aborted-warm");
  const spec = await unstarted("aborted-claim", base.disk, warm);
  const abort = new AbortController();
  const claiming = warm.claim(spec, { state: base.state, memory: null }, abort.signal);
  abort.abort(new Error("no longer wanted"));
  await assert.rejects(claiming, /no longer wanted/);
  assert.deepEqual(await vmm.find(warm.spec.nonce), []);
  assert.deepEqual(await readdir(spec.files.dir), ["disk"]);
});

/** A warm process with warm translations: it has run commands as a VM of the base, on a layer of its own. */
async function warmedUp(name: string): Promise<WarmProcess> {
  const base = await baseOf(1);
  const warm = await warmOf(name);
  const layer = join(warm.spec.files.dir, "layer");
  await cp(base.disk, layer);
  await warm.warmTranslations({ state: base.state, memory: null }, layer, async (vm) => {
    await vm.resume();
    const agent = await awake(vm);
    await shell(agent, "cat /etc/hostname; echo warmed > /root/warm-up; sync; echo printed > /dev/console");
    agent.close();
    await vm.stop();
  });
  await rm(layer);
  return warm;
}

/** A saved VM in which this shell command has run. */
async function savedAfter(name: string, command: string): Promise<{ disk: string; saved: Saved }> {
  const { vm, agent } = await start(name);
  await shell(agent, command);
  agent.close(); // of which the guest is told by an interrupt
  await vm.stop();
  const { dir, disk } = vm.spec.files;
  const saved = { state: join(dir, "state"), memory: join(dir, "diff") };
  await saveVm(vm, saved);
  await vm.kill();
  return { disk, saved };
}

/** Blocks of guest code that a QEMU has translated. Its monitor accepts one connection at a time. */
async function translatedBlocks(vm: Vm): Promise<number> {
  const qmp = await Qmp.connect(join(vm.spec.files.dir, "qmp.sock"), () => {}, answerMs);
  const answer = (await qmp.command("x-query-jit")) as { "human-readable-text": string };
  qmp.close();
  return Number(/^TB count +(\d+)/m.exec(answer["human-readable-text"])![1]);
}

const tracing = "/sys/kernel/tracing";

/** Changes code: the kernel's own where files are opened, and what lies where programs were in memory before. */
const alter = `
mount -t tracefs tracefs ${tracing} && echo do_sys_openat2 > ${tracing}/set_ftrace_filter && echo function > ${tracing}/current_tracer
echo on disk > /root/file; sync; echo 3 > /proc/sys/vm/drop_caches
for each in 1 2 3; do python3 -c 'print(sum(range(1000)))' | sha256sum | awk '{print $1}' | sort | tail -n1 > /dev/shm/sums; done
`;

test("after a translation warm-up a claimed VM runs its own code and no stale translation", {
  skip: !isRoot,
}, async () => {
  const { disk, saved } = await savedAfter("altered", alter);
  const warm = await warmedUp("warmed");
  assert.ok(!warm.canWarmTranslations, "once");
  const spec = await unstarted("warmed-vm", disk, warm);
  const claimed = await warm.claim(spec, saved);
  assert.equal(await claimed.state(), "stopped");
  assert.equal(await claimed.console(), "", "the output of the warm-up is gone");
  assert.deepEqual(await readdir(warm.spec.files.dir), []);
  assert.deepEqual(await readdir(join(folder, "warmed-handover")), []);
  claimed.detach();
  const blocks = await translatedBlocks(claimed);
  assert.ok(blocks > 5_000, `${blocks} translated blocks are left of the warm-up`);
  const again = join(spec.files.dir, "again");
  await saveMemory(warm.process, spec.files.memory, memoryMb << 20, again);
  const wholes = [saved.memory, again].map((diff) => ({ diff, whole: `${diff}.whole` }));
  for (const { diff, whole } of wholes) await flattenMemory(spec.files.memory, diff, whole);
  await promisify(execFile)(
    "cmp",
    wholes.map(({ whole }) => whole),
  ); // throws where its memory is not what was saved

  const adopted = await vmm.adopt(spec, warm.process);
  await adopted.resume();
  const inside = await awake(adopted);
  const seen = await shell(
    inside,
    `: > ${tracing}/trace; cat /etc/hostname > /dev/null; grep -c do_sys_openat2 ${tracing}/trace`,
  );
  assert.ok(Number(seen) > 0, "the kernel runs the code that was changed since");
  assert.equal(await shell(inside, "cat /root/file; test -e /root/warm-up || echo none"), "on disk\nnone");
  const sums = "python3 -c 'print(sum(range(1000)))' | sha256sum | awk '{print $1}' | sort | tail -n1";
  assert.equal(await shell(inside, `${sums} | cmp - /dev/shm/sums && echo same`), "same");
  inside.close();

  await adopted.stop();
  const last = { state: join(spec.files.dir, "state"), memory: join(spec.files.dir, "diff") };
  await saveVm(adopted, last);
  await adopted.kill();
  const { vm, agent } = await wakeUp(spec, last);
  assert.equal(await shell(agent, "cat /root/file"), "on disk");
  agent.close();
  await vm.kill();
});

test("a VM with much memory of its own, or with a pending interrupt, can claim a process with warm translations", {
  skip: !isRoot,
}, async () => {
  const fill = "head -c 80M /dev/urandom > /dev/shm/much; sha256sum /dev/shm/much > /root/sum; sync";
  const { disk, saved } = await savedAfter("large", fill);
  const large = await readFile(saved.state);
  const interrupted = join(folder, "interrupted");
  const pending = 0x10; // that the processor shall look at its interrupt controller: more than it has to is harmless
  large.writeUInt32BE(pending, large.indexOf("cpu_common") + "cpu_common".length + 12);
  await writeFile(interrupted, large);
  for (const [name, state] of [
    ["large-claimed", saved.state],
    ["interrupted-claimed", interrupted],
  ] as const) {
    const warm = await warmedUp(name);
    const spec = await unstarted(`${name}-vm`, disk, warm);
    const claimed = await warm.claim(spec, { ...saved, state });
    claimed.detach();
    const blocks = await translatedBlocks(claimed);
    assert.ok(state === interrupted || blocks > 1_000, `${blocks} translated blocks are left of the warm-up`);
    const adopted = await vmm.adopt(spec, warm.process);
    await adopted.resume();
    const agent = await awake(adopted);
    assert.equal(await shell(agent, "sha256sum -c --quiet /root/sum && echo fine"), "fine", name);
    agent.close();
    await adopted.kill();
  }
});

test("a VM is saved outside of an interrupt", async () => {
  for (let each = 0; each < 3; each++) {
    const { saved } = await savedAfter(`idle-${each}`, "true");
    assert.ok(withoutCpuCommon(await readFile(saved.state)) !== undefined, `time ${each}`);
  }
});

test("a failed translation warm-up ends the process, and only suitable machines are warmed up", {
  skip: !isRoot,
}, async () => {
  const base = await baseOf(1);
  const warm = await warmOf("fails");
  const layer = join(warm.spec.files.dir, "layer");
  await cp(base.disk, layer);
  const playing = warm.warmTranslations({ state: base.state, memory: null }, layer, async () => {
    throw new Error("a command failed");
  });
  await assert.rejects(playing, /a command failed/);
  assert.deepEqual(await vmm.find(warm.spec.nonce), []);

  const { machine } = warm.spec;
  assert.ok(canWarmTranslations(machine));
  for (const other of [...[{ vcpus: 2 }, { memoryMb: 4_096 }, { accelerator: "kvm" as const }, { qemu: "7.2.22" }]])
    assert.ok(!canWarmTranslations({ ...machine, ...other }), JSON.stringify(other));
});

test("each VM runs in a jail with a user and namespaces of its own, and no process that built it is left", async () => {
  const [one, two] = [await start("jailed-1"), await start("jailed-2")];
  const statuses = [one, two].map(({ vm }) => readFileSync(`/proc/${vm.process.pid}/status`, "utf8"));
  const field = (status: string, name: string) => new RegExp(`^${name}:\\s+(\\S+)`, "m").exec(status)?.[1];
  for (const status of statuses) {
    assert.equal(field(status, "CapEff"), "0000000000000000");
    assert.equal(field(status, "NoNewPrivs"), "1");
    assert.equal(field(status, "Seccomp"), "2");
    assert.equal(field(status, "Seccomp_filters"), "2", "ours and QEMU's");
  }
  if (process.getuid?.() === 0) {
    const users = statuses.map((status) => Number(field(status, "Uid")));
    assert.ok(users.every((uid) => uid > uids.first && uid <= uids.last) && users[0] !== users[1], String(users));
  }
  for (const { vm, agent } of [one, two]) {
    for (const name of ["user", "mnt", "pid", "net", "ipc", "uts"]) {
      const [inside, outside] = [vm.process.pid, "self"].map((pid) => readlinkSync(`/proc/${pid}/ns/${name}`));
      assert.notEqual(inside, outside, name);
    }
    assert.deepEqual(await findByNonce(vm.spec.nonce), [vm.process], "QEMU, and no jailer");
    agent.close();
    await vm.kill();
  }
});

test("without a jail, a VM is the same VM", async () => {
  const accelerator = { kind: "tcg", cpu, tscKhz: null, why: "tests" } as const;
  const free = new Qemu({ program, accelerator });
  const base = await baseOf(1);
  const spec = await specOf("free", base.memory, 1);
  await cp(base.disk, spec.files.disk);
  const vm = await free.restore(spec, { state: base.state, memory: null }, () => {});
  await vm.resume();
  const agent = await awake(vm);
  assert.equal(await shell(agent, "echo free"), "free");
  agent.close();
  await vm.kill();
});

test("a release with later parts restores a saved VM as it was, and starts new ones with the later parts", async () => {
  const accelerator = { kind: "tcg", cpu, tscKhz: await measureTscKhz(program.command), why: "tests" } as const;
  const later = new Qemu({ program, accelerator, jail: await Jail.open({ uids }), parts: laterParts });
  const base = await baseOf(1);
  const ports = "cat /sys/class/virtio-ports/*/name | sort";
  const spec = await specOf("earlier-parts", base.memory, 1);
  await cp(base.disk, spec.files.disk);
  const earlier = await later.restore(spec, { state: base.state, memory: null }, () => {});
  await earlier.resume();
  const inside = await awake(earlier);
  assert.equal(await shell(inside, ports), "capsule.agent\ncapsule.net");
  inside.close();
  await earlier.kill();

  const newest = await specOf("later-parts", join(folder, "zero-1"), 1);
  await cp(base.disk, newest.files.disk);
  const vm = await later.boot({ ...newest, machine: later.machine(1, memoryMb) }, () => {});
  const booted = await connectAgent(vm.agentSocket, { deadlineMs: bootMs });
  booted.close();
  const agent = await awake(vm);
  assert.equal(await shell(agent, ports), "capsule.agent\ncapsule.later\ncapsule.net");
  for (const name of ["net.sock", "later.sock"]) assert.ok((await readdir(newest.files.dir)).includes(name));
  for (const each of [earlier, vm]) assert.ok(each.networkSocket?.endsWith("/net.sock"));
  agent.close();
  await vm.kill();
  assert.deepEqual(await readdir(newest.files.dir), ["disk"]);
});

test("a QEMU that has overwritten its command line is still ended by its journal", async () => {
  const { vm, agent } = await start("painted");
  agent.close();
  vm.detach();
  await vmm.reap("painted over", vm.process);
  assert.deepEqual(await vmm.find(vm.spec.nonce), process.getuid?.() === 0 ? [] : [vm.process]);
  await vmm.reap(vm.spec.nonce, vm.process);
  await vmm.reap(vm.spec.nonce, { ...vm.process, startTicks: 1 });
});

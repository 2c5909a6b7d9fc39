/**
 * Runs in a capsule, as root of a kernel with control groups v2: uses the host's own code and observes the kernel.
 * Prints one JSON object, which groups.test.ts checks outside.
 */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chownSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { memoryLeft } from "../../src/host/capacity/memory.ts";
import { Cgroups } from "../../src/vmm/jail/cgroups.ts";
import { Jail } from "../../src/vmm/jail/jail.ts";
import type { ProfileLimits } from "../../src/vmm/jail/jail-args.ts";
import { programFilesOf } from "../../src/vmm/jail/program-files.ts";
import { startTicksOf } from "../../src/vmm/process.ts";
import { QemuVm } from "../../src/vmm/qemu-vm.ts";
import { qmpSocketName } from "../../src/vmm/vm-folder.ts";
import { waitFor } from "../wait-for.ts";

const tree = "/sys/fs/cgroup";
const mib = 1 << 20;
const commandMs = 60_000;
const limits: ProfileLimits = { fileBytes: mib, dataBytes: 256 * mib, processes: 64, openFiles: 64, cpus: 3 };
const enough = { dataBytes: 128 * mib };
const tooLittle = { dataBytes: 48 * mib };
/** Takes 64 MiB, beside a second process of the same group that takes nothing. */
const eat = "sleep 1000 >/dev/null 2>&1 & exec dd if=/dev/zero of=/dev/null bs=64M count=1";
/** The same as shared anonymous memory, which per-process limits do not count. */
const eatShared = "import mmap\nm = mmap.mmap(-1, 64 << 20)\nfor i in range(64): m.write(bytes(1 << 20))";

type Limits = Partial<ProfileLimits>;

const path = (group: string, file = "") => join(tree, group, file);
const read = (group: string, file: string) => readFileSync(path(group, file), "utf8").trim();
const write = (group: string, file: string, text: string) => writeFileSync(path(group, file), text);
const isBusy = (group: string) => read(group, "cgroup.events").includes("populated 1");
const areThere = (...names: string[]) => names.filter((name) => existsSync(path("capsule", name)));

/** The value of a key in a group's file. */
function figure(group: string, file: string, name: string): number {
  return Number(new RegExp(`^${name} (\\d+)$`, "m").exec(read(group, file))?.[1]);
}

/** The command that runs a shell script in a new group. */
function command(groups: Cgroups, name: string, own: Limits, script: string): [string, string[]] {
  const [program = "", ...args] = groups.make(name, { ...limits, ...own });
  return [program, [...args, "/bin/sh", "-c", script]];
}

function begin(groups: Cgroups, name: string, own: Limits, script: string) {
  return spawn(...command(groups, name, own, script), { stdio: ["pipe", "ignore", "ignore"] });
}

/** A tree whose memory controller is not available is refused; one whose controllers were disabled enables them. */
function delegation() {
  write("", "cgroup.subtree_control", "-memory -cpu -io +pids");
  mkdirSync(path("poor"));
  const isPoorAccepted = Cgroups.open(true, { root: path("poor"), own: "/proc/self/cgroup" }) !== undefined;
  const groups = Cgroups.open(true);
  if (groups === undefined) throw new Error("the tree is not accepted");
  const enabled = ["", "capsule"].map((group) => read(group, "cgroup.subtree_control").split(" "));
  return { groups, facts: { isPoorAccepted, enabled } };
}

/** This process in the top group of a container, with the paths that it has inside. */
function container() {
  mkdirSync(path("container"));
  write("container", "cgroup.procs", String(process.pid));
  writeFileSync("/root/top", "0::/\n");
  Cgroups.open(true, { root: path("container"), own: "/root/top" })?.make("first", limits);
  const group = readFileSync("/proc/self/cgroup", "utf8").trim();
  write("", "cgroup.procs", String(process.pid));
  return { group, limit: outcome(() => read("container/capsule/first", "pids.max")) };
}

function appliedLimits(groups: Cgroups) {
  groups.make("limits", { ...limits, dataBytes: 1_610_612_736, processes: 98 });
  const files = ["memory.max", "memory.oom.group", "cpu.max", "pids.max", "io.weight"];
  const own = Object.fromEntries(files.map((file) => [file, read("capsule/limits", file)]));
  return { own, weightOfAll: read("capsule", "io.weight") };
}

/** Each eater is followed like a QEMU, so that its end is reported like a VM's. */
async function memory(groups: Cgroups) {
  const neighbour = begin(groups, "neighbour", tooLittle, "exec sleep 1000");
  const end = async (name: string, limits: Limits) => {
    const eater = begin(groups, name, limits, `read go; ${eat}`);
    const ended = once(eater, "exit");
    await waitFor(`${name} is in its group`, () => isBusy(`capsule/${name}`));
    await using vm = await followed(name, eater.pid!);
    eater.stdin!.end("go\n");
    const [status, signal] = await ended;
    const isGone = () => waitFor("the group is empty", () => !isBusy(`capsule/${name}`));
    const isSleeperGone = signal !== null && (await isGone().then(() => true, String));
    return { end: signal ?? status, isSleeperGone, reported: await vm.ended };
  };
  const [large, small] = [await end("large", enough), await end("small", tooLittle)];
  const isNeighbourAlive = neighbour.exitCode === null && neighbour.signalCode === null && isBusy("capsule/neighbour");
  return { large, small, isNeighbourAlive };
}

/** A process followed as a VM by the host's own code; its QMP socket sends a greeting and answers every command with success. */
async function followed(name: string, pid: number): Promise<AsyncDisposable & { ended: QemuVm["ended"] }> {
  const dir = join("/root", name);
  mkdirSync(dir);
  const monitor = createServer((socket) => {
    socket.on("error", () => {});
    socket.write('{"QMP":{}}\n');
    socket.on("data", (asked) => socket.write(`{"return":{},"id":${JSON.parse(asked.toString()).id}}\n`));
  });
  await once(monitor.listen(join(dir, qmpSocketName)), "listening");
  const machine = { qemu: "", accelerator: "tcg", cpu: "", devices: [], vcpus: 1, memoryMb: 512 } as const;
  const files = { dir, memory: "", disk: "", backing: [], kernel: "", initrd: "" };
  const vm = await QemuVm.connect({ name, nonce: "", machine, files }, { pid, startTicks: startTicksOf(pid)! });
  const dispose = async () => {
    vm.detach();
    monitor.close();
  };
  return { ended: vm.ended, [Symbol.asyncDispose]: dispose };
}

function processes(groups: Cgroups) {
  const forks = "while sleep 1000 >/dev/null 2>&1 & do echo made; done";
  const made = (name: string, most: number) => {
    const started = spawnSync(...command(groups, name, { processes: most }, forks), { timeout: commandMs });
    return started.stdout.toString().split("made").length - 1;
  };
  return { of10: made("some", 10), of20: made("more", 20) };
}

/**
 * The kernel counts a throttled period at its end. It takes the time in which this machine's host did not run it for time of the process
 * that was running, so the fast one may use 100 s in a period.
 */
async function processor(groups: Cgroups) {
  const throttled = async (name: string, cpus: number, isDone: (stat: (name: string) => number) => boolean) => {
    begin(groups, name, { cpus }, "while :; do :; done");
    const group = `capsule/${name}`;
    const stat = (name: string) => figure(group, "cpu.stat", name);
    await waitFor(
      () => `${name}: ${read(group, "cpu.stat")}`,
      () => isDone(stat),
    );
    write(group, "cgroup.kill", "1");
    await waitFor(`${name} is empty`, () => !isBusy(group));
    return stat("nr_throttled");
  };
  return {
    slow: await throttled("slow", 0.2, (stat) => stat("nr_throttled") > 0),
    fast: await throttled("fast", 1_000, (stat) => stat("usage_usec") > 100_000 && stat("nr_periods") > 1),
  };
}

/** Memory left for a new VM of a group's 100 MiB when another process has taken 64 of them. */
async function admission(groups: Cgroups) {
  begin(groups, "taken", { dataBytes: 100 * mib }, "dd if=/dev/zero bs=64M count=1 | sleep 1000");
  await waitFor("64 MiB are taken", () => Number(read("capsule/taken", "memory.current")) > 64 * mib);
  writeFileSync("/root/own", "0::/capsule/taken/further/down\n");
  return memoryLeft({ meminfo: "/proc/meminfo", own: "/root/own", cgroups: tree }) / mib;
}

async function removal(groups: Cgroups) {
  const clock = Date.now;
  Date.now = () => clock() + 120_000;
  try {
    groups.make("later", limits);
    const first = areThere("limits", "small", "neighbour", "later");
    write("capsule/neighbour", "cgroup.kill", "1");
    await waitFor("the neighbour's group is empty", () => !isBusy("capsule/neighbour"));
    groups.make("last", limits);
    return [first, areThere("neighbour", "last")];
  } finally {
    Date.now = clock;
  }
}

/** The same jail that is built around every QEMU. */
async function jailed(each: Limits[]) {
  const jail = await Jail.open({ uids: { first: 100_000, last: 100_100 } });
  const { program, readOnly } = await programFilesOf("python3");
  const libraries = readdirSync("/usr/lib").filter((name) => /^python3\.\d+$/.test(name));
  const shown = [...readOnly, ...libraries.map((name) => `/usr/lib/${name}`)];
  const ends: string[] = [];
  for (const more of each) {
    const profile = { readOnly: shown, writable: [], deviceNodes: [], folder: "/", limits: { ...limits, ...more } };
    const work = jail.run([program, "-I", "-S", "-c", eatShared], profile);
    ends.push(await work.then(() => "well", String));
  }
  const { mode, cgroup } = jail.report();
  return { mode, cgroup, ends };
}

/** Makes a group as a service manager delegates it to a user, and enters it as that user. */
function enterDelegated(): string {
  const [user, group] = [1_000, "user.slice/capsule.scope"];
  mkdirSync(path("user.slice"));
  write("user.slice", "cgroup.subtree_control", "+memory +cpu +pids +io");
  mkdirSync(path(group));
  for (const file of ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"]) {
    chownSync(path(group, file), user, user);
  }
  write(group, "cgroup.procs", String(process.pid));
  process.setgroups!([]);
  process.setgid!(user);
  process.setuid!(user);
  return group;
}

/** A group with busy children accepts no process, so a service that restarts is started in a sibling of them. */
async function rootless() {
  writeFileSync("/tmp/slice", "0::/user.slice\n");
  const group = enterDelegated();
  const isForeignAccepted = Cgroups.open(false, { root: tree, own: "/tmp/slice" }) !== undefined;
  const jail = await jailed([tooLittle]);
  const moveBack = outcome(() => write(group, "cgroup.procs", String(process.pid)));
  Cgroups.open(false)?.make("again", limits);
  const groupNow = readFileSync("/proc/self/cgroup", "utf8").trim();
  return { isForeignAccepted, jail, moveBack, group: groupNow, isThereAgain: existsSync(path(group, "capsule/again")) };
}

function outcome(act: () => unknown): string {
  try {
    return String(act() ?? "done");
  } catch (error) {
    return String((error as NodeJS.ErrnoException).code);
  }
}

const { groups, facts } = delegation();
const seen = {
  delegation: facts,
  container: container(),
  limits: appliedLimits(groups),
  memory: await memory(groups),
  processes: processes(groups),
  processor: await processor(groups),
  leftMib: await admission(groups),
  removal: await removal(groups),
  jailed: await jailed([enough, tooLittle]),
  rootless: await rootless(),
};
export type Seen = typeof seen;
console.log(JSON.stringify(seen));
process.exit(0); // the sleeping processes end with the capsule

/**
 * Which values are written to which files, on a tree of plain files, so that it also runs on machines without control
 * groups v2.
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { Cgroups, memoryVerdict } from "./cgroups.ts";

const limits = { fileBytes: 1, dataBytes: 1_610_612_736, processes: 98, openFiles: 256, cpus: 3 };

let folder = "";
let root = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cgroups-"));
  root = join(folder, "cgroup");
  group("", "cpuset cpu io memory hugetlb pids");
  group("capsule", "cpu io memory pids");
  writeFileSync(join(folder, "own"), "1:name=systemd:/\n0::/user.slice/capsule.service\n");
});
afterEach(() => rmSync(folder, { recursive: true }));

function group(name: string, controllers: string): void {
  mkdirSync(join(root, name), { recursive: true });
  writeFileSync(join(root, name, "cgroup.controllers"), `${controllers}\n`);
}

const read = (...path: string[]) => readFileSync(join(root, ...path), "utf8");
const open = (isRoot: boolean) => Cgroups.open(isRoot, { root, own: join(folder, "own") });

test("as root, a VM's group is a child of /capsule and has its limits", () => {
  open(true)!.make("vm1", limits);
  for (const name of ["", "capsule"]) assert.equal(read(name, "cgroup.subtree_control"), "+memory +cpu +pids +io");
  assert.equal(read("capsule/vm1/memory.max"), "1610612736");
  assert.equal(read("capsule/vm1/memory.oom.group"), "1");
  assert.equal(read("capsule/vm1/cpu.max"), "300000 100000");
  assert.equal(read("capsule/vm1/pids.max"), "98");
});

test("with an io controller the groups get weights 50 and 100; without one no weight is written", () => {
  open(true)!.make("vm1", limits);
  for (const file of ["io.weight", "io.bfq.weight"]) {
    assert.equal(read("capsule", file), "default 50");
    assert.equal(read("capsule/vm1", file), "default 100");
  }
  rmSync(root, { recursive: true });
  group("", "cpu memory pids");
  group("capsule", "cpu memory pids");
  open(true)!.make("vm1", limits);
  for (const name of ["capsule", "capsule/vm1"]) assert.ok(!existsSync(join(root, name, "io.weight")));
});

test("a kernel with an io controller but no weights is accepted", () => {
  mkdirSync(join(root, "capsule/io.weight"), { recursive: true }); // cannot be written
  open(true)!.make("vm1", limits);
  assert.equal(read("capsule/vm1/pids.max"), "98");
});

/** Writes the kernel's report on the memory of all VMs. */
function using(usedBytes: number, { inactive = 0, active = 9, mapped = 9 } = {}): void {
  const cache = `inactive_file ${inactive}\nactive_file ${active}\nfile_mapped ${mapped}\n`;
  writeFileSync(join(root, "capsule/memory.current"), `${usedBytes}\n`);
  writeFileSync(join(root, "capsule/memory.stat"), `anon 1\n${cache}`);
}

test("all VMs together have a limit, and are slowed down 1/32 below it", () => {
  const groups = open(true)!;
  assert.equal(groups.memoryRoom(), Number.POSITIVE_INFINITY);
  using(100);
  groups.limitMemory(3_200);
  assert.deepEqual([read("capsule/memory.max"), read("capsule/memory.high")], ["3200", "3100"]);
  assert.equal(groups.memoryRoom(), 3_000);
  using(3_150, { inactive: 20 });
  assert.equal(groups.memoryRoom(), -30);
  using(3_150, { inactive: 200 });
  assert.equal(groups.memoryRoom(), 150, "page cache can be taken back");
});

test("page cache is room before the VMs are slowed down too, unless it is active and mapped: guests' memory", () => {
  const groups = open(true)!;
  using(100);
  groups.limitMemory(3_200);
  using(3_090, { inactive: 2_000 });
  assert.equal(groups.memoryRoom(), 2_010);
  using(3_090, { inactive: 500, active: 1_900, mapped: 400 });
  assert.equal(groups.memoryRoom(), 2_010);
  using(3_090, { inactive: 500, active: 300, mapped: 700 });
  assert.equal(groups.memoryRoom(), 510);
});

test("a limit below what the VMs use kills none: it is set when they use less", () => {
  using(5_000);
  const groups = open(true)!;
  groups.limitMemory(3_200);
  assert.deepEqual([read("capsule/memory.max"), read("capsule/memory.high")], ["5000", "3100"]);
  assert.equal(groups.memoryRoom(), -1_900);
  assert.equal(read("capsule/memory.max"), "5000");
  using(3_200);
  groups.memoryRoom();
  assert.equal(read("capsule/memory.max"), "3200");
  groups.limitMemory(6_400);
  assert.equal(read("capsule/memory.max"), "6400", "another reserve after a restart");
});

test("the swap of a VM has the limit of its memory", () => {
  open(true)!.make("vm1", limits);
  assert.equal(read("capsule/vm1/memory.swap.max"), "1610612736");
});

test("a command joins the group before it runs, and keeps its arguments as they are", () => {
  const command = [...open(true)!.make("vm1", limits), "/bin/sh", "-c", 'echo "$$|$1"', "sh", "a b'c"];
  const { stdout, pid } = spawnSync(command[0]!, command.slice(1), { encoding: "utf8" });
  assert.equal(stdout, `${pid}|a b'c\n`);
  assert.equal(read("capsule/vm1/cgroup.procs"), `${pid}\n`);
});

test("a command whose group has been removed does not run outside of it", () => {
  const command = [...open(true)!.make("vm1", limits), "/bin/echo", "ran"];
  rmSync(join(root, "capsule/vm1"), { recursive: true });
  assert.equal(spawnSync(command[0]!, command.slice(1), { encoding: "utf8" }).stdout, "");
});

test("without root, groups are children of the delegated group, and the service moves to a child of it", () => {
  group("user.slice/capsule.service", "cpu memory pids");
  group("user.slice/capsule.service/capsule", "cpu memory pids");
  open(false)!.make("vm1", limits);
  assert.equal(read("user.slice/capsule.service/service/cgroup.procs"), String(process.pid));
  assert.equal(read("user.slice/capsule.service/cgroup.subtree_control"), "+memory +cpu +pids");
  assert.equal(read("user.slice/capsule.service/capsule/vm1/pids.max"), "98");
});

test("as root of a container, groups are children of the container's top group, and the service moves out of it", () => {
  writeFileSync(join(root, "cgroup.type"), "domain\n");
  writeFileSync(join(folder, "own"), "0::/\n");
  open(true)!.make("vm1", limits);
  assert.equal(read("service/cgroup.procs"), String(process.pid));
  assert.equal(read("cgroup.subtree_control"), "+memory +cpu +pids +io");
  assert.equal(read("capsule/vm1/pids.max"), "98");
});

test("without root, a service that is started in its service group uses the same groups again", () => {
  group("user.slice/capsule.service", "cpu memory pids");
  group("user.slice/capsule.service/capsule", "cpu memory pids");
  writeFileSync(join(folder, "own"), "0::/user.slice/capsule.service/service\n");
  open(false)!.make("vm1", limits);
  assert.equal(read("user.slice/capsule.service/service/cgroup.procs"), String(process.pid));
  assert.equal(read("user.slice/capsule.service/capsule/vm1/pids.max"), "98");
});

test("only a kill for the group's own memory limit is reported", () => {
  const own = /^0::(.*)$/m.exec(readFileSync("/proc/self/cgroup", "utf8"))?.[1];
  if (own === undefined) return assert.equal(memoryVerdict(process.pid, root)(), false);
  const verdict = memoryVerdict(process.pid, root);
  assert.equal(verdict(), false, "its group is not in the tree");
  mkdirSync(join(root, own), { recursive: true });
  const verdictAfter = (counts: string) => {
    writeFileSync(join(root, own, "memory.events"), counts);
    return verdict();
  };
  assert.equal(verdictAfter("low 0\nmax 7\noom 0\noom_kill 0\n"), false);
  assert.equal(verdictAfter("max 0\noom 0\noom_kill 1\n"), false, "killed because the machine ran out of memory");
  assert.equal(verdictAfter("max 7\noom 1\noom_kill 0\n"), false, "reached its limit, but was not killed");
  assert.equal(verdictAfter("max 7\noom 1\noom_kill 12\n"), true);
  assert.equal(memoryVerdict(2 ** 30, root)(), false, "there is no such process");
});

test("without a required controller, a mount or a delegated group there are no control groups", () => {
  group("", "cpu pids");
  assert.equal(open(true), undefined);
  group("", "cpu memory pids");
  assert.equal(open(false), undefined, "nothing delegated");
  rmSync(root, { recursive: true });
  assert.equal(open(true), undefined, "nothing mounted");
});

/** The time in which a group counts as new has passed. */
function later(use: () => void): void {
  const clock = Date.now;
  try {
    Date.now = () => clock() + 120_000;
    use();
  } finally {
    Date.now = clock;
  }
}

test("old empty groups are removed, an earlier daemon's too; busy and new ones are kept", () => {
  for (const name of ["empty", "busy"]) mkdirSync(join(root, "capsule", name));
  writeFileSync(join(root, "capsule/busy/cgroup.procs"), "1");
  const groups = open(true)!;
  later(() => groups.make("vm1", limits));
  assert.ok(!existsSync(join(root, "capsule/empty")));
  assert.ok(existsSync(join(root, "capsule/busy")));
  groups.make("vm2", limits);
  assert.ok(existsSync(join(root, "capsule/vm1")), "too new to be removed");
});

test("a new group examines at most 8 others, whatever their number, and after some more all empty ones are gone", () => {
  const names = Array.from({ length: 100 }, (_, index) => `old-${index}`);
  for (const name of names) mkdirSync(join(root, "capsule", name));
  for (const name of names.slice(0, 10)) writeFileSync(join(root, "capsule", name, "cgroup.procs"), "1");
  const groups = open(true)!;
  const left = () => names.filter((name) => existsSync(join(root, "capsule", name))).length;
  later(() => {
    for (let made = 1, before = left(); made <= 30; made++) {
      groups.make(`vm${made}`, limits);
      assert.ok(before - left() <= 8, `${before - left()} were removed`);
      before = left();
    }
  });
  assert.equal(left(), 10, "the busy ones");
});

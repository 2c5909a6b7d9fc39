/** Control groups v2 around real QEMUs, on a kernel and under a systemd that are the users'. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { isLong, onlyLong } from "./kvm-form.ts";
import type { KvmWorld } from "./kvm-world.ts";

const groups = "/sys/fs/cgroup";

export function walls(world: () => KvmWorld): void {
  const groupOf = async (capsule: TestCapsule) => {
    const text = await world().sh(`cat /proc/${await world().vmOf(capsule)}/cgroup`);
    return `${groups}${text.replace(/^0::/, "")}`;
  };

  test("each QEMU is alone in a group beside all services, bounded by its shape, and not root", async () => {
    await using capsule = await world().client.capsule();
    const group = await groupOf(capsule);
    assert.match(group, /^\/sys\/fs\/cgroup\/capsule\/[0-9a-f-]+$/);
    const vm = await world().vmOf(capsule);
    const bounds = await world().sh(`cd ${group} && tail -n 1 cpu.max pids.max memory.max memory.oom.group -q`);
    const [cpu, pids, memory, oom] = bounds.split("\n");
    assert.equal(cpu, "300000 100000"); // and two for QEMU itself
    assert.ok(Number(pids) < 128, pids);
    assert.ok(Number(memory) > 512 << 20 && Number(memory) < 2 ** 31, memory);
    assert.equal(oom, "1");
    assert.match(await world().sh(`grep ^Uid: /proc/${vm}/status`), /^Uid:\s+19\d{8}\s/);
    const ofThreads = await world().sh(`cat /proc/${vm}/task/*/cgroup | sort -u`);
    assert.equal(ofThreads, `0::${group.slice(groups.length)}`);
    // KVM has a thread of the kernel in there as well.
    const programs = `for p in $(cat ${group}/cgroup.procs); do readlink /proc/$p/exe >/dev/null && echo $p; done; true`;
    assert.equal(await world().sh(programs), String(vm));
  });

  test("a QEMU that takes more memory than its shape is ended, with a reason; a neighbour and the service live", async () => {
    await using greedy = await world().client.capsule();
    await using neighbour = await world().client.capsule();
    const group = await groupOf(greedy);
    const procs = `${group}/cgroup.procs`;
    // To fill a whole shape takes a minute here.
    if (!isLong) await world().sh(`echo 200M > ${group}/memory.max`);
    // It stands in for a QEMU taken over by its guest: a process in the same group.
    const eater = `echo $$ > ${procs}; exec tail /dev/zero`;
    const { code } = await world().machine.run(`bash -c '${eater}'`);
    assert.notEqual(code, 0);
    const { error_reason } = await greedy.until("error");
    assert.match(error_reason, /memory/);
    assert.equal(await neighbour.sh("echo fine"), "fine");
  });

  test("a QEMU that forks comes to its number of processes, and a neighbour starts others", {
    skip: onlyLong,
  }, async () => {
    await using capsule = await world().client.capsule();
    await using neighbour = await world().client.capsule();
    const group = await groupOf(capsule);
    const forks = `echo $$ > ${group}/cgroup.procs; for i in $(seq 300); do sleep 60 & done`;
    await world().machine.run(`timeout -s KILL 10 bash -c '${forks}'`);
    const [most, now, refused] = (
      await world().sh(`cd ${group} && cat pids.max pids.current && sed -n 's/^max //p' pids.events`)
    ).split("\n");
    assert.ok(Number(now) <= Number(most), `${now} of ${most}`);
    assert.ok(Number(refused) > 0, "none was refused");
    assert.equal(await neighbour.sh("for i in $(seq 20); do sleep 0 & done; wait; echo fine"), "fine");
    await world().sh("pkill -x sleep; true");
  });

  test("the kernel is told to end VMs before the server where memory runs out", async () => {
    await using capsule = await world().client.capsule();
    const score = (pid: number | string) => world().sh(`cat /proc/${pid}/oom_score_adj`);
    assert.equal(await score(await world().vmOf(capsule)), "500");
    assert.equal(await score("$(systemctl show capsule -p MainPID --value)"), "-900");
  });

  test("processors that spin are held back at their group's share", async () => {
    await using capsule = await world().client.capsule({ vcpus: 1 });
    const group = await groupOf(capsule);
    const spin = `echo $$ > ${group}/cgroup.procs; for i in 1 2 3; do timeout 5 sh -c "while :; do :; done" & done; wait`;
    await world().sh(`echo '50000 100000' > ${group}/cpu.max`); // this machine has fewer CPUs than the bound allows
    await world().sh(`bash -c '${spin}'`);
    const throttled = Number(await world().sh(`sed -n 's/^nr_throttled //p' ${group}/cpu.stat`));
    assert.ok(throttled > 0, "never held back");
  });

  test("the group of a capsule that is gone goes when a later one is made, a minute after", async () => {
    const capsule = await world().client.capsule();
    const group = await groupOf(capsule);
    await capsule.destroy();
    const isGone = async () => {
      await using _later = await world().client.capsule();
      return (await world().machine.run(`test -e ${group}`)).code === 1;
    };
    await waitFor("the group is gone", isGone, { deadlineMs: 300_000 });
  });

  test("every wall of the jail, tried from inside (test/jail/jail.test.ts on this kernel)", async () => {
    const { code, stdout } = await world().machine.run(
      "PATH=$PATH:/usr/sbin timeout 300 node_modules/.bin/node --test test/jail/jail.test.ts",
    );
    assert.equal(code, 0, stdout.slice(-6_000));
  });
}

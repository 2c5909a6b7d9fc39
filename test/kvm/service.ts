/** The service under a real systemd, as docs/operations/install.md tells it: installed, reloaded, stopped, killed, upgraded. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { waitFor } from "../wait-for.ts";
import { isLong } from "./kvm-form.ts";
import type { KvmWorld } from "./kvm-world.ts";

const show = (name: string) => `systemctl show capsule -p ${name} --value`;

export function installation(world: () => KvmWorld): void {
  test("install, without a network: the service runs on KVM, in a full jail with control groups, with nothing missing", async () => {
    await world().sh("./dev install");
    const health = await world().served();
    assert.equal(health.accelerator, "kvm", health.accelerator_reason);
    assert.deepEqual(health.jail, { mode: "full", cgroup: "v2", missing: [] });
    assert.equal(await world().sh("systemctl is-enabled capsule && systemctl is-system-running"), "enabled\nrunning");
  });

  test("a capsule runs under KVM, and its clock is the machine's", async () => {
    await using capsule = await world().client.capsule();
    const clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    assert.equal(await capsule.sh(`cat ${clock}`), "kvm-clock");
    assert.match(await capsule.sh("grep -m 1 flags /proc/cpuinfo"), / hypervisor /);
  });

  test("reload goes on with the same process", async () => {
    const pid = await world().sh(show("MainPID"));
    await world().sh("systemctl reload capsule");
    assert.equal(await world().sh(show("MainPID")), pid);
    assert.equal((await world().served()).pid, Number(pid));
  });
}

export function operation(world: () => KvmWorld): void {
  test("a capsule runs on over stop and start, kill -9 of the server, and an upgrade", async () => {
    await using capsule = await world().client.capsule();
    const vm = await world().vmOf(capsule);
    const { json } = await capsule.exec({ cmd: "sleep", args: ["8101"], background: true });
    const isSame = async () => {
      const same = world().client.known(capsule.id);
      assert.equal((await same.view()).status, "running");
      assert.equal(await world().vmOf(same), vm);
      assert.equal(await same.sh("pgrep -xf 'sleep 8101'"), String(json.pid));
    };

    if (isLong) {
      await world().sh("systemctl stop capsule.socket capsule");
      assert.equal(await world().sh(`test -d /proc/${vm} && ${show("ActiveState")}`), "inactive");
      await world().sh("systemctl start capsule");
      await world().served();
      await isSame();
    }

    const killed = await world().sh(show("MainPID"));
    await world().sh(`kill -9 ${killed}`);
    await waitFor("systemd starts it again", async () => ![killed, "0"].includes(await world().sh(show("MainPID"))));
    await world().served();
    await isSame();

    await world().sh(`sed -i 's/"version": ".*"/"version": "99.0.0"/' package.json && ./dev install`);
    await waitFor("the new version answers", async () => (await world().health())?.version === "99.0.0", {
      deadlineMs: 300_000,
    });
    await world().served();
    await isSame();
  });

  test("no connection is refused while the service restarts: each waits for the next server", async () => {
    const asking = `while [ ! -e ended ]; do
      curl -s -o /dev/null --max-time 600 -w '%{http_code} %{exitcode}\\n' http://127.0.0.1:8080/healthz
    done`;
    const seen = await world().sh(
      `cd $(mktemp -d); for i in 1 2 3; do (${asking}) > codes.$i & done
      systemctl restart capsule; sleep 2; systemctl restart capsule; touch ended; wait; cat codes.* | sort -u`,
    );
    assert.equal(seen, "200 0");
    assert.equal(await world().sh("systemctl is-active capsule.socket"), "active");
    await world().served();
  });

  test("kill -9 of a VM is that capsule's error, with a reason, and no other's", async () => {
    await using dead = await world().client.capsule();
    await using other = await world().client.capsule();
    await world().sh(`kill -9 ${await world().vmOf(dead)}`);
    const { error_reason } = await dead.until("error");
    assert.match(error_reason, /SIGKILL|ended|killed/i);
    assert.equal(await other.sh("echo fine"), "fine");
  });
}

export function removal(world: () => KvmWorld): void {
  test("uninstall ends server and VMs, and leaves data for another install; with --all nothing", async () => {
    const capsule = await world().client.capsule();
    await capsule.sh("echo kept > /root/kept");
    await capsule.pause();
    const running = await world().client.capsule();
    await world().sh("./dev uninstall");
    assert.equal(await world().sh("pgrep -c qemu-system || true"), "0");
    assert.equal(await world().sh("systemctl list-unit-files capsule.service --no-legend | wc -l"), "0");
    if (isLong) {
      await world().sh("./dev install");
      await world().served();
      const same = world().client.known(capsule.id);
      await same.resume();
      assert.equal(await same.sh("cat /root/kept"), "kept");
      assert.equal((await world().client.known(running.id).view()).status, "error");
      await world().sh("./dev uninstall");
    }
    assert.notEqual(await world().sh("ls /var/lib/capsule/capsules"), "");
    await world().sh("./dev uninstall --all");
    const left =
      "ls -A /var/lib/capsule /etc/capsule.env /etc/systemd/system/capsule.service /etc/systemd/system/capsule.socket /var/cache/capsule 2>/dev/null";
    assert.equal(await world().sh(`${left} | grep -v : ; pgrep qemu-system; true`), "");
  });
}

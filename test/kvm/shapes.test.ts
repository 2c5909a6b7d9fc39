/** Other machines that users have, one for each flag of `./dev machine up`. In the long form only: each is a boot of its own. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Shape, usualShape } from "../machine/shape.ts";
import { treePath } from "../machine/tree-disks.ts";
import { waitFor } from "../wait-for.ts";
import { onlyLong } from "./kvm-form.ts";
import { KvmWorld } from "./kvm-world.ts";

function on(name: string, shape: Partial<Shape>, body: (world: KvmWorld) => Promise<void>): void {
  test(name, { skip: onlyLong, timeout: 1_800_000 }, async () => {
    await using world = await KvmWorld.create({ ...usualShape, ...shape });
    await body(world);
  });
}

async function assertLife(world: KvmWorld): Promise<void> {
  await using capsule = await world.client.capsule();
  await capsule.sh("echo kept > /dev/shm/kept");
  await capsule.pause();
  await capsule.resume();
  assert.equal(await capsule.sh("cat /dev/shm/kept"), "kept");
}

on("the kernel of the backports: KVM, the full jail, a capsule's life", { kernel: "backports" }, async (world) => {
  await world.sh("./dev install");
  const health = await world.served();
  assert.equal(health.accelerator, "kvm", health.accelerator_reason);
  assert.deepEqual(health.jail, { mode: "full", cgroup: "v2", missing: [] });
  assert.match(await world.sh("uname -r"), /^6\.(1[2-9]|[2-9]\d)\./);
  await assertLife(world);
});

on("QEMU 7.2: refused with the way out, and without a jail it works", { qemu: "7.2" }, async (world) => {
  await world.sh("./dev install");
  const said = "the server says why it does not start";
  await waitFor(said, async () => /CAPSULE_JAIL=off/.test(await world.sh("journalctl -u capsule -o cat")), {
    deadlineMs: 300_000,
  });
  await world.sh("systemctl reset-failed capsule; true");
  const health = await world.restartWith({ CAPSULE_JAIL: "off" });
  assert.equal(health.accelerator, "kvm", health.accelerator_reason);
  assert.equal(health.jail.mode, "off");
  await assertLife(world);
});

on("no KVM: emulation, and why", { hasKvm: false }, async (world) => {
  await world.sh("./dev install");
  const health = await world.served();
  assert.equal(health.accelerator, "tcg");
  assert.match(health.accelerator_reason, /\/dev\/kvm does not exist/);
  await assertLife(world);
});

on(
  "an ordinary user with a delegated group: the rootless jail with its bounds",
  { isRootless: true },
  async (world) => {
    await world.machine.sh(
      `install -d -o tester /var/lib/capsule/tester && cp -a /var/lib/capsule/images /var/lib/capsule/tester/ &&
    chown -R tester: /var/lib/capsule/tester && chmod 711 /var/lib/capsule && install -o tester /etc/capsule.env /tmp/env`,
      {
        user: "root",
      },
    );
    await world.sh(`export XDG_RUNTIME_DIR=/run/user/$(id -u) && systemd-run --user --unit=capsule --collect -p Delegate=yes \
    -p EnvironmentFile=/tmp/env -E CAPSULE_DATA=/var/lib/capsule/tester ${treePath}/capsule serve`);
    const health = await world.served("/var/lib/capsule/tester");
    assert.equal(health.accelerator, "kvm", health.accelerator_reason);
    assert.equal(health.jail.mode, "rootless");
    assert.equal(health.jail.cgroup, "v2");
    await assertLife(world);
    const group = await world.sh("cat /proc/$(pgrep -u tester -n qemu-system)/cgroup");
    assert.match(group, /^0::\/user\.slice\/.*\/capsule\.service\/capsule\/[0-9a-f-]+$/);
  },
);

on(
  "a small disk that fills up: refused with 507 or 503, paused capsules are whole",
  { dataMb: 1_536 },
  async (world) => {
    await world.sh("./dev install");
    await world.served();
    const { client } = world;
    const paused = await client.capsule();
    await paused.sh("echo kept > /dev/shm/kept");
    await paused.pause();
    const statuses: number[] = [];
    let refusal = "";
    for (let each = 0; each < 12 && !statuses.some((status) => status >= 500); each++) {
      const { status, json, text } = await client.call("POST", "/v1/capsules", { json: {} });
      statuses.push(status);
      refusal = text;
      if (status !== 201) break;
      const capsule = client.known(json.id);
      await capsule.until("running");
      await capsule.exec({ cmd: "bash", args: ["-c", "head -c 150M /dev/urandom > /dev/shm/fill"] });
      const pause = await client.call("POST", `${capsule.path}/pause`);
      statuses.push(pause.status);
      refusal = pause.text;
    }
    assert.ok([507, 503].includes(statuses.at(-1)!), statuses.join());
    assert.match(refusal, /disk/);
    for (const { id } of (await client.expect(200, "GET", "/v1/capsules")).json) {
      if (id !== paused.id) await client.expect(204, "DELETE", `/v1/capsules/${id}`);
    }
    await paused.resume();
    assert.equal(await paused.sh("cat /dev/shm/kept"), "kept");
  },
);

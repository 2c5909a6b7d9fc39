/**
 * Reboots, and power cuts at random moments: QEMU's process is killed while clients are at work. What its guest has not
 * flushed is lost then: the pages in its memory, and the disks' new clusters whose place only QEMU's own cache knew.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { Client } from "../client.ts";
import { Random } from "../conformance/random.ts";
import { isLong, notInSmoke } from "./form.ts";
import { Player } from "./player.ts";
import type { World } from "./world.ts";

/** power-cuts.test.ts makes many. */
const powerCuts = isLong ? 3 : 1;
const longestLifeMs = isLong ? 20_000 : 10_000;
const players = 2;

export function power(world: () => World): void {
  test("after a reboot the service is up, paused capsules are as they were, and running ones have failed", {
    skip: notInSmoke,
  }, async () => {
    const paused = await world().client.capsule();
    await paused.sh("echo kept > /dev/shm/kept");
    await paused.pause();
    const running = await world().client.capsule();
    await world().machine.reboot();
    await world().served();
    const { status, error_reason } = await world().client.known(running.id).view();
    assert.equal(status, "error");
    assert.match(error_reason, /\w/);
    const same = world().client.known(paused.id);
    await same.resume();
    assert.equal(await same.sh("cat /dev/shm/kept"), "kept");
    await same.destroy();
    await world().client.known(running.id).destroy();
  });

  test(`${powerCuts} power cuts at random moments: nothing acknowledged is lost`, {
    timeout: 36_000_000,
  }, async (t) => {
    const random = new Random(t);
    const all = Array.from(
      { length: players },
      (_, index) => new Player(`p${index}`, new Random(random.below(2 ** 31))),
    );
    let steps = 0;
    for (let cut = 0; cut < powerCuts; cut++) {
      const lifeMs = random.below(longestLifeMs);
      const playing = all.map((player) => player.play(world().client));
      await delay(lifeMs); // any instant
      await world().machine.cut();
      steps += (await Promise.all(playing)).reduce((sum, count) => sum + count, 0);
      await world().machine.start();
      await world().served();
      for (const player of all) await player.assertKept(world().client);
      await removeOthers(world().client, new Set(all.flatMap(({ ids }) => ids)));
      const failed = await world().sh("systemctl is-system-running --wait || systemctl --failed --no-legend");
      assert.equal(failed, "running", `after cut ${cut}`);
    }
    t.diagnostic(`${powerCuts} cuts, ${steps} acknowledged steps`);
    assert.ok(steps > 0, "nothing was done");
  });
}

/** What was made for a request whose answer was cut off. */
export async function removeOthers(client: Client, ids: Set<string>): Promise<void> {
  const { json: views } = await client.expect(200, "GET", "/v1/capsules");
  for (const { id } of views) if (!ids.has(id)) await client.expect(204, "DELETE", `/v1/capsules/${id}`);
  const { json: templates } = await client.expect(200, "GET", "/v1/snapshots?type=snapshot");
  for (const { name } of templates) await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
}

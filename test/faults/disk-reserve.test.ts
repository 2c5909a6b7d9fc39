/** A team pauses all it can while the disk has only the reserve left: another team's part of it stays whole, and its pause works. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { SmallDisk } from "../small-disk.ts";
import { World } from "./world.ts";

const mib = 1 << 20;
const reserveMib = 160;
/** Kept free by every change. */
const slackMib = 64;
const disk = new SmallDisk();
const skip = disk.mount() ?? false;

/** Memory that a pause has to save, beside that of the guest's kernel. */
const ballast = "head -c 20000000 /dev/urandom > /dev/shm/ballast";
const pause = async ({ client, path }: TestCapsule) => (await client.call("POST", `${path}/pause`)).status;
const count = (statuses: number[], status: number) => statuses.filter((each) => each === status).length;

test("many small capsules of one team take nothing of another team's part of the reserve", { skip }, async (t) => {
  t.after(() => disk.unmount());
  const env = { CAPSULE_DISK_RESERVE_MB: String(reserveMib) };
  await using world = await World.start({ parent: disk.path, env, errors: [/MiB are free for its team/] });
  process.once("exit", () => disk.unmount("--lazy"));
  const bystander = await Client.connect(world.server.url, await world.server.createKey("bystander"));
  t.after(() => bystander.close());
  const theirs = await bystander.capsule();
  await theirs.sh(ballast);
  const greedy: TestCapsule[] = [];
  for (let number = 0; number < 6; number++) greedy.push(await world.client.capsule());
  for (const capsule of greedy) await capsule.sh(ballast);

  disk.fill((slackMib + reserveMib) * mib);
  const statuses: number[] = [];
  for (const capsule of greedy) statuses.push(await pause(capsule));
  t.diagnostic(`${statuses.join(" ")}; ${Math.floor(disk.freeBytes / mib) - slackMib} MiB of ${reserveMib} are left`);
  assert.ok(count(statuses, 200) > 0 && count(statuses, 507) > 0 && count(statuses, 200) + count(statuses, 507) === 6);
  const takenMib = slackMib + reserveMib / 2 - disk.freeBytes / mib;
  assert.ok(takenMib <= 0, `${takenMib} MiB of the bystander's part are taken`);
  assert.equal(await pause(theirs), 200);

  const refused = greedy[statuses.indexOf(507)]!;
  for (const [index, capsule] of greedy.entries()) if (statuses[index] === 200) await capsule.destroy();
  assert.equal(await pause(refused), 200, "what it destroyed is given back");
  disk.free();
  for (const capsule of [theirs, refused]) {
    await capsule.resume();
    assert.equal(await capsule.sh("stat -c %s /dev/shm/ballast"), "20000000");
  }
});

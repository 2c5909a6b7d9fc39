/** A team whose capsules write beyond its quota is throttled, and the others go on: on a real disk that it could fill. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { SmallDisk } from "../small-disk.ts";
import { waitFor } from "../wait-for.ts";
import { World } from "./world.ts";

const mib = 1 << 20;
const quotaMib = 150;
/**
 * Both together go over the quota by more than the bytes between two measurements, a quarter of the reserve; the second alone
 * stays within it.
 */
const oldMib = 130;
const writerMib = 110;
const reserveMib = 256;
/** A guest of a busy machine may take seconds to write and sync each mebibyte. */
const writingMs = 900_000;
const disk = new SmallDisk(1_280);
const skip = disk.mount() ?? false;

async function shortages(client: Client): Promise<string[]> {
  const { json } = await client.expect(200, "GET", "/v1/audit?limit=1000");
  const entries: { action: string; subject: string | null; status: number }[] = json.entries;
  return entries
    .filter(({ action }) => action.startsWith("disk."))
    .map(({ action, subject, status }) => `${action} ${subject} ${status}`)
    .toReversed();
}

async function upload({ client, path }: TestCapsule): Promise<number> {
  const form: [string, string][] = [
    ["path", "/root/sent"],
    ["file", "content"],
  ];
  return (await client.call("POST", `${path}/files/write`, { form })).status;
}

const mebibyte = "head -c 1048576 /dev/zero | tr '\\0' x >> /root/big; sync";
const write = (mebibytes: number) => `for _ in $(seq ${mebibytes}); do ${mebibyte}; done`;

test("a team that fills its quota is throttled, and another creates, writes and pauses", { skip }, async (t) => {
  t.after(() => disk.unmount());
  const env = { CAPSULE_DISK_MAX_BYTES: String(quotaMib * mib), CAPSULE_DISK_RESERVE_MB: String(reserveMib) };
  await using world = await World.start({ parent: disk.path, env, errors: [/"the team is over its disk quota/] });
  process.once("exit", () => disk.unmount("--lazy"));
  const other = await Client.connect(world.server.url, await world.server.createKey("other"));
  t.after(() => other.close());
  const [old, writer] = [await world.client.capsule(), await world.client.capsule()];
  await old.sh(write(oldMib), { timeout: 0 });
  const pause = "[ -e /dev/shm/hurry ] || sleep 0.4"; // it is throttled long before its end
  const script = `for _ in $(seq ${writerMib}); do ${mebibyte}; ${pause}; done; touch /dev/shm/whole`;
  assert.equal((await writer.exec({ cmd: "bash", args: ["-c", script], background: true })).status, 202);
  const throttled = "disk.throttle quota 507";
  await waitFor("the team is throttled", async () => (await shortages(world.client)).includes(throttled), {
    deadlineMs: writingMs,
  });

  const usedMib = async () => (await world.client.expect(200, "GET", "/v1/limits")).json.usage.disk_bytes / mib;
  assert.ok((await usedMib()) > quotaMib);
  assert.equal(await upload(writer), 507);
  assert.equal(await writer.sh("cat /etc/hostname; ls /dev/shm"), writer.id, "commands go on, the write does not");
  const theirs = await other.capsule();
  await theirs.sh(write(20), { timeout: 0 });
  assert.equal(await upload(theirs), 204);
  await theirs.pause();
  await theirs.resume();
  await theirs.destroy();
  await writer.pause();
  await writer.resume();
  assert.equal(await writer.sh("ls /dev/shm"), "");

  await world.restart("SIGTERM");
  const [known, same] = [world.capsule(old.id), world.capsule(writer.id)];
  await waitFor("the new server throttles it too", async () => (await upload(same)) === 507);
  await known.sh("rm /root/big; sync; fstrim /", { timeout: 0 });
  const goesOn = "disk.unthrottle null 200";
  await waitFor("the team has room again", async () => (await shortages(world.client)).includes(goesOn));
  assert.equal(await upload(same), 204);
  await same.sh("touch /dev/shm/hurry");
  await waitFor("the write is whole", async () => (await same.sh("ls /dev/shm/whole || true")) === "/dev/shm/whole", {
    deadlineMs: writingMs,
  });
  assert.equal(await same.sh("tr -d x < /root/big | wc -c; stat -c %s /root/big"), `0\n${writerMib * mib}`);
});

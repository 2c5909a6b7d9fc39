/** A second image is data: a folder beside the first one makes a template of its name, without code. */
import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { realpathSync } from "node:fs";
import { link, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const images = realpathSync(process.env.CAPSULE_IMAGES_FROM ?? join(import.meta.dirname, "../../.capsule/images"));

/** The built image under another name, its files linked. */
async function copyImage(to: string, name: string): Promise<void> {
  const from = join(images, "minimal");
  const hash = await readlink(join(from, "current"));
  const folder = join(to, name, hash);
  await mkdir(folder, { recursive: true });
  for (const file of await readdir(join(from, hash))) await link(join(from, hash, file), join(folder, file));
  const manifest = JSON.parse(await readFile(join(folder, "manifest.json"), "utf8"));
  await rm(join(folder, "manifest.json"));
  await writeFile(join(folder, "manifest.json"), JSON.stringify({ ...manifest, name }));
  await symlink(hash, join(to, name, "current"));
}

test("a second image is listed, and capsules are made, paused, resumed and captured from it", {
  timeout: 300_000,
}, async (t) => {
  const store = await mkdtemp(join(images, "../second-image-")); // where its files can be linked
  t.after(() => rm(store, { recursive: true }));
  const own = join(store, "images");
  for (const name of ["minimal", "second"]) await copyImage(own, name);
  await using server = await Server.start({ images: own, env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" } });
  const client = await Client.connect(server.url, server.apiKey);
  t.after(() => client.close());
  const { json: templates } = await client.expect(200, "GET", "/v1/snapshots?type=base");
  assert.deepEqual(
    templates.map(({ name }: { name: string }) => name),
    ["minimal", "second"],
  );
  const capsule = await client.capsule({ template: "second" });
  assert.equal((await capsule.view()).template, "second");
  const bases = join(server.dataDir, "bases");
  const base = (await readdir(bases)).find((name) => name.startsWith("second-"))!;
  const content = hash("sha256", await readFile(join(bases, base, "manifest.json")));
  assert.equal(base.split("-").at(-1), content.slice(0, 8), "its name ends in its content");
  await capsule.sh("echo kept > /root/file");
  await capsule.pause();
  await capsule.resume();
  assert.equal(await capsule.sh("cat /root/file"), "kept");
  const { status } = await client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: "second" } });
  assert.equal(status, 409, "the name is a built-in template's");
  await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: "mine" } });
  const made = await client.capsule({ template: "mine" });
  assert.equal(await made.sh("cat /root/file"), "kept");
  await made.destroy();
});

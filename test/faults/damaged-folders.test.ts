/** A server starts on a data folder with damaged files: the damaged capsules are refused, all others work. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { assertMarked, mark } from "./marks.ts";
import { World } from "./world.ts";

/** Contents of a file that was not synced before a power cut. */
const damages: [name: string, content: string][] = [
  ["empty", ""],
  ["NULs", "\0".repeat(200)],
  ["cut off", '{\n "format": 1,\n "kind'],
];

describe("a start on damaged folders", () => {
  let world: World;
  before(async () => {
    world = await World.start({
      errors: [
        /"msg":"a folder is damaged, or could not be checked"/,
        /could not be resumed and is still paused/,
        /"msg":"capsule did not start"/,
      ],
    });
  });
  after(() => world[Symbol.asyncDispose]());

  const path = (...names: string[]) => join(world.server.dataDir, ...names);

  /** Replaces the file instead of its content, since bases are hard links shared with other servers. */
  function replace(file: string, content: string): void {
    rmSync(file, { force: true });
    writeFileSync(file, content);
  }

  async function pausedCapsule(): Promise<TestCapsule> {
    const capsule = await world.client.capsule();
    await mark(capsule);
    await capsule.pause();
    return capsule;
  }

  async function captured(name: string): Promise<void> {
    const { id } = await world.client.capsule();
    await world.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: id, name } });
  }

  async function assertResumes(id: string): Promise<void> {
    const capsule = world.capsule(id);
    await capsule.resume();
    await assertMarked(capsule);
    await capsule.destroy();
  }

  for (const [name, content] of damages) {
    test(`files that are ${name}`, { timeout: 300_000 }, async () => {
      const [whole, noCapsuleFile, noManifest] = [await pausedCapsule(), await pausedCapsule(), await pausedCapsule()];
      const noJournal = await world.client.capsule();
      await captured("damaged");
      const [storage] = world.folders("templates");
      await world.server.kill("SIGTERM");
      const damaged = [
        ["capsules", noCapsuleFile.id, "capsule.json"],
        ["capsules", noManifest.id, "checkpoint", "manifest.json"],
        ["capsules", noJournal.id, "vm.json"],
        ["templates", storage!, "manifest.json"],
      ];
      for (const names of damaged) replace(path(...names), content);
      for (const file of ["accelerator.json", "daemon.pid", "url"]) replace(path(file), content);
      await world.restart("SIGTERM");

      await assertResumes(whole.id);
      for (const { id } of [noCapsuleFile, noManifest]) {
        const { status, text } = await world.client.call("POST", `/v1/capsules/${id}/resume`);
        assert.ok(status >= 400, `resumed: ${text}`);
      }
      const { status, error_reason } = await world.capsule(noJournal.id).view();
      assert.equal(status, "error", "its VM cannot be known any more");
      assert.ok(error_reason);
      await using other = await world.client.capsule();
      assert.equal(await other.sh("echo served"), "served");
      const { json: fromDamaged } = await world.client.call("POST", "/v1/capsules", { json: { template: "damaged" } });
      if (fromDamaged.id !== undefined) await world.capsule(fromDamaged.id).until("error");
      await other.destroy();
      await world.assertNoResidue();
    });
  }

  test("a memory that has rotted is refused where it was saved, and its capsule resumes when it is right again", {
    timeout: 300_000,
  }, async () => {
    const { id } = await pausedCapsule();
    const [hashes, diff] = ["hashes", "memory.diff"].map((name) => path("capsules", id, "checkpoint", name));
    await waitFor("the memory is hashed", async () => existsSync(hashes!));
    const whole = readFileSync(diff!);
    const rotten = Buffer.from(whole);
    const at = whole.length >> 1;
    rotten[at] = rotten[at]! ^ 1;
    writeFileSync(diff!, rotten);
    const { status, text } = await world.client.call("POST", `/v1/capsules/${id}/resume`);
    assert.equal(status, 502, text);
    assert.match(text, /are not those that were saved/);
    assert.equal((await world.capsule(id).view()).status, "paused");
    writeFileSync(diff!, whole);
    await assertResumes(id);
  });

  test("files in the place of folders, and folders without a record", { timeout: 300_000 }, async () => {
    const { id } = await pausedCapsule();
    await world.server.kill("SIGTERM");
    for (const folder of ["capsules", "templates", "work", "bases"]) writeFileSync(path(folder, "stray"), "");
    for (const folder of ["capsules", "templates", "work"]) mkdirSync(path(folder, "lost+found"));
    writeFileSync(path("capsules", `cl-${"1".repeat(25)}`), "");
    mkdirSync(path("templates", "t0"));
    await world.restart("SIGTERM");
    await assertResumes(id);
    await waitFor("nothing is under way", () => world.folders("work").length === 0); // hashes were made meanwhile
    assert.deepEqual(world.folders("capsules"), ["lost+found", "stray"], "names that no capsule has are left alone");
    assert.deepEqual(world.folders("templates"), ["lost+found", "stray"]);
    for (const folder of ["capsules", "templates"]) {
      for (const name of ["stray", "lost+found"]) rmSync(path(folder, name), { recursive: true });
    }
  });

  test("a damaged base is replaced, and what stands on it is refused", { timeout: 600_000 }, async () => {
    const { id } = await pausedCapsule();
    await world.server.kill("SIGTERM");
    const { origin } = JSON.parse(readFileSync(path("capsules", id, "capsule.json"), "utf8"));
    const manifest = path(origin, "manifest.json");
    const whole = readFileSync(manifest, "utf8");
    replace(manifest, "");
    await world.restart("SIGTERM");
    const { status, text } = await world.client.call("POST", `/v1/capsules/${id}/resume`);
    assert.ok(status >= 400, `resumed: ${text}`);
    await using other = await world.client.capsule();
    assert.equal(await other.sh("echo served"), "served");
    replace(manifest, whole);
    await assertResumes(id);
  });
});

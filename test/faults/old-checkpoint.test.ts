/**
 * A resumed capsule runs before its checkpoint is removed. When the machine ends in between, and a pause or a capture was
 * already recorded, the next daemon finds a whole checkpoint and that intent: the checkpoint is older than the disk, and the
 * capsule must not be resumed from it.
 */
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { waitFor } from "../wait-for.ts";
import { assertMarked, mark } from "./marks.ts";
import { World } from "./world.ts";

let world: World;
before(async () => {
  world = await World.start();
});
after(() => world[Symbol.asyncDispose]());

const preload = `--import ${join(import.meta.dirname, "hold-removal.ts")}`;

const changes = [
  { intent: "pause", request: (id: string) => world.client.call("POST", `/v1/capsules/${id}/pause`) },
  {
    intent: "capture",
    request: (id: string) => world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: id } }),
  },
];

for (const { intent, request } of changes) {
  test(`a reset of the machine after a resume's thaw, with a ${intent} recorded`, async () => {
    const { id } = await world.client.capsule();
    await mark(world.capsule(id));
    await world.capsule(id).pause();
    await world.restart("SIGTERM", undefined, { NODE_OPTIONS: preload });
    const resumed = world
      .capsule(id)
      .resume()
      .then(
        () => assert.fail("the resume ended"),
        () => {},
      );
    await world.capsule(id).until("running");
    await assertMarked(world.capsule(id)); // its processes are thawed
    await world.capsule(id).sh("echo newer > /root/file; sync");
    const changed = request(id).catch(() => {});
    await waitFor(`the ${intent} is recorded`, async () => {
      const { status, json } = await world.capsule(id).exec({ cmd: "true" });
      return status === 409 && json.error.details.intent === intent;
    });
    assert.ok(world.folders("capsules", id).includes("checkpoint"), "the checkpoint is removed already");
    await world.reset();
    await Promise.all([resumed, changed]);

    const { status, error_reason } = await world.capsule(id).view();
    assert.equal(status, "error", "it was resumed from this checkpoint, and has run since");
    assert.ok(error_reason.length > 5, error_reason);
    assert.equal((await world.client.call("POST", `/v1/capsules/${id}/resume`)).status, 409);
    await world.assertConsistent();
    await world.assertNoResidue();
  });
}

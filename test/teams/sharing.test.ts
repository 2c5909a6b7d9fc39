/**
 * Capsules share pages of the memory and disk that they were made from. Capsules of one team may share through the
 * team's templates, and all capsules through the built-in images, which contain no team's data.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Origin } from "../../src/host/host.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { fakeService, running } from "../fakes/fake-service.ts";

test("a capsule depends on a built-in image or a template of its own team, whatever the names", async () => {
  const host = new FakeHost();
  const origins = new Map<string, Origin>();
  const start = host.start.bind(host);
  host.start = (id, origin, shape, turn) => {
    origins.set(id, origin);
    return start(id, origin, shape, turn);
  };
  const service = fakeService({ host });
  const { capsules, templates, templateRows, team, other } = service;
  for (const teamId of [team, other]) {
    const capsuleId = await running({ ...service, team: teamId });
    await templates.capture(teamId, { capsuleId, name: "same-name", overwrite: false });
  }
  const shape = { vcpus: 1, memoryMb: 512, timeoutSec: 0 };
  const made = new Map<string, string>();
  for (const teamId of [team, other, team, other]) {
    for (const template of ["same-name", "minimal"]) {
      made.set((await capsules.create(teamId, { ...shape, template })).id, teamId);
    }
  }
  await service.settled();
  const teamOf = new Map(templateRows.all().map((row) => [row.storage, row.teamId]));
  assert.equal(teamOf.size, 2);
  const stands = [...made].map(([id, teamId]) => {
    const origin = origins.get(id);
    return origin?.kind === "base" ? `built-in ${origin.name}` : teamOf.get(origin?.storage ?? "") === teamId;
  });
  assert.deepEqual(new Set(stands), new Set(["built-in minimal", true]));
});

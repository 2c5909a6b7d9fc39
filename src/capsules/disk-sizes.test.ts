import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { fakeService, running } from "../../test/fakes/fake-service.ts";
import type { CreateRequest } from "./new-row.ts";

const asked = (more: Partial<CreateRequest>): CreateRequest => ({
  ...{ template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 },
  ...more,
});

describe("the size of a disk", () => {
  it("is the template's, or the larger one that was asked for, with which no warm capsule is taken", async () => {
    const host = new FakeHost();
    const service = fakeService({ host });
    host.ahead.push("cl-warm");
    const { id, diskMb } = await service.capsules.create(service.team, asked({ diskMb: 8_192 }));
    await service.settled();
    assert.deepEqual([diskMb, host.disks.get(id), host.ahead], [8_192, 8_192, ["cl-warm"]]);
    const same = await service.capsules.create(service.team, asked({ diskMb: 4_096 }));
    assert.deepEqual([same.id, same.diskMb], ["cl-warm", 4_096]);
  });

  it("is kept by a template, from which a smaller one is refused", async () => {
    const service = fakeService();
    const { id } = await service.capsules.create(service.team, asked({ diskMb: 8_192 }));
    await service.settled();
    await service.templates.capture(service.team, { capsuleId: id, name: "large", overwrite: false });
    const made = await service.capsules.create(service.team, asked({ template: "large" }));
    assert.equal(made.diskMb, 8_192);
    const smaller = service.capsules.create(service.team, asked({ template: "large", diskMb: 8_191 }));
    await assert.rejects(smaller, { code: "invalid_request", details: { field: "disk_mb" } });
  });

  it("cannot be larger than that of a template whose agent cannot make it so", async () => {
    const host = new FakeHost();
    const service = fakeService({ host });
    host.capturesGrow = false;
    await service.templates.capture(service.team, {
      ...{ capsuleId: await running(service), name: "old", overwrite: false },
    });
    const larger = service.capsules.create(service.team, asked({ template: "old", diskMb: 4_097 }));
    await assert.rejects(larger, { code: "conflict" });
    assert.deepEqual(service.capsules.list(service.team), []);
    const same = await service.capsules.create(service.team, asked({ template: "old", diskMb: 4_096 }));
    assert.equal(same.diskMb, 4_096);
  });

  it("cannot be larger than that of an image whose agent cannot make it so; the quota is asked first", async () => {
    const service = fakeService({ quotas: { capsules: 1 } });
    service.host.imagesGrow = false;
    await assert.rejects(service.capsules.create(service.team, asked({ diskMb: 4_097 })), { code: "conflict" });
    assert.deepEqual(service.capsules.list(service.team), []);
    assert.deepEqual([service.host.admitted, service.host.owners], [0, []], "nothing was begun");
    await running(service);
    await assert.rejects(service.capsules.create(service.team, asked({ diskMb: 4_097 })), { code: "quota_exceeded" });
  });

  it("of rows of an earlier release is that of their own files", async () => {
    const service = fakeService();
    const [id, other] = [await running(service), await running(service)];
    service.capsuleRows.setDiskSize(id, 0);
    service.capsuleRows.setDiskSize(other, 0);
    service.host.disks.set(id, 2_048);
    service.host.disks.delete(other);
    const { database, host, clock, secret } = service;
    const next = fakeService({ database, host, clock, secret });
    await next.recover();
    assert.equal(next.capsules.get(next.team, id).diskMb, 2_048);
    assert.equal(next.capsules.get(next.team, other).diskMb, 4_096, "without a disk: the image's");
  });
});

/** A cluster of two real daemons without a bucket, whose file gets one by hand: docs/operations/cluster.md says how. Over Ceph. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { isLong } from "../faults/faults-form.ts";
import { waitFor } from "../wait-for.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { bare, Daemons } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

/** Requests for a capsule that is on its way. */
const errors = [/"code":"unavailable"/];
const skip = lacksPostgres || lacksCeph || (!isLong && "only with CAPSULE_FAULTS=long");

describe("a bucket that a cluster gets later", { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-added-bucket-"));
  after(() => rmSync(folder, { recursive: true }));

  test("its fields in the file of each host, and a restart: what was paused before leaves its host", async () => {
    const envOf = () => ({ ...bare, CAPSULE_RELEASE_AFTER_SEC: "1" });
    await using daemons = await Daemons.start({ names: ["one", "two"], envOf, errors });
    const [one, two] = daemons.hosts;
    const capsule = await one!.client.capsule({ timeout_sec: 0 });
    await capsule.sh("echo before > /run/mark");
    const { host: holder } = await capsule.view();
    await capsule.pause();
    const ceph = await CephServer.startIn(join(folder, "ceph"));
    try {
      const { url, accessKeyId, secretAccessKey } = await ceph.newBucket();
      const sealing = { sealing_key: randomBytes(32).toString("hex"), sealing_key_number: 1 };
      const bucket = { url, access_key_id: accessKeyId, secret_access_key: secretAccessKey, ...sealing };
      for (const { server, name } of daemons.hosts) {
        const path = server.environment.CAPSULE_CLUSTER!;
        writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, "utf8")), bucket }), { mode: 0o600 });
        await server.kill("SIGTERM");
        await daemons.start(name);
      }
      await daemons.known();
      const asked = (holder === "one" ? two! : one!).client.known(capsule.id);
      const isReleased = async () => {
        const { status, json, text } = await asked.client.call("GET", asked.path);
        if (status === 503) return false; // it is leaving
        assert.equal(status, 200, text);
        return json.host === null;
      };
      await waitFor("the capsule to be released", isReleased, { deadlineMs: 300_000 });
      await daemons.host(holder).server.kill("SIGTERM"); // with its copy
      await asked.resume();
      assert.equal(await asked.sh("cat /run/mark"), "before");
      await asked.destroy();
    } finally {
      await ceph.remove();
    }
  });
});

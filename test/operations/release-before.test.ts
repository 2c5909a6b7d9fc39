/** An upgrade from the release before, whose own server makes the data folder that this version opens. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { before, describe, test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { askMemoryProcess, startMemoryProcess } from "../conformance/memory-process.ts";
import { processesOf, Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { buildReleaseBefore, missingHistory, type Release, releaseBefore, upgradeImages } from "./release-before.ts";

/** Every VM is a capsule's. */
const env = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" };

/** Stack and `task_struct`. */
const kernelKibOfThread = 16 + 8;
/** Beyond the agent of the release before, in a fresh capsule. */
const agentGrowthMaxKib = 64;
/**
 * The gateway's code in the agent's file. The agent never runs it, and it is held once for all capsules of a base, with the gateway's
 * own pages (ADR 85).
 */
const gatewayCodeKib = 56;

/** State that must survive: a file on the disk, and the memory of a process. */
interface Left {
  file: string;
  memory: string;
}

async function leave(capsule: TestCapsule, file: string): Promise<Left> {
  await startMemoryProcess(capsule);
  await capsule.sh(`echo ${file} > /root/file`);
  return { file, memory: await askMemoryProcess(capsule, "change") };
}

async function find(capsule: TestCapsule): Promise<Left> {
  return { file: await capsule.sh("cat /root/file"), memory: await askMemoryProcess(capsule, "tell") };
}

async function pauseAndResume(capsule: TestCapsule): Promise<void> {
  await capsule.pause();
  await capsule.resume();
}

function vmsOf({ dataDir }: Server): number[] {
  return processesOf(dataDir).flatMap(({ pid, command }) => (/^\S*(qemu-system|\/qemu\/)/.test(command) ? [pid] : []));
}

function isOfRelease({ pid }: Server): boolean {
  return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(releaseBefore);
}

/** KiB of the guest's memory that its agent holds: its file, which lies in memory, its own pages, and its threads in the kernel. */
async function agentMemory(capsule: TestCapsule): Promise<number> {
  const read =
    "stat -Lc %s /proc/1/exe; ls /proc/1/task | wc -l; sed -n 's/^Anonymous: *\\([0-9]*\\) kB$/\\1/p' /proc/1/smaps_rollup";
  const [fileBytes, threads, ownKib] = (await capsule.sh(read)).split("\n").map(Number);
  assert.ok(fileBytes && threads && ownKib, "the agent's file, threads and pages are told");
  return fileBytes / 1024 + ownKib + threads * kernelKibOfThread;
}

/** The least of fresh capsules: an agent keeps a thread of 36 KiB from its first job on, which a busy machine begins before this. */
async function freshAgentMemory(client: Client): Promise<number> {
  let leastKib = Number.POSITIVE_INFINITY;
  for (let count = 0; count < 3; count++) {
    await using fresh = await client.capsule();
    leastKib = Math.min(leastKib, await agentMemory(fresh));
  }
  return leastKib;
}

/** Makes one capsule in each status, a template and two keys. */
async function makeAll(client: Client) {
  const agentKib = await freshAgentMemory(client);
  const paused = await client.capsule({ timeout_sec: 3_600 });
  const inPaused = await leave(paused, "of-the-paused");
  await paused.pause();
  const captured = await client.capsule();
  const inTemplate = await leave(captured, "of-the-template");
  await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: "tools" } });
  const stopped = await client.capsule();
  await stopped.sh("echo of-the-stopped > /root/file");
  await stopped.run("bash", ["-c", "(sleep 8; poweroff) >/dev/null 2>&1 &"]);
  await stopped.until("stopped");
  const running = await client.capsule();
  const inRunning = await leave(running, "of-the-running");
  const makeKey = async (name: string) => (await client.expect(201, "POST", "/v1/keys", { json: { name } })).json;
  const [valid, revoked] = [await makeKey("valid"), await makeKey("revoked")];
  await client.expect(204, "DELETE", `/v1/keys/${revoked.id}`);
  return {
    agentKib,
    paused,
    inPaused,
    inTemplate,
    stopped,
    running,
    inRunning,
    valid: valid.key,
    revoked: revoked.key,
  };
}

async function seen(client: Client) {
  const paths = ["/v1/capsules", "/v1/snapshots?type=snapshot", "/v1/audit?limit=5"];
  const replies = await Promise.all(paths.map((path) => client.expect(200, "GET", path)));
  return replies.map(({ json }) => json);
}

describe("an upgrade from the release before", { skip: missingHistory() ?? false }, () => {
  let release: Release;
  before(
    async () => {
      release = await buildReleaseBefore();
    },
    { timeout: 1_200_000 },
  );

  test("capsules in every status, templates, keys and the audit log are there and work", {
    timeout: 900_000,
  }, async () => {
    await using server = await Server.start({ env, program: release.program, images: release.images });
    const first = await Client.connect(server.url, server.apiKey, { describesHeaders: false });
    assert.ok(isOfRelease(server), "the server is the release before");
    const made = await makeAll(first);
    const sawBefore = await seen(first);
    const vms = vmsOf(server);
    first.close();
    await server.kill("SIGTERM");
    await upgradeImages(server.dataDir, release);
    await server.start();
    await server.adopted();
    assert.ok(!isOfRelease(server), "the server is this version");

    const client = await Client.connect(server.url, server.apiKey);
    const [capsules, templates, audit] = sawBefore;
    const added = {
      on_timeout: "pause",
      lifetime_sec: 0,
      expires_at: null,
      on_expiry: "destroy",
      retention_sec: 0,
      auto_resume: false,
      disk_mb: 4_096,
      host: null,
      network: { egress: "none", allow: [], deny: [], public_ports: [], host_header: null, inject: [] },
    };
    const portUrl = (id: string) => server.url.replace("127.0.0.1", `{port}-${id}.localhost`);
    const capsulesNow = capsules.map((capsule: { id: string }) => ({
      ...{ ...capsule, name: null, labels: {}, ...added, port_url: portUrl(capsule.id) },
    }));
    const entries = audit.entries.map((entry: object) => ({ ...entry, exit_code: null }));
    assert.deepEqual(
      await seen(client),
      [capsulesNow, templates, { ...audit, entries }],
      "as before, with the fields that are new",
    );
    await client.as(made.valid).expect(200, "GET", "/v1/limits");
    await client.as(made.revoked).expect(401, "GET", "/v1/limits");

    const [paused, running] = [client.known(made.paused.id), client.known(made.running.id)];
    assert.deepEqual(vmsOf(server), vms, "the running capsule has the VM it had");
    assert.deepEqual(await find(running), made.inRunning, "adopted");
    await paused.resume();
    const refused = await client.expect(409, "GET", `/v1/capsules/${paused.id}/ports`);
    assert.match(refused.json.error.message, /made before networking: stop and start it/);
    const isUnsupported = async ({ id }: TestCapsule) =>
      (await client.expect(200, "GET", `/v1/capsules/${id}/network`)).json.unsupported;
    assert.equal(await isUnsupported(paused), true);
    for (const cycle of ["by the release before", "by this version"]) {
      assert.deepEqual(await find(paused), made.inPaused, `paused ${cycle}`);
      await pauseAndResume(paused);
    }
    await pauseAndResume(running);
    assert.deepEqual(await find(running), made.inRunning, "paused after it was adopted");

    const stopped = client.known(made.stopped.id);
    await stopped.start();
    assert.equal(await stopped.sh("cat /root/file"), "of-the-stopped", "with this version's kernel and agent");
    for (const each of [stopped, running]) {
      await each.sh("echo written > /root/written");
      await each.stop();
      await each.start();
      assert.equal(await each.sh("cat /root/written"), "written");
      await client.expect(200, "GET", `/v1/capsules/${each.id}/ports`);
      assert.equal(await isUnsupported(each), false);
      await pauseAndResume(each);
      assert.equal(await each.sh("cat /root/written"), "written", "on the machine that it was started on");
    }

    const fromTemplate = await client.capsule({ template: "tools" });
    assert.deepEqual(await find(fromTemplate), made.inTemplate, "from its template");
    await pauseAndResume(fromTemplate);
    assert.deepEqual(await find(fromTemplate), made.inTemplate, "from its template, and paused");
    await using anew = await client.capsule();
    const grownKib = (await freshAgentMemory(client)) - made.agentKib;
    const maxKib = agentGrowthMaxKib + gatewayCodeKib;
    assert.ok(grownKib <= maxKib, `the agent holds ${grownKib} KiB more than that of the release before`);
    assert.equal(await anew.sh("echo made anew"), "made anew");

    for (const id of [paused.id, running.id, fromTemplate.id, made.stopped.id]) await client.known(id).destroy();
    await client.expect(204, "DELETE", "/v1/snapshots/tools");
    assert.deepEqual(readdirSync(join(server.dataDir, "capsules")), [anew.id]);
    assert.deepEqual(readdirSync(join(server.dataDir, "templates")), []);
    await waitFor("the end of all VMs but one", async () => vmsOf(server).length === 1);
    assert.deepEqual(await server.log.unexpected(), []);
    client.close();
  });
});

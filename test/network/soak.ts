/**
 * Relay, server and gateways are killed, and capsules paused, at random beside downloads and installs: no byte may be wrong, no install
 * may hang, and connections, descriptors and memory must come back to where they were. As root:
 * `node test/network/soak.ts --minutes 10`.
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { parseArgs } from "node:util";
import type { TestCapsule } from "../client.ts";
import { randomOf } from "../relay/mutations.ts";
import { waitFor } from "../wait-for.ts";
import { makeArchives } from "./archives.ts";
import { inOwnFolder, installed, installs, useArchives } from "./installs.ts";
import { soakProgram } from "./soak-program.ts";
import { connected, killGateway, patient, useResolver, WholeWorld } from "./whole-world.ts";

const { values } = parseArgs({ options: { minutes: { type: "string", default: "10" }, inside: { type: "boolean" } } });
const { random, seed } = randomOf();
const minuteMs = 60_000;
const capsulesMax = 2;
/** Code that is compiled later and pages that the allocator keeps do not grow with time. */
const slackBytes = 48 << 20;
const slackDescriptors = 2;
const relayStarts = /"msg":"the relay is up"/g;

if (values.inside !== true) {
  const inside = [process.execPath, ...process.argv.slice(1), "--inside"];
  const { status } = spawnSync("unshare", ["--net", "--mount", ...inside], { stdio: "inherit" });
  process.exit(status ?? 1);
}

interface Use {
  relayDescriptors: number;
  serverDescriptors: number;
  relayBytes: number;
  serverBytes: number;
  gatewayDescriptors: number;
  gatewayBytes: number;
  /** The dialled servers still have so many. */
  connections: number;
}

const descriptorsOf = (pid: number) => readdirSync(`/proc/${pid}/fd`).length;
const bytesOf = (pid: number) =>
  1_024 * Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);

async function measure(whole: WholeWorld, ids: string[]): Promise<Use> {
  await whole.relayIsUp();
  const [relay, server] = [await whole.relay(), whole.server.pid!];
  const gateway =
    "cd /proc/$(pgrep -o -f '[-]-gateway'); ls fd | wc -l; sed -n 's/^VmRSS:\\s*\\([0-9]*\\) kB/\\1/p' status";
  const said = await Promise.all(ids.map((id) => whole.client.known(id).sh(gateway, patient)));
  const sum = (row: number) => said.reduce((total, text) => total + Number(text.split("\n")[row]), 0);
  return {
    relayDescriptors: descriptorsOf(relay),
    serverDescriptors: descriptorsOf(server),
    relayBytes: bytesOf(relay),
    serverBytes: bytesOf(server),
    gatewayDescriptors: sum(0),
    gatewayBytes: 1_024 * sum(1),
    connections: whole.internet.connections(),
  };
}

const above = (now: Use, baseline: Use) =>
  (Object.keys(baseline) as (keyof Use)[]).filter(
    (what) => now[what] > baseline[what] + (what.endsWith("Bytes") ? slackBytes : slackDescriptors),
  );

type Victim = "relay" | "gateway" | "SIGTERM" | "SIGKILL" | "pause";
/** Each is as likely as its share of the list. */
const victims: readonly Victim[] = [
  ...Array<Victim>(3).fill("relay"),
  ...Array<Victim>(3).fill("gateway"),
  ...Array<Victim>(2).fill("pause"),
  "SIGTERM",
  "SIGKILL",
];

async function disturb(whole: WholeWorld, ids: string[], count: Record<string, number>): Promise<void> {
  const anyOf = <T>(list: readonly T[]) => list[Math.floor(random() * list.length)]!;
  const victim = anyOf(victims);
  const capsule = whole.client.known(anyOf(ids));
  count[victim] = (count[victim] ?? 0) + 1;
  if (victim === "relay") process.kill(await whole.relay(), "SIGKILL");
  else if (victim === "gateway") await killGateway(capsule);
  else if (victim === "pause") {
    await capsule.pause();
    await capsule.resume();
  } else await whole.restart(victim);
  await whole.relayIsUp();
}

async function works(capsule: TestCapsule): Promise<void> {
  await waitFor("a connection works", async () => (await connected(capsule, [["a.example", 80]]))[0] === "connected");
}

/** Every install that is not disturbed succeeds. */
async function installAll(capsule: TestCapsule, sha256: string): Promise<void> {
  for (const [name, script] of Object.entries(installs)) assert.equal(await installed(capsule, script), sha256, name);
}

async function soak(whole: WholeWorld, sha256: string): Promise<void> {
  console.log({ seed });
  const ids: string[] = [];
  for (let count = 0; count < capsulesMax; count++) ids.push((await whole.client.capsule()).id);
  const capsules = () => ids.map((id) => whole.client.known(id));
  for (const capsule of capsules()) {
    await works(capsule);
    await useArchives(capsule, whole.internet.certificate);
    await installAll(capsule, sha256);
  }
  const baseline = await measure(whole, ids);
  const scripts = Object.fromEntries(Object.entries(installs).map(([name, script]) => [name, inOwnFolder(script)]));
  const args = ["-c", soakProgram, "/tmp/stop", JSON.stringify(scripts), sha256];
  const command = { cmd: "python3", args, background: true, tag: "soak" };
  for (const capsule of capsules()) assert.equal((await capsule.exec(command)).status, 202);
  const disturbed: Record<string, number> = {};
  const untilMs = performance.now() + Number(values.minutes) * minuteMs;
  while (performance.now() < untilMs) {
    await delay(500 + 5_000 * random());
    await disturb(whole, ids, disturbed);
  }
  console.log({ disturbed });
  for (const capsule of capsules()) await works(capsule);
  for (const capsule of capsules()) await capsule.sh("touch /tmp/stop", patient);
  for (const capsule of capsules()) {
    const logs = async () =>
      (await whole.client.expect(200, "GET", `${capsule.path}/processes/soak/logs`)).bytes.toString();
    const ended = async () => /^\{.*\}$/m.exec(await logs())?.[0];
    const said = await waitFor("it ends", ended, { deadlineMs: 6 * minuteMs });
    const { counts, wrong } = JSON.parse(said);
    console.log(capsule.id, counts, wrong);
    assert.deepEqual(wrong, []);
    assert.ok(counts.download > 0 && counts.echo > 0);
    await installAll(capsule, sha256);
  }
  let use = baseline;
  const isBack = async () => {
    use = await measure(whole, ids);
    return above(use, baseline).length === 0;
  };
  await waitFor(() => `above the baseline: ${above(use, baseline)}`, isBack, { deadlineMs: 2 * minuteMs }).finally(() =>
    console.log({ baseline, use, relayStarts: readFileSync(whole.server.log.file, "utf8").match(relayStarts)?.length }),
  );
  for (const capsule of capsules()) await capsule.destroy();
}

const folder = mkdtempSync(join(tmpdir(), "network-soak-"));
try {
  useResolver(folder);
  const archives = makeArchives(join(folder, "archives"));
  await using whole = await WholeWorld.open(archives.folder);
  await soak(whole, archives.sha256);
} finally {
  rmSync(folder, { recursive: true });
}

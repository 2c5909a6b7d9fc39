/**
 * Many power cuts of a machine, in the long form or with CAPSULE_POWER_CUTS=N. It boots into the service alone, in some 10 s.
 * Each cut that loses nothing is a line of <data>/machine/power-cuts.jsonl, so several runs add up.
 */
import assert from "node:assert/strict";
import { appendFile, readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { Random } from "../conformance/random.ts";
import { isLong, onlyLong } from "./kvm-form.ts";
import type { KvmPlayer } from "./kvm-player.ts";
import { dataPath, KvmWorld, NoAnswer } from "./kvm-world.ts";
import { assertKept, cutPower, playersOf } from "./power.ts";

const cuts = Number(process.env.CAPSULE_POWER_CUTS || (isLong ? 200 : 0));
const skip = cuts === 0 && onlyLong;
const dataDir = resolve(process.env.CAPSULE_DATA || join(import.meta.dirname, "../../.capsule"));
const log = join(dataDir, "machine/power-cuts.jsonl");

const target = "capsule-alone.target";
const unit = `[Unit]
Wants=capsule.service systemd-networkd.service ssh.service
After=capsule.service
`;
/** The processor is the one of the boot before, so the probe's boot of a VM, half of a start here, is spared. */
const sameProcessor = `[Service]
ExecStartPre=-/bin/sh -c 'sed -i "s/\\\\"bootId\\\\": \\\\"[^\\\\"]*/\\\\"bootId\\\\": \\\\"$$(cat /proc/sys/kernel/random/boot_id)/" ${dataPath}/accelerator.json'
`;
const settings = "CAPSULE_POOL=off\\nCAPSULE_WARM_PROCESSES=1\\n";
const unsynced = `[Service]
Environment=LD_PRELOAD=/opt/no-sync.so
`;

describe("power cuts of a machine", { concurrency: false, skip }, () => {
  let world: KvmWorld;
  before(async () => {
    world = await KvmWorld.create();
    await write(`/etc/systemd/system/${target}`, unit);
    await write("/etc/systemd/system/capsule.service.d/processor.conf", sameProcessor);
    await world.sh(`printf '${settings}' >> /etc/capsule.env && ./dev install`);
    await world.served();
    // An orderly stop writes the server's compiled code.
    await world.sh("systemctl restart capsule");
    await world.served();
  });
  after(() => world?.[Symbol.asyncDispose]());

  const write = (path: string, text: string) =>
    world.machine.sh(`mkdir -p "$(dirname ${path})" && cat > ${path} && sync`, { input: text });

  /** Cuts the power while clients work, checks everything after the next boot; resolves with the acknowledged steps. */
  async function survive(players: KvmPlayer[], random: Random, fewestSteps?: number): Promise<number> {
    const steps = await cutPower(world, players, random, fewestSteps);
    await world.machine.powerOn(target);
    await world.answers();
    await assertKept(world.client, players);
    return steps;
  }

  test(`${cuts} at random moments: nothing acknowledged is lost`, { timeout: 36_000_000 }, async (t) => {
    const random = new Random(t);
    const players = playersOf(random);
    let steps = 0;
    for (let cut = 0; cut < cuts; cut++) {
      const began = performance.now();
      const acknowledged = await survive(players, random, 1).catch(async (cause) => {
        const journal = await world.sh("journalctl -u capsule -o short-monotonic -n 200").catch(String);
        throw new Error(`cut ${cut}: ${cause}\n${journal}`, { cause });
      });
      steps += acknowledged;
      const seconds = Math.round((performance.now() - began) / 1_000);
      const line = { at: new Date().toISOString(), acknowledged, seconds };
      await appendFile(log, `${JSON.stringify(line)}\n`);
    }
    assert.equal(await world.sh("systemctl --failed --no-legend"), "");
    const survived = (await readFile(log, "utf8")).split("\n").length - 1;
    t.diagnostic(`${cuts} cuts, ${steps} acknowledged steps; ${survived} cuts in all runs`);
    assert.ok(steps > 0, "nothing was done");
  });

  test("a service that does not flush is found out", { timeout: 3_600_000 }, async (t) => {
    await world.sh("cc -shared -fPIC -o /opt/no-sync.so test/faults/no-sync.c");
    await write("/etc/systemd/system/capsule.service.d/unsynced.conf", unsynced);
    await world.sh("systemctl daemon-reload && systemctl restart capsule");
    await world.served();
    const random = new Random(t);
    await assert.rejects(survive(playersOf(random), random, 12), (error) => {
      t.diagnostic(String(error).split("\n")[0]!);
      return error instanceof assert.AssertionError || error instanceof NoAnswer;
    });
  });
});

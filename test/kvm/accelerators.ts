/** A change of accelerator or processor: what the other one saved is refused or restored, as it should be, and stays. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { onlyLong } from "./kvm-form.ts";
import { dataPath, type KvmWorld } from "./kvm-world.ts";

/** The processor lacks nothing of this model, and much of the other. */
const model = { simple: "qemu64", lacking: "EPYC-v3" };

/** The part of a checkpoint's manifest that is read here. */
interface Saved {
  machine: { cpu_features: string; tsc_khz: number };
}

export function accelerators(world: () => KvmWorld): void {
  const saved = async (): Promise<TestCapsule> => {
    const capsule = await world().client.capsule();
    await capsule.sh("echo kept > /dev/shm/kept", { timeout: 300 });
    await capsule.pause();
    return capsule;
  };

  const isRefused = async ({ id }: TestCapsule, reason: RegExp) => {
    const capsule = world().client.known(id);
    const { json } = await world().client.expect(409, "POST", `${capsule.path}/resume`);
    assert.match(json.error.message, reason);
    assert.equal((await capsule.view()).status, "paused");
  };

  const works = async ({ id }: TestCapsule) => {
    const capsule = world().client.known(id);
    await capsule.resume();
    // Emulation inside emulation met the usual 30 s on a loaded machine.
    assert.equal(await capsule.sh("cat /dev/shm/kept", { timeout: 300 }), "kept");
    await capsule.destroy();
  };

  test("a capsule saved under KVM is refused under emulation; one saved under emulation resumes with KVM too", {
    skip: onlyLong,
  }, async () => {
    const underKvm = await saved();
    const emulated = await world().restartWith({ CAPSULE_ACCELERATOR: "tcg" });
    assert.equal(emulated.accelerator, "tcg");
    await isRefused(underKvm, /accelerator kvm there, tcg here/);
    const underTcg = await saved();
    const back = await world().restartWith({ CAPSULE_ACCELERATOR: "kvm" });
    assert.equal(back.accelerator, "kvm");
    await works(underKvm);
    await works(underTcg);
    const fresh = await world().client.capsule();
    const clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    assert.equal((await fresh.sh(`cat ${clock}`)).trim(), "kvm-clock");
    await fresh.destroy();
  });

  test("CAPSULE_CPU: capsules of another model are refused, and a model that the processor lacks means emulation", {
    skip: onlyLong,
  }, async () => {
    const ofHost = await saved();
    const named = await world().restartWith({ CAPSULE_ACCELERATOR: "auto", CAPSULE_CPU: model.simple });
    assert.equal(named.accelerator, "kvm", named.accelerator_reason);
    await isRefused(ofHost, new RegExp(`cpu host there, ${model.simple},enforce here`));
    const ofModel = await saved();
    const lacking = await world().restartWith({ CAPSULE_CPU: model.lacking });
    assert.equal(lacking.accelerator, "tcg");
    assert.match(lacking.accelerator_reason, /doesn't support requested feature/);
    await isRefused(ofModel, /accelerator kvm there, tcg here/);
    await world().restartWith({ CAPSULE_CPU: model.simple });
    await works(ofModel);
    await world().restartWith({ CAPSULE_CPU: "host" });
    await works(ofHost);
  });

  test("a checkpoint has the features of its processor and the rate of its clock, and is refused where they differ", {
    skip: onlyLong,
  }, async () => {
    const capsule = await saved();
    const path = `${dataPath}/capsules/${capsule.id}/checkpoint/manifest.json`;
    const text = await world().sh(`cat ${path}`);
    const { machine } = JSON.parse(text) as Saved;
    const write = (input: string) => world().machine.sh(`cat > ${path}`, { input });
    const refusedWith = async (change: Partial<Saved["machine"]>, reason: RegExp) => {
      await write(JSON.stringify({ ...JSON.parse(text), machine: { ...machine, ...change } }));
      await isRefused(capsule, reason);
    };
    const rateKhz = Number(await world().sh("sed 's/.*tsc_early_khz=\\([0-9]*\\).*/\\1/' /proc/cmdline"));
    assert.ok(Math.abs(machine.tsc_khz / rateKhz - 1) < 0.01, `${machine.tsc_khz} of ${rateKhz} kHz`);
    assert.match(machine.cpu_features, /\bsse2\b/);
    await refusedWith({ cpu_features: `${machine.cpu_features} unheard-of` }, /processor lacks unheard-of/);
    await refusedWith({ tsc_khz: machine.tsc_khz * 2 }, /time stamp counter \d+ kHz there, \d+ kHz here/);
    await write(text);
    await works(capsule);
  });
}

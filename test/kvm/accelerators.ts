/** A change of accelerator: with KVM, saves of both are restored; under emulation those of KVM are refused, and stay. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { onlyLong } from "./form.ts";
import type { World } from "./world.ts";

export function accelerators(world: () => World): void {
  const saved = async (): Promise<TestCapsule> => {
    const capsule = await world().client.capsule();
    await capsule.sh("echo kept > /dev/shm/kept", { timeout: 300 });
    await capsule.pause();
    return capsule;
  };

  const isRefused = async ({ id }: TestCapsule, there: string, here: string) => {
    const capsule = world().client.known(id);
    const { json } = await world().client.expect(409, "POST", `${capsule.path}/resume`);
    assert.match(json.error.message, new RegExp(`accelerator ${there} there, ${here} here`));
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
    await isRefused(underKvm, "kvm", "tcg");
    const underTcg = await saved();
    const back = await world().restartWith({ CAPSULE_ACCELERATOR: "kvm" });
    assert.equal(back.accelerator, "kvm");
    await works(underKvm);
    await works(underTcg);
    const fresh = await world().client.capsule();
    assert.equal(
      (await fresh.sh("cat /sys/devices/system/clocksource/clocksource0/current_clocksource")).trim(),
      "kvm-clock",
    );
    await fresh.destroy();
  });
}

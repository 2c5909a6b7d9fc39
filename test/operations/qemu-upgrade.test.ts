/**
 * An upgrade of the machine's QEMU, as in docs/operations/upgrade.md: what the old one made is paused and resumed by the old one, and
 * new capsules run in the new one. The new one is a copy whose version was changed.
 */
import assert from "node:assert/strict";
import { chmod, mkdtemp, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { qemuVersion } from "../../src/vmm/machine/qemu-version.ts";
import { Client, type TestCapsule } from "../client.ts";
import { buildsIn, copyQemu, qemuOf, realQemu } from "../qemu-builds.ts";
import { Server } from "../server.ts";

const version = await qemuVersion([realQemu]);
const next = version.replace(/\d$/, (digit) => String((Number(digit) + 1) % 10));

/** A machine's QEMU, with a server on it. */
class Fixture implements AsyncDisposable {
  readonly #folder: string;
  #program!: string;
  server!: Server;
  client!: Client;

  static async start(env: Record<string, string>): Promise<Fixture> {
    const fixture = new Fixture(await mkdtemp(join(tmpdir(), "capsule-upgrade-")));
    fixture.#program = await copyQemu(fixture.#folder);
    const qemu = { CAPSULE_QEMU: fixture.#program, CAPSULE_POOL: "off", ...env };
    fixture.server = await Server.start({ env: qemu, keepsQemu: true });
    await fixture.#connect();
    return fixture;
  }

  private constructor(folder: string) {
    this.#folder = folder;
  }

  async #connect(): Promise<void> {
    this.client = await Client.connect(this.server.url, this.server.apiKey);
  }

  /** As a package manager does it: another file takes the name. */
  async upgrade(): Promise<void> {
    const text = (await readFile(this.#program)).toString("latin1").replaceAll(version, next);
    await writeFile(`${this.#program}.new`, text, "latin1");
    await chmod(`${this.#program}.new`, 0o755);
    await rename(`${this.#program}.new`, this.#program);
  }

  async restart(): Promise<void> {
    this.client.close();
    await this.server.kill("SIGTERM");
    await this.server.start();
    await this.server.adopted();
    await this.#connect();
  }

  builds(): Promise<string[]> {
    return buildsIn(this.server.dataDir);
  }

  qemuOf({ id }: TestCapsule): Promise<{ version: string; build: string }> {
    return qemuOf(this.server.dataDir, id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.client?.close();
    await this.server?.[Symbol.asyncDispose]();
    await rm(this.#folder, { recursive: true });
  }
}

const shapes = {
  "in a jail": { CAPSULE_WARM_PROCESSES: "0" },
  "in a jail, with warm processes": {},
  "without a jail": { CAPSULE_JAIL: "off" },
};

describe("after an upgrade of QEMU", () => {
  for (const [shape, env] of Object.entries(shapes)) {
    test(`what the old one made goes on in it, and new capsules run in the new one (${shape})`, {
      timeout: 600_000,
    }, async () => {
      await using fixture = await Fixture.start(env);
      const marked = async () => {
        const capsule = await fixture.client.capsule();
        await capsule.sh("echo kept > /dev/shm/kept");
        return capsule;
      };
      const isKept = async (capsule: TestCapsule) => assert.equal(await capsule.sh("cat /dev/shm/kept"), "kept");
      const [paused, running, restarted] = [await marked(), await marked(), await marked()];
      await restarted.sh("echo on-disk > /root/kept");
      const old = await fixture.qemuOf(running);
      assert.equal(old.version, version);
      await paused.pause();

      await fixture.upgrade();
      const fresh = await marked();
      const young = await fixture.qemuOf(fresh);
      assert.equal(young.version, next);
      assert.notEqual(young.build, old.build);
      for (const capsule of [paused, running]) {
        if (capsule === running) await capsule.pause();
        await capsule.resume();
        await isKept(capsule);
        assert.deepEqual(await fixture.qemuOf(capsule), old);
      }

      await restarted.stop();
      await restarted.start();
      assert.deepEqual(await fixture.qemuOf(restarted), young, "a start takes the new one");
      await restarted.pause();
      await restarted.resume();
      assert.equal(await restarted.sh("cat /root/kept"), "on-disk");
      assert.deepEqual(await fixture.qemuOf(restarted), young);
      await restarted.destroy();

      await running.pause();
      await fresh.pause();
      await fixture.restart();
      const [again, second, third] = [running, fresh, paused].map(({ id }) => fixture.client.known(id)) as [
        TestCapsule,
        TestCapsule,
        TestCapsule,
      ];
      for (const [capsule, qemu] of [
        [again, old],
        [second, young],
      ] as const) {
        await capsule.resume();
        await isKept(capsule);
        assert.deepEqual(await fixture.qemuOf(capsule), qemu);
      }

      await fixture.restart();
      assert.deepEqual((await fixture.builds()).sort(), [old.build, young.build].sort());
      for (const { id } of [again, third]) await fixture.client.known(id).destroy();
      await fixture.restart();
      assert.deepEqual(await fixture.builds(), [young.build]);
    });
  }

  test("a capsule whose QEMU has another byte since is refused with the file's name, stays, and resumes when the file is put back", {
    timeout: 600_000,
  }, async () => {
    await using fixture = await Fixture.start({ CAPSULE_WARM_PROCESSES: "0" });
    const { server } = fixture;
    server.log.expect(/"a kept QEMU is damaged"/);
    server.log.expect(/"request failed"/);
    const capsule = await fixture.client.capsule();
    await capsule.sh("echo kept > /dev/shm/kept");
    const { build } = await fixture.qemuOf(capsule);
    await capsule.pause();
    await fixture.upgrade();
    await fixture.restart();
    const path = join(server.dataDir, "qemu", build, "bin/qemu-system-x86_64");
    const content = await readFile(path);
    const flipped = Buffer.from(content);
    flipped[flipped.length >> 1]! ^= 1;
    await writeFile(path, flipped);

    const resume = () => fixture.client.call("POST", `${capsule.path}/resume`);
    for (const reply of [await resume(), await resume()]) {
      assert.equal(reply.status, 502, reply.text);
      assert.match(
        reply.json.error.message,
        /is still paused: the copy of QEMU .* is damaged, .*: .* has other bytes than were copied$/,
      );
    }
    await (await fixture.client.capsule()).destroy();

    await writeFile(path, content);
    await fixture.restart();
    const again = fixture.client.known(capsule.id);
    await again.resume();
    assert.equal(await again.sh("cat /dev/shm/kept"), "kept");
  });
});

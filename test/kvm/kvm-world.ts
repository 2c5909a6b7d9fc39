/** The machine under test with the service that was installed in it, and a client outside. */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { Client, type Reply, type TestCapsule } from "../client.ts";
import { Machine } from "../machine/machine.ts";
import { usualShape } from "../machine/shape.ts";
import { waitFor } from "../wait-for.ts";

const dataDir = resolve(process.env.CAPSULE_DATA || join(import.meta.dirname, "../../.capsule"));
/** A start boots the KVM probe's VM, and the first one the template's, each some 20 s under emulation. */
const startDeadlineMs = 600_000;
/** Where the settings and the data of an installed service are. */
export const settingsPath = "/etc/capsule.env";
export const dataPath = "/var/lib/capsule";

/** The service did not answer in time. */
export class NoAnswer extends Error {}

export class KvmWorld implements AsyncDisposable {
  readonly machine: Machine;
  #client: Client | undefined;

  /** It is gone with this process, however that ends, unless by SIGKILL: then the next run removes it. */
  static async create(shape = usualShape): Promise<KvmWorld> {
    const machines = join(dataDir, "machine");
    await removeAbandoned(machines);
    const folder = join(machines, `test-${process.pid}`);
    process.once("exit", () => Machine.abandon(folder));
    for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(1));
    return new KvmWorld(await Machine.create({ machines, folder, shape, sources: { dataDir } }));
  }

  private constructor(machine: Machine) {
    this.machine = machine;
  }

  get client(): Client {
    assert.ok(this.#client !== undefined, "the service is not up");
    return this.#client;
  }

  sh(command: string): Promise<string> {
    return this.machine.sh(command);
  }

  /** Waits until the service answers; throws what systemd and the service say when it does not. */
  async answers(): Promise<void> {
    await waitFor("the service answers", () => this.health(), { deadlineMs: startDeadlineMs }).catch(async (cause) => {
      const told = this.sh("systemctl status capsule; journalctl -u capsule -o cat -n 30");
      throw new NoAnswer(await told.catch(String), { cause });
    });
  }

  /** As `answers`, with a new client; resolves with the service's health. */
  async served(data = dataPath): Promise<Reply["json"]> {
    await this.answers();
    this.#client?.close();
    this.#client = await Client.connect(this.machine.url, await this.sh(`cat ${data}/api-key`));
    return (await this.health()) ?? assert.fail("the service has stopped answering");
  }

  /** All of it with the client's key; before there is one, `ready` only. Undefined while nothing listens. */
  async health(): Promise<Reply["json"] | undefined> {
    const headers = this.#client === undefined ? {} : { "x-api-key": this.#client.key };
    const signal = AbortSignal.timeout(30_000);
    const answer = await fetch(`${this.machine.url}/healthz`, { headers, signal }).catch(() => {});
    return answer?.ok === true ? answer.json() : undefined;
  }

  /** Appends settings; a later line of the same name goes before an earlier one. */
  async restartWith(settings: Record<string, string>): Promise<Reply["json"]> {
    const lines = Object.entries(settings).map(([name, value]) => `${name}=${value}`);
    await this.sh(`printf '%s\\n' ${lines.join(" ")} >> ${settingsPath} && systemctl restart capsule`);
    return this.served();
  }

  /** The process of a running capsule's QEMU, inside the machine. */
  async vmOf({ id }: TestCapsule): Promise<number> {
    const { process } = JSON.parse(await this.sh(`cat ${dataPath}/capsules/${id}/vm.json`));
    return process.pid;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#client?.close();
    await this.machine.remove();
  }
}

/** Ends and removes the machines of runs that were killed. */
async function removeAbandoned(machines: string): Promise<void> {
  for (const name of await readdir(machines).catch(() => [])) {
    const pid = /^test-(\d+)$/.exec(name)?.[1];
    if (pid !== undefined && !existsSync(`/proc/${pid}`)) Machine.abandon(join(machines, name));
  }
}

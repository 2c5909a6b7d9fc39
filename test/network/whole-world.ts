/** A server with real capsules beside an internet (internet.ts), as root of network and mount namespaces of its own. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer, type Server as NetServer } from "node:net";
import { join } from "node:path";
import { Client, type TestCapsule } from "../client.ts";
import { processesOf, Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { connectToEach, hold } from "./guest-programs.ts";
import { Internet, type LentInternet, world } from "./internet.ts";
import { relayOf } from "./relay-process.ts";

export type Target = [way: string, host: string, port: number];

/** The most connections of a capsule. */
export const connectionsMax = 160;

export class WholeWorld<I extends LentInternet = Internet> implements AsyncDisposable {
  readonly internet: I;
  readonly server: Server;
  client: Client;
  readonly #onHost: string[] = [];
  readonly #hostServer: NetServer;

  /** `archives`: the folder of archives.ts. */
  static async open(archives?: string): Promise<WholeWorld> {
    return WholeWorld.beside(await Internet.open(archives));
  }

  static async beside<I extends LentInternet>(internet: I): Promise<WholeWorld<I>> {
    const server = await Server.start({
      env: {
        CAPSULE_EGRESS: "public",
        CAPSULE_POOL: "off",
        CAPSULE_WARM_PROCESSES: "0", // a VM then has the name of its capsule
        CAPSULE_PORT_DOMAIN: "apps.example",
        CAPSULE_NETWORK_CONNECTIONS_MAX: String(connectionsMax),
      },
      errors: [/the relay has ended/, /reaching the VM of capsule \S+ took longer than \d+ ms/],
    });
    const listening = createServer();
    const whole = new WholeWorld(internet, server, await Client.connect(server.url, server.apiKey), listening);
    await once(listening.listen(8_080, "0.0.0.0"), "listening");
    return whole;
  }

  private constructor(internet: I, server: Server, client: Client, listening: NetServer) {
    this.internet = internet;
    this.server = server;
    this.client = client;
    this.#hostServer = listening.on("connection", (socket) => {
      this.#onHost.push(`${socket.localAddress}:8080`);
      socket.end("host");
    });
  }

  /** Everything that has arrived anywhere since the last call. */
  async arrived(): Promise<{ connections: string[]; questions: string[]; resets: number }> {
    const { connections, questions, resets } = await this.internet.arrived();
    return { connections: [...connections, ...this.#onHost.splice(0)], questions, resets };
  }

  /** The server's next life. */
  async restart(signal: "SIGTERM" | "SIGKILL"): Promise<void> {
    await this.server.kill(signal);
    await this.server.start();
    await this.server.adopted();
    this.client.close();
    this.client = await Client.connect(this.server.url, this.server.apiKey);
  }

  async network(capsule: TestCapsule) {
    return (await this.client.expect(200, "GET", `${capsule.path}/network`)).json;
  }

  /** Resolves when there is a recent decision of each kind. Without an answer of the relay in a second the API lacks its last ones. */
  async shows(capsule: TestCapsule, ...kinds: ((decision: Record<string, unknown>) => boolean)[]): Promise<void> {
    await waitFor("recent decisions", async () => {
      const { recent } = await this.network(capsule);
      return kinds.every((isIt) => recent.some(isIt));
    });
  }

  async setNetwork(capsule: TestCapsule, json: object) {
    return (await this.client.expect(200, "PUT", `${capsule.path}/network`, { json })).json;
  }

  signalVm(id: string, signal: NodeJS.Signals): void {
    const vms = processesOf(this.server.dataDir).filter(
      ({ command }) => !/^\S*bwrap /.test(command) && command.includes(` guest=${id} `),
    );
    assert.ok(vms.length > 0, "the capsule has a VM");
    for (const { pid } of vms) process.kill(pid, signal);
  }

  /** The process of the relay, once there is one. */
  relay(): Promise<number> {
    return waitFor("there is a relay", () => relayOf(this.server.pid!));
  }

  async relayIsUp(): Promise<void> {
    const isUp = async () => (await this.client.expect(200, "GET", "/healthz")).json.network.relay === "up";
    await waitFor("the relay is up", isUp);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.client.close();
    this.#hostServer.close();
    try {
      await this.server[Symbol.asyncDispose]();
    } finally {
      await this.internet[Symbol.asyncDispose]();
    }
  }
}

/** The file that names the resolver of this mount namespace. */
export function useResolver(folder: string): void {
  const file = join(folder, "resolv.conf");
  writeFileSync(file, `nameserver ${world.dns}\n`);
  execFileSync("mount", ["--bind", file, "/etc/resolv.conf"]);
}

/** Deadline of commands, also of a guest that is busy on a busy machine. */
export const patient = { timeout_sec: 300 };

/** The output of a program in the guest. */
export async function python(capsule: TestCapsule, program: string, ...args: (string | number)[]): Promise<string> {
  const command = ["-c", program, ...args.map(String)];
  const { stdout, stderr, exit_code } = await capsule.run("python3", command, patient);
  assert.equal(exit_code, 0, stderr);
  return stdout.trim();
}

/** How connecting to each has gone. */
export async function connected(capsule: TestCapsule, targets: [host: string, port: number][]): Promise<string[]> {
  return JSON.parse(await python(capsule, connectToEach, JSON.stringify(targets)));
}

/** Connections that a command in the guest holds. */
export class Held {
  static #count = 0;
  readonly #capsule: TestCapsule;
  readonly #tag: string;

  static async open(capsule: TestCapsule, targets: Target[]): Promise<Held> {
    const args = ["-c", hold, JSON.stringify(targets)];
    const tag = `hold-${++Held.#count}`;
    const { status } = await capsule.exec({ cmd: "python3", args, background: true, tag });
    assert.equal(status, 202);
    const held = new Held(capsule, tag);
    await waitFor("the connections stand", async () => (await held.lines()).length === targets.length);
    return held;
  }

  private constructor(capsule: TestCapsule, tag: string) {
    this.#capsule = capsule;
    this.#tag = tag;
  }

  /** The same command in a clone, or asked for of the server's next life. */
  in(capsule: TestCapsule): Held {
    return new Held(capsule, this.#tag);
  }

  async lines(): Promise<string[]> {
    const { bytes } = await this.#capsule.client.expect(
      200,
      "GET",
      `${this.#capsule.path}/processes/${this.#tag}/logs`,
    );
    return bytes.toString().split("\n").filter(Boolean);
  }

  /** How each has ended, when all have. */
  async ends(): Promise<string[]> {
    const lines = () => this.lines();
    let last: string[] = [];
    await waitFor(
      () => `the connections end: ${last}`,
      async () => {
        last = await lines();
        return last.includes("all ended");
      },
    );
    return last.filter((line) => /^\S+ \S/.test(line) && line !== "all ended").sort();
  }
}

/** Kills the gateway as the guest's root can, and waits until there is another. */
export async function killGateway(capsule: TestCapsule): Promise<void> {
  // The pattern does not match the command that has it.
  const find = "pgrep -o -f '[-]-gateway'";
  await capsule.sh(
    `old=$(${find}); kill -KILL $old; until new=$(${find}) && [[ $new != $old ]]; do sleep .05; done`,
    patient,
  );
}

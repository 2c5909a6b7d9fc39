/**
 * The real HTTP layer over the real service on a fake host, with its log captured; every answer is checked against the
 * OpenAPI document.
 */
import { hash } from "node:crypto";
import type { InjectOptions } from "fastify";
import pino from "pino";
import type { Status } from "../src/capsules/lifecycle.ts";
import { loadConfig } from "../src/config.ts";
import { TeamRows } from "../src/db/team-rows.ts";
import { buildServer, type ServerOptions } from "../src/http/app.ts";
import type { Forwarding } from "../src/http/forwarding.ts";
import type { App } from "../src/http/route.ts";
import type { Limits } from "../src/wire/limits.ts";
import type { FakeAgent } from "./fakes/agent.ts";
import { FakeCluster } from "./fakes/fake-cluster.ts";
import { type FakeService, type FakeServiceOptions, fakeService } from "./fakes/fake-service.ts";
import { Contract, type OpenApi } from "./openapi-contract.ts";
import { waitFor } from "./wait-for.ts";

type Method = NonNullable<InjectOptions["method"]>;

/** The first keys of the teams `red` and `blue`. Their ids are `team-red` and `key-red`. */
export const keys = { red: `capk_${"1".repeat(48)}`, blue: `capk_${"2".repeat(48)}` } as const;

interface Call {
  /** null: no key. */
  key?: string | null;
  json?: unknown;
  body?: string | Buffer;
  headers?: Record<string, string>;
}

export interface Reply {
  status: number;
  headers: Record<string, unknown>;
  text: string;
  bytes: Buffer;
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  json: any;
}

export class Api {
  readonly service: FakeService;
  readonly log: string[] = [];
  /** The server of the host that holds the capsules, or, with CAPSULE_TEST_HOP, of one that passes requests on to it. */
  readonly app: App;
  /** The server of the host that holds the capsules. */
  readonly holder: App;
  readonly limits: Limits;
  /** Requests that wait for a status. */
  waits = 0;
  #contract: Contract | undefined;

  constructor(limits: Partial<Limits> = {}, options: Partial<ServerOptions> = {}, service: FakeServiceOptions = {}) {
    this.service = fakeService(service);
    this.limits = { ...loadConfig({}).limits, vcpus_max: 8, memory_max_mb: 65_536, ...limits };
    const logger = pino({ level: "trace" }, { write: (line) => void this.log.push(line) });
    addKeys(this.service);
    const { capsules } = this.service;
    const wait = capsules.wait.bind(capsules);
    capsules.wait = async (...asked) => {
      this.waits++;
      try {
        return await wait(...asked);
      } finally {
        this.waits--;
      }
    };
    const build = (of: FakeService, forwarding?: Forwarding) =>
      buildServer(of, { limits: this.limits, logger, version: "0.0.0", web: "/nowhere", forwarding, ...options });
    if (process.env.CAPSULE_TEST_HOP === undefined || options.forwarding !== undefined) {
      this.app = this.holder = build(this.service);
      return;
    }
    const other = fakeService({ clock: this.service.clock });
    addKeys(other);
    const cluster = new FakeCluster();
    const [near, far] = [cluster.join("near", () => other.store), cluster.join("far", () => this.service.store)];
    this.app = build(other, near.forwarder);
    this.holder = build(this.service, far.forwarder);
    void far.open();
    this.app.addHook("onClose", () => this.holder.close());
  }

  /** A request that names no capsule goes to the host that has them. */
  #appOf(method: Method, url: string): App {
    const isOfCapsule = url.startsWith("/v1/capsules/") || (method === "POST" && url.startsWith("/v1/snapshots"));
    return isOfCapsule || url.startsWith("/v1/ws-tickets") ? this.app : this.holder;
  }

  async document(): Promise<OpenApi> {
    return (await this.app.inject("/openapi.json")).json();
  }

  async call(method: Method, url: string, { key = keys.red, json, body, headers = {} }: Call = {}): Promise<Reply> {
    this.#contract ??= new Contract(await this.document());
    const payload = json === undefined ? body : JSON.stringify(json);
    const response = await this.#appOf(method, url).inject({
      method,
      url,
      headers: {
        ...(key === null ? {} : { "x-api-key": key }),
        ...(json === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
      ...(payload === undefined ? {} : { payload }),
    });
    const { statusCode: status, payload: text } = response;
    const path = url.split("?", 1)[0] as string;
    this.#contract.check({ method, path, status, headers: response.headers, body: text });
    const isJson = response.headers["content-type"]?.toString().startsWith("application/json");
    const { rawPayload: bytes } = response;
    return {
      status,
      headers: response.headers,
      text,
      bytes,
      json: isJson && text !== "" ? JSON.parse(text) : undefined,
    };
  }

  /** Creates a capsule and brings it to that status; its id. */
  async capsule(status: Status = "running", key: string = keys.red): Promise<string> {
    const { host } = this.service;
    host.isHanging = status === "starting";
    const { json } = await this.call("POST", "/v1/capsules", { key });
    await new Promise(setImmediate); // until its start hangs
    host.isHanging = false;
    if (status !== "starting") await this.#reached(json.id, "running");
    if (status !== "starting" && status !== "running") await this.become(json.id, status);
    return json.id;
  }

  /** Brings a capsule to another status as a client or its guest does, or lets its start go on. */
  async become(id: string, status: Exclude<Status, "starting">, errorReason = "its VM died"): Promise<void> {
    const { capsules, host, store } = this.service;
    const row = store.get(id);
    if (row === undefined) throw new Error(`the test knows no capsule ${id}`);
    if (status === "paused") await capsules.pause(row.teamId, id);
    else if (status === "running" && row.status === "paused") await capsules.resume(row.teamId, id);
    else if (status === "running") host.stopHanging();
    else {
      const kind = status === "stopped" ? "powered_off" : "lost";
      host.guests.get(id)?.endWith({ kind, reason: errorReason });
    }
    await this.#reached(id, status);
  }

  async #reached(id: string, status: Status): Promise<void> {
    await waitFor(`capsule ${id} is ${status}`, () => this.service.store.get(id)?.status === status);
  }

  /** The agent in a running capsule. */
  agent(id: string): FakeAgent {
    const guest = this.service.host.guests.get(id);
    if (guest === undefined) throw new Error(`capsule ${id} has no guest`);
    return guest.agent;
  }

  /** Whether a command that holds the idle timer off runs in it. */
  isBusy(id: string): boolean {
    return this.service.activity.isBusy(id);
  }

  lastActiveAt(id: string): number | null {
    return this.service.activity.lastOf(id) ?? this.service.store.get(id)?.lastActiveAt ?? null;
  }
}

/** A service on the database of another one has them already. */
function addKeys({ database, clock, teams }: FakeService): void {
  const rows = new TeamRows(database);
  for (const [team, key] of Object.entries(keys)) {
    if (teams.authenticate(key) !== undefined) continue;
    rows.insertKey({
      ...{ id: `key-${team}`, teamId: `team-${team}`, label: "first", prefix: key.slice(0, 9) },
      ...{ hash: hash("sha256", key), createdAt: clock.now(), expiresAt: null, madeBy: null, isSession: false },
    });
  }
}

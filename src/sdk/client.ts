/** The service with one key: capsules, templates, keys, limits, events. */
import { Capsule, createCapsule, listCapsules } from "./capsule.ts";
import type { CapsuleConditions, MetricOptions } from "./capsule-options.ts";
import type { CreateOptions } from "./create.ts";
import { type EventOptions, follow } from "./events.ts";
import { camelKeys } from "./key-case.ts";
import { refuseUnknown } from "./options.ts";
import type {
  HealthInfo,
  KeyInfo,
  LimitInfo,
  NewKey,
  ServiceEvent,
  SessionInfo,
  SignInLink,
  TeamMetric,
  TemplateInfo,
} from "./resources.ts";
import { type CallOptions, type ClientOptions, type Request, splitClientOptions, Transport } from "./transport.ts";

export class Client {
  readonly templates: Templates;
  readonly keys: Keys;
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}) {
    refuseUnknown("Client", splitClientOptions(options).rest);
    this.#transport = new Transport(options);
    this.templates = new Templates(this.#transport);
    this.keys = new Keys(this.#transport);
  }

  /** Exchanges the token of a one-time link for a client with a key of its own, which expires after some hours. */
  static async signIn(
    token: string,
    { signal, ...options }: ClientOptions & CallOptions = {},
  ): Promise<{ client: Client; key: string }> {
    refuseUnknown("signIn", splitClientOptions(options).rest);
    const request = { method: "POST", path: "/v1/sign-in", json: { token }, signal, isKeyless: true } as const;
    const { key } = await new Transport(options).json<{ key: string }>(request);
    return { client: new Client({ ...options, apiKey: key }), key };
  }

  /** Address of the service. */
  get url(): string {
    return this.#transport.url;
  }

  create(options: CreateOptions = {}): Promise<Capsule> {
    return createCapsule(this.#transport, options);
  }

  /** A handle by id, without a request; its `info` and `status` throw until a call has brought them. */
  capsule(id: string): Capsule {
    return new Capsule(this.#transport, id);
  }

  /** A capsule that exists. Throws `not_found`. */
  connect(id: string, options: CallOptions = {}): Promise<Capsule> {
    return this.capsule(id).refresh(options);
  }

  /** The team's capsules that meet the conditions, newest first. */
  list(options: CapsuleConditions & CallOptions = {}): Promise<Capsule[]> {
    return listCapsules(this.#transport, options);
  }

  async limits(options: CallOptions = {}): Promise<LimitInfo> {
    return camelKeys(await this.#transport.json({ method: "GET", path: "/v1/limits", ...options }));
  }

  /** The team's capsules, creates and refusals, oldest first. */
  async metrics({ since, step, ...options }: MetricOptions & CallOptions = {}): Promise<TeamMetric[]> {
    const request = { method: "GET", path: "/v1/metrics", query: { since, step }, ...options } as const;
    return camelKeys(await this.#transport.json(request));
  }

  /** Team and key of this client. */
  async session(options: CallOptions = {}): Promise<SessionInfo> {
    return camelKeys(await this.#transport.json({ method: "GET", path: "/v1/session", ...options }));
  }

  /** Needs no key. Does not throw when the service can make no capsule. */
  async health(options: CallOptions = {}): Promise<HealthInfo> {
    const request = { method: "GET", path: "/healthz", accept: [503], isKeyless: true, ...options } as const;
    return camelKeys(await this.#transport.json(request));
  }

  /** A one-time link that signs in to the dashboard. */
  async signInLink(options: CallOptions = {}): Promise<SignInLink> {
    const request = { method: "POST", path: "/v1/sign-in-links", ...options } as const;
    const { token, expires_at } = await this.#transport.json<{ token: string; expires_at: string }>(request);
    return { url: `${this.url}/#token=${token}`, expiresAt: expires_at };
  }

  /**
   * Changes, live, until the signal aborts or the loop is left. A broken connection is made again and continues after
   * the last event; where events were lost, `reset` says to list again.
   */
  events(options: EventOptions = {}): AsyncGenerator<ServiceEvent, void, undefined> {
    return follow(this.#transport, options);
  }

  /** Any other request of the API; resolves with the JSON of the answer, unchanged. */
  request<T>(request: Request): Promise<T> {
    return this.#transport.json<T>(request);
  }
}

export class Templates {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async list({ type, ...options }: { type?: "base" | "snapshot" } & CallOptions = {}): Promise<TemplateInfo[]> {
    return camelKeys(await this.#transport.json({ method: "GET", path: "/v1/snapshots", query: { type }, ...options }));
  }

  /** Running capsules are not affected; paused ones that started from it cannot be resumed. Throws `not_found`. */
  async remove(name: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: `/v1/snapshots/${encodeURIComponent(name)}`, ...options });
  }
}

export class Keys {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The team's live keys, oldest first. */
  async list(options: CallOptions = {}): Promise<KeyInfo[]> {
    const { keys } = await this.#transport.json<{ keys: unknown }>({ method: "GET", path: "/v1/keys", ...options });
    return camelKeys(keys);
  }

  async create(name: string, options: CallOptions = {}): Promise<NewKey> {
    return camelKeys(await this.#transport.json({ method: "POST", path: "/v1/keys", json: { name }, ...options }));
  }

  /** At once, also for the key in use. Throws `not_found`; `forbidden` for a key that the one in use may not revoke. */
  async revoke(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: `/v1/keys/${encodeURIComponent(id)}`, ...options });
  }
}

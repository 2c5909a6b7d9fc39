/** The creation of a capsule, which leaves nothing behind when it fails. */
import { type CapsulePolicies, type NetworkOptions, splitPolicies } from "./capsule-options.ts";
import { snakeKeys } from "./key-case.ts";
import { refuseUnknown } from "./options.ts";
import type { CallOptions, Request, Transport } from "./transport.ts";

export interface CreateOptions extends CapsulePolicies {
  /** Stands for the id in calls; unique in the team. */
  name?: string;
  /** The team's own notes, for `list`. */
  labels?: Record<string, string>;
  /** Variables of every command and terminal; a command's own go before them. They are kept encrypted and in no answer. */
  envs?: Record<string, string>;
  /** Default: `minimal`. */
  template?: string;
  /** Default: 1. A snapshot template brings its own. */
  vcpus?: number;
  /** MiB. Default: 512. A snapshot template brings its own. */
  memoryMb?: number;
  /** MiB. Default: the template's, which is the least. */
  diskMb?: number;
  /** Its destinations, and its public ports. */
  network?: NetworkOptions;
  /** False: resolve at once, while the capsule starts. Default: resolve when it is `running`. */
  wait?: boolean;
  /**
   * Names this creation for 24 hours: a call with the same key and the same options resolves with the same capsule, also in another
   * process. Nothing that was made under it is destroyed when the call fails. Default: a random one for each call.
   */
  idempotencyKey?: string;
  signal?: AbortSignal | undefined;
}

/** Time limit of each request that takes back a creation. */
const removeMs = 10_000;

/** The part of a handle that a creation needs. */
interface Made {
  until(status: "running", options: CallOptions): Promise<this>;
  destroy(options: CallOptions): Promise<void>;
}

/** Makes a capsule; `handleOf` makes its handle from the answer. */
export async function createOnce<Handle extends Made>(
  transport: Transport,
  options: CreateOptions,
  handleOf: (info: { id: string }) => Handle,
): Promise<Handle> {
  const {
    name,
    labels,
    envs,
    template,
    vcpus,
    memoryMb,
    diskMb,
    network,
    wait = true,
    idempotencyKey,
    signal,
    ...rest
  } = options;
  const { policies, ...unknown } = splitPolicies(rest);
  refuseUnknown("create", unknown);
  signal?.throwIfAborted();
  const json = snakeKeys({ name, labels, envs, template, vcpus, memoryMb, diskMb, network, ...policies });
  const sent = { isUnsure: false };
  const request = { ...onceOnly("/v1/capsules", json, idempotencyKey), sent };
  const ask = async (call: CallOptions) => handleOf(await transport.json<{ id: string }>({ ...request, ...call }));
  let capsule: Handle | undefined;
  try {
    capsule = await ask({ signal });
    return wait ? await capsule.until("running", { signal }) : capsule;
  } catch (error) {
    // A capsule under a key of the caller's own is the caller's. The first error says more than one of the removal.
    if (idempotencyKey === undefined && (capsule !== undefined || sent.isUnsure))
      await remove(capsule, () => ask({ timeoutMs: removeMs })).catch(() => {});
    throw error;
  }
}

/** Destroys a capsule that was made, or may have been: the same request again says which one it is. */
async function remove(capsule: Made | undefined, again: () => Promise<Made>): Promise<void> {
  await (capsule ?? (await again())).destroy({ timeoutMs: removeMs });
}

/** A request that the service carries out once, however often it is sent. */
export function onceOnly(path: string, json: unknown, key = randomKey()): Request {
  return { method: "POST", path, json, headers: { "idempotency-key": key }, repeat: "always" };
}

/** `crypto.randomUUID` is missing in pages without TLS. */
function randomKey(): string {
  const bytes = globalThis.crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

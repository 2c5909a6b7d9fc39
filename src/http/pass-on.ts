/**
 * Requests on capsules that another host holds: they go there whole, by the port of forwarding.ts, and every check behind the key's is the
 * holder's. A service on one host has no such port, and each request goes on in the same turn.
 */
import type { FastifyReply, FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";
import type { Action } from "../wire/requirements.ts";
import type { Authentication } from "./access/authentication.ts";
import { leaveOut, takeIn } from "./audit-trail.ts";
import type { Caller, Forwarding } from "./forwarding.ts";
import { hostOf } from "./origin.ts";
import type { Upgrade } from "./ports/port-visit.ts";
import { answerFromRow, type Need, type ReleasedCapsule, type ReleasedCapsules } from "./released.ts";
import type { App } from "./route.ts";

/** A name of DNS, and a port. */
const hostMaxLength = 260;

/** Requests that ask for an upgrade. */
export type Upgrades = WeakMap<object, Upgrade>;

export interface PassingOn {
  forwarding: Forwarding | undefined;
  upgrades: Upgrades;
  authentication: Pick<Authentication, "hasSharedTicket" | "admitAnonymous" | "requireSigned">;
  /** undefined: each capsule has a holder. */
  released?: Pick<ReleasedCapsules, "needOf"> | undefined;
}

interface Concerned {
  /** Id or name, as in the URL or the body. */
  key: string;
  /** The body, where it has been read already. */
  body?: Buffer;
}

/**
 * undefined: this host holds the capsule. Otherwise to be called in a turn of the request's owner: passes it on, or calls `goOn` with the
 * refusal, or with none where no host has the capsule. `goOn` takes a turn of its own.
 */
export function passOnOf(
  request: FastifyRequest,
  reply: FastifyReply,
  { key, body }: Concerned,
  { goOn, ...passingOn }: PassingOn & { goOn: (refusal?: Error) => void },
): (() => void) | undefined {
  const { forwarding, upgrades, authentication } = passingOn;
  if (forwarding === undefined) return undefined;
  const identity = request.identity as typeof request.identity | undefined;
  const passOn = forwarding.elsewhere(request.raw, identity?.teamId, key);
  if (passOn === undefined) return undefined;
  const known = authentication.hasSharedTicket(request) ? undefined : identity;
  const exchange = {
    ...{ request: request.raw, response: reply.raw, upgrade: upgrades.get(request.raw) },
    ...(body === undefined ? {} : { body }),
    isWebSocket: upgrades.has(request.raw),
    caller: {
      ...{ identity: known, address: request.ip, remote: request.raw.socket.remoteAddress ?? "" },
      requestId: request.id,
      origin: originFor(request),
    },
    team: identity?.teamId ?? key,
    admitLookup: () => authentication.admitAnonymous(request),
    needOf: (capsule: ReleasedCapsule) => needOf(request, capsule, passingOn),
    isOfRow: request.routeOptions.config.ofRow === true && !waits(request),
    isShow: request.routeOptions.config.ofRow === true && request.routeOptions.config.action === "read",
    onHeld: () => answerFromRow(request, undefined),
    onAnswer: () => answerElsewhere(request, reply),
  };
  leaveOut(request); // the holder's audit log has the entry
  const answerHere = (refusal?: Error) => {
    takeIn(request);
    goOn(refusal);
  };
  return () => {
    passOn(exchange).then((isAnswered) => {
      if (!isAnswered) answerHere();
    }, answerHere);
  };
}

/** Throws the refusal of the capsule's row, in the order of a holder's checks. */
function needOf(
  request: FastifyRequest,
  capsule: ReleasedCapsule,
  { authentication, released }: Pick<PassingOn, "authentication" | "released">,
): Need {
  const { action, capsuleField, ofRow, signed } = request.routeOptions.config;
  if (capsule.holder?.isLost === false && action !== "destroy") return "held"; // its row may be older than what its holder has
  answerFromRow(request, capsule);
  if (action !== undefined) (request.params as { id: string }).id = capsule.id; // it was named
  if (signed === true) authentication.requireSigned(request, capsule);
  const need = released?.needOf(capsule, action ?? actionOfBody(capsuleField), mayResume(request)) ?? "held";
  return ofRow === true ? "row" : need;
}

/** Whether the request waits for a status. */
function waits({ query }: FastifyRequest): boolean {
  return (query as { wait?: unknown } | undefined)?.wait !== undefined;
}

/** A body names the capsule that is captured, and no other one. */
function actionOfBody(capsuleField: string | undefined): Action {
  return capsuleField === undefined ? "read" : "snapshot";
}

/** Whether the request may resume its capsule. */
export function mayResume({ routeOptions, query }: FastifyRequest): boolean {
  return !(routeOptions.config.mayDeclineResume && (query as { resume?: unknown }).resume === "false");
}

const answeredElsewhere = new WeakSet<FastifyRequest>();

/** Call before the first byte of another host's answer. */
export function answerElsewhere(request: FastifyRequest, reply: FastifyReply): void {
  answeredElsewhere.add(request);
  reply.hijack();
}

/** Whether another host has answered, which counts the request. */
export function isAnsweredElsewhere(request: FastifyRequest): boolean {
  return answeredElsewhere.has(request);
}

/** undefined: a host that is longer than any name, which stays in the head alone. */
function originFor(request: FastifyRequest): Caller["origin"] {
  const host = hostOf(request);
  return host.length > hostMaxLength ? undefined : { protocol: request.protocol, host };
}

type RawJson = { rawJSON(text: string): unknown };
const { rawJSON } = JSON as unknown as RawJson;
/** Numbers beyond a double's range, which JSON.stringify would make null, so that the holder took the field's default. */
const beyond = new Map([
  [Number.POSITIVE_INFINITY, rawJSON("1e400")],
  [Number.NEGATIVE_INFINITY, rawJSON("-1e400")],
]);

/** A body that was read here, as text that the holder reads as the same values. Throws "invalid_request". */
export function bodyAgain(body: unknown): Buffer {
  try {
    return Buffer.from(JSON.stringify(body, (_name, value: unknown) => beyond.get(value as number) ?? value));
  } catch (error) {
    if (error instanceof RangeError) throw new CapsuleError("invalid_request", "the body is nested too deeply");
    throw error;
  }
}

/** For routes whose body names the capsule. It is sent as it was understood here. Call before the routes are declared. */
export function passOnByBody(app: App, passingOn: PassingOn): void {
  app.addHook("preValidation", (request, reply, done) => {
    const { capsuleField } = request.routeOptions.config;
    const fields = (request.body ?? {}) as Record<string, unknown>;
    const key = capsuleField === undefined ? undefined : fields[capsuleField];
    if (typeof key !== "string" || key === "") {
      done();
      return;
    }
    let body: Buffer;
    try {
      body = bodyAgain(fields);
    } catch (refusal) {
      done(refusal as Error);
      return;
    }
    const passOn = passOnOf(request, reply, { key, body }, { ...passingOn, goOn: (refusal) => done(refusal) });
    if (passOn === undefined) done();
    else passOn();
  });
}

/**
 * Gives requests that other hosts have passed on the address of their client, and the one that it has sent them to. Call before all hooks
 * that read them.
 */
export function nameCallers(app: App, forwarding: Forwarding): void {
  app.addHook("onRequest", (request, _reply, done) => {
    const caller = forwarding.callerOf(request.raw);
    if (caller !== undefined) Object.defineProperty(request, "ip", { value: caller.address });
    for (const [name, value] of Object.entries(caller?.origin ?? {})) Object.defineProperty(request, name, { value });
    done();
  });
}

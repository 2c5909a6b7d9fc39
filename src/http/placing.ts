/**
 * Creates on one of several hosts: each goes whole to the host that is chosen for it, which may be this one; to up to two others when that
 * one has no room. A host that was chosen by another one chooses nobody: it makes the capsule, or declines.
 */
import type { FastifyReply, FastifyRequest, RouteOptions } from "fastify";
import { createDefaults } from "../wire/defaults.ts";
import { CapsuleError } from "../wire/errors.ts";
import { enterTurnAgain, type TeamTurns } from "./access/team-turns.ts";
import { leaveOut, takeIn } from "./audit-trail.ts";
import { type Forwarding, type HostForCreate, type NewCapsule, type Placements, RefusedHere } from "./forwarding.ts";
import { answeredBy } from "./idempotency.ts";
import { announcesBody } from "./json-body.ts";
import { answerElsewhere, bodyAgain } from "./pass-on.ts";
import type { App } from "./route.ts";

export interface PlacingOptions {
  forwarding: Forwarding;
  turns: TeamTurns;
}

/** A create whose capsule is not made yet. */
interface Placed {
  placements: Placements;
  wanted: NewCapsule;
  /** Hosts that were not asked yet, and those that were. */
  left: HostForCreate[];
  asked: HostForCreate[];
  /** No other hosts are looked for. */
  isFinal: boolean;
  /** Call it when this host makes no capsule. */
  takeBack?: () => void;
}

export class Placing {
  readonly #options: PlacingOptions;
  /** Creates that this host makes now, and others may when it refuses. */
  readonly #placed = new WeakMap<FastifyRequest, Placed>();

  constructor(options: PlacingOptions) {
    this.#options = options;
  }

  /** Call before the routes are declared, and before repeats of requests are answered: their hook runs first then. */
  attachTo(app: App): void {
    const { turns } = this.#options;
    const place = async (request: FastifyRequest, reply: FastifyReply) => {
      await this.#place(request, reply);
      if (!reply.sent) await enterTurnAgain(turns, request);
    };
    app.addHook("onRoute", (route: RouteOptions) => {
      if (route.config?.placed === true) route.preValidation = [...[route.preValidation ?? []].flat(), place];
    });
  }

  /** Whether a refusal of this host is another host's to decide. `answer` is then called, if nobody else answers. */
  takes(error: unknown, request: FastifyRequest, reply: FastifyReply, answer: (refusal: unknown) => void): boolean {
    if (!(error instanceof RefusedHere)) return false;
    const { forwarding, turns } = this.#options;
    const answerHere = (refusal: unknown) => void enterTurnAgain(turns, request).then(() => answer(refusal));
    const decline = forwarding.declined(request.raw);
    if (decline !== undefined) {
      leaveOut(request); // the host that makes the capsule has the entry
      decline(exchangeOf(request, reply)).catch(answerHere);
      return true;
    }
    const placed = this.#placed.get(request);
    placed?.takeBack?.();
    if (placed === undefined || (placed.left.length === 0 && placed.isFinal)) return false;
    this.#ask(request, reply, placed, error).then((isAnswered) => {
      if (!isAnswered) answerHere(error);
    }, answerHere);
    return true;
  }

  async #place(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    const placements = this.#options.forwarding.placementsFor(request.raw);
    const wanted = wantedBy(request);
    if (placements === undefined || wanted === undefined) return;
    const host = answeredBy(request);
    const left = host === undefined ? await placements.hostsFor(wanted) : [host];
    const placed: Placed = { placements, wanted, left, asked: [], isFinal: host !== undefined };
    this.#placed.set(request, placed);
    await this.#ask(request, reply, placed, undefined);
  }

  /** Whether another host has answered; otherwise it is this one's turn. `refusal`: this one's. Throws when all have refused. */
  async #ask(
    request: FastifyRequest,
    reply: FastifyReply,
    placed: Placed,
    refusal: RefusedHere | undefined,
  ): Promise<boolean> {
    const { placements, left, asked } = placed;
    leaveOut(request);
    try {
      for (let refused = refusal, unreached: unknown; ; ) {
        // Refusals so far are of hosts that should not have been asked.
        if (left.length === 0 && (await hasOthers(placed))) refused = unreached = undefined;
        const host = left.shift();
        if (host === undefined) throw refused ?? unreached ?? noRoom();
        asked.push(host);
        const takeBack = placements.sent(host);
        reply.raw.once("finish", () => {
          if (isRefusal(reply.raw.statusCode)) takeBack();
        });
        placed.takeBack = takeBack;
        if (host === null) break;
        try {
          if (await this.#options.forwarding.create(exchangeOf(request, reply), host, left.length === 0)) return true;
        } catch (error) {
          if (!(error instanceof CapsuleError) || error.code !== "unavailable" || reply.sent) throw error;
          unreached = error;
        }
        takeBack();
      }
    } catch (error) {
      takeIn(request);
      throw error;
    }
    takeIn(request);
    return false;
  }
}

/** Whether there are further hosts to ask behind those that have refused; they are looked for once. */
async function hasOthers(placed: Placed): Promise<boolean> {
  const { placements, wanted, left, asked, isFinal } = placed;
  if (isFinal) return false;
  placed.isFinal = true;
  left.push(...(await placements.othersFor(wanted, asked)));
  return left.length > 0;
}

/** undefined: the body's own errors come first. */
function wantedBy({ body, identity }: FastifyRequest): NewCapsule | undefined {
  const fields = (body ?? {}) as Record<string, unknown>;
  const {
    template = createDefaults.template,
    vcpus = createDefaults.vcpus,
    memory_mb = createDefaults.memory_mb,
  } = fields;
  if (typeof template !== "string" || typeof vcpus !== "number" || typeof memory_mb !== "number") return undefined;
  return { teamId: identity.teamId, template, vcpus, memoryMb: memory_mb };
}

/** The body is sent as it was understood here. */
function exchangeOf(request: FastifyRequest, reply: FastifyReply) {
  const { raw, identity, ip, id } = request;
  return {
    ...{ request: raw, response: reply.raw, upgrade: undefined },
    ...(announcesBody(raw) ? { body: bodyAgain(request.body ?? {}) } : {}),
    caller: { identity, address: ip, remote: raw.socket.remoteAddress ?? "", requestId: id },
    team: identity.teamId,
    admitLookup: () => {},
    onAnswer: () => answerElsewhere(request, reply),
  };
}

/** The request is refused, whichever host makes it. */
function isRefusal(status: number): boolean {
  return status >= 400 && status < 500;
}

function noRoom(): CapsuleError {
  return new CapsuleError("no_capacity", "cannot create a capsule: no host has room for it now");
}

/** The header Idempotency-Key: a request that is sent again gets the first answer again. */
import { createHash } from "node:crypto";
import type { FastifyReply, FastifyRequest, RouteOptions } from "fastify";
import type { FirstRequest } from "../teams/idempotency.ts";
import { CapsuleError } from "../wire/errors.ts";
import { idempotencyKeyPattern } from "../wire/idempotency.ts";
import { enterTurnAgain, type TeamTurns } from "./access/team-turns.ts";
import { leaveOut } from "./audit-trail.ts";
import { onClosed, requestSignal } from "./client-gone.ts";
import { nameIgnored } from "./ignored-fields.ts";
import type { App } from "./route.ts";
import type { Services } from "./services.ts";

const keyForm = new RegExp(idempotencyKeyPattern);

/** Values in a body: more than any that is accepted has, and some milliseconds to put in order. */
const valuesMax = 20_000;

/** First requests with their keys, until their handlers take them. */
const waiting = new WeakMap<FastifyRequest, FirstRequest>();

/** Hosts that may have answered a request before. */
const answering = new WeakMap<FastifyRequest, string | null>();

/** The host that may have answered the request, and alone can tell; null is this one. */
export function answeredBy(request: FastifyRequest): string | null | undefined {
  return answering.get(request);
}

/** Call before the routes are declared. A repeat reaches no handler and no other check of its route, and leaves no audit entry. */
export function answerRepeats(app: App, idempotency: Services["idempotency"], turns: TeamTurns): void {
  const answerRepeat = async (request: FastifyRequest, reply: FastifyReply) => {
    const key = request.headers["idempotency-key"];
    if (typeof key !== "string" || !keyForm.test(key)) return; // the route's schema refuses what is no key
    const { teamId } = request.identity;
    const [route = ""] = request.url.split("?", 1);
    const keyed = { teamId, route, key, bodyHash: hashOf(request.body) };
    const { first, kept, host } = await idempotency.begin(keyed, requestSignal(reply));
    if (first !== undefined) {
      waiting.set(request, first);
      if (host !== undefined) answering.set(request, host);
      // A request that is refused before its handler has begun.
      onClosed(reply, () => waiting.get(request)?.end());
      return;
    }
    leaveOut(request);
    await enterTurnAgain(turns, request);
    nameIgnored(request, reply);
    reply.code(kept.status).header("idempotent-replayed", "true").type("application/json; charset=utf-8");
    return reply.serializer(String).send(kept.answer);
  };
  app.addHook("onRoute", (route: RouteOptions) => {
    if (route.config?.idempotent !== true) return;
    route.preValidation = [answerRepeat, ...[route.preValidation ?? []].flat()];
  });
}

/** The answer of a handler, with the reply's status; its methods do nothing for a request without a key. */
export function keptAnswer(request: FastifyRequest, reply: FastifyReply) {
  const first = waiting.get(request);
  waiting.delete(request);
  const answerOf = (body: object) => ({ status: reply.statusCode, answer: String(reply.serialize(body)) });
  return {
    /** Keeps the answer; call it in the transaction of the change. */
    keep: (body: object) => first?.keep(answerOf(body)),
    /** As `keep` keeps it; undefined for a request without a key. */
    keyed: (body: object) => first?.keyed(answerOf(body)),
    replace: (body: object) => first?.replace(String(reply.serialize(body))),
    /** Forgets the kept answer when `work` fails: a refusal is not kept. */
    unlessRefused: async <T>(work: () => Promise<T>): Promise<T> => {
      try {
        return await work();
      } catch (error) {
        first?.forget();
        throw error;
      }
    },
    [Symbol.dispose]: () => first?.end(),
  };
}

/** The order of an object's fields changes nothing. */
function hashOf(body: unknown): string {
  let values = 0;
  try {
    const text = JSON.stringify(body, (_name, value: unknown) => {
      if (typeof value !== "object" || value === null) return value;
      values += Object.keys(value).length;
      if (values > valuesMax) throw unusable(`is not accepted with a body of more than ${valuesMax} values`);
      return Array.isArray(value) ? value : inOrder(value);
    });
    return createHash("sha256")
      .update(text ?? "")
      .digest("base64url");
  } catch (error) {
    if (error instanceof RangeError) throw unusable("is not accepted with a body that is nested this deeply");
    throw error;
  }
}

/** Sorts the names alone: with a comparison of its own a sort takes eight times as long. */
function inOrder(value: object): object {
  const fields = value as Record<string, unknown>;
  return Object.fromEntries(
    Object.keys(fields)
      .sort()
      .map((name) => [name, fields[name]]),
  );
}

function unusable(why: string): CapsuleError {
  return new CapsuleError("invalid_request", `the header Idempotency-Key ${why}`, {
    details: { field: "idempotency-key" },
  });
}

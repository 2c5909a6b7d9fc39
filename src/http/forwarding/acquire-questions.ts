/**
 * The question to another host to acquire a capsule that no host holds, over the peer port. The host says with 102 that it has begun, and
 * with 204 that it holds the capsule; 404: another one does, or it is gone. Its refusal comes as the error that the client gets.
 */
import { ClientRequest, type IncomingMessage, type ServerResponse } from "node:http";
import { CapsuleError, type ErrorCode, statusOf } from "../../wire/errors.ts";
import { toCapsuleError } from "../errors.ts";
import type { Links } from "../forwarding.ts";
import type { Need, ReleasedCapsules } from "../released.ts";
import type { PendingRequests } from "./pending-requests.ts";

export const acquireHeader = "x-capsule-acquire";
const needs: ReadonlySet<unknown> = new Set<Need>(["held", "resume", "wake", "move"]);
const questionMaxLength = 256;
const answerMaxBytes = 16 * 1024;
/** Time for the first word of a host; another one is asked then, and who acquires first has the capsule. */
const beginMs = 3_000;
/** Longer than any fetch; each host ends its own. */
const answerMs = 900_000;
const checkMs = 1_000;
/** Acquires for other hosts that are under way here. */
const servedMax = 128;

/** `unreached`: it has not said that it has begun, or is gone since; it may acquire the capsule all the same. */
export type Acquired = "held" | "elsewhere" | "unreached";

export interface AcquireTimes {
  /** Default 3 s. */
  beginMs?: number;
}

/** The ways to the other hosts, and the requests that they have not answered, which end with their host. */
export interface Asking {
  links: Pick<Links, "take" | "isUp">;
  pending: Pick<PendingRequests, "add">;
}

/** Rejects with the host's refusal. */
export async function askToAcquire(
  { links, pending }: Asking,
  host: string,
  question: { id: string; team: string; need: Need },
  times: AcquireTimes = {},
): Promise<Acquired> {
  const { agent, release } = links.take(host, question.team);
  const { promise, resolve } = Promise.withResolvers<IncomingMessage | undefined>();
  const header = Buffer.from(JSON.stringify([question.id, question.need])).toString("base64url");
  const message = new ClientRequest({
    ...{ agent, method: "POST", path: "/", headers: { [acquireHeader]: header, "content-length": 0 } },
  });
  const giveUp = () => message.destroy(new Error("the other host does not answer"));
  const late = setTimeout(giveUp, times.beginMs ?? beginMs);
  const tooLong = setTimeout(giveUp, answerMs);
  const watch = setInterval(() => {
    if (!links.isUp(host)) giveUp();
  }, checkMs);
  const end = pending.add(host, { giveUp });
  message.on("information", () => clearTimeout(late));
  message.once("response", (answer) => {
    clearTimeout(late);
    resolve(answer);
  });
  message.once("error", () => resolve(undefined));
  message.end();
  try {
    const answer = await promise;
    if (answer === undefined) return "unreached";
    const text = await textOf(answer);
    if (text === undefined) return "unreached";
    if (answer.statusCode === 204) return "held";
    if (answer.statusCode === 404) return "elsewhere";
    throw refusalOf(text);
  } finally {
    for (const timer of [late, tooLong]) clearTimeout(timer);
    clearInterval(watch);
    end();
    release();
  }
}

/** undefined: it broke off, or is too long. */
async function textOf(answer: IncomingMessage): Promise<string | undefined> {
  const parts: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const part of answer as AsyncIterable<Buffer>) {
      bytes += part.length;
      if (bytes > answerMaxBytes) return undefined;
      parts.push(part);
    }
    return Buffer.concat(parts).toString();
  } catch {
    return undefined;
  }
}

function refusalOf(text: string): CapsuleError {
  try {
    const { code, message, details, retryAfterSec } = JSON.parse(text) as Record<string, unknown>;
    if (typeof code === "string" && Object.hasOwn(statusOf, code) && typeof message === "string") {
      return new CapsuleError(code as ErrorCode, message, {
        ...(typeof details === "object" && details !== null ? { details: details as Record<string, unknown> } : {}),
        ...(typeof retryAfterSec === "number" || retryAfterSec === null ? { retryAfterSec } : {}),
      });
    }
  } catch {
    // It is a program of another release.
  }
  return new CapsuleError("unavailable", "the capsule could not be acquired by another host");
}

export class AcquireAnswers {
  readonly #released: Pick<ReleasedCapsules, "acquire"> | undefined;
  /** Questions that are not answered yet. */
  #served = 0;

  constructor(released: Pick<ReleasedCapsules, "acquire"> | undefined) {
    this.#released = released;
  }

  /** Answers such a request; false: it is none. */
  answer(request: IncomingMessage, response: ServerResponse): boolean {
    const header = request.headers[acquireHeader];
    if (header === undefined) return false;
    const question = questionOf(String(header));
    if (question === undefined || this.#released === undefined) response.writeHead(400, { "content-length": 0 }).end();
    else if (this.#served >= servedMax) refuse(response, new CapsuleError("unavailable", "too many are acquired now"));
    else void this.#acquire(question, response, this.#released);
    return true;
  }

  async #acquire(
    question: { id: string; need: Need },
    response: ServerResponse,
    released: Pick<ReleasedCapsules, "acquire">,
  ): Promise<void> {
    const onBegin = () => {
      if (!response.headersSent) response.writeProcessing();
    };
    this.#served++;
    try {
      const isHeld = await released.acquire({ ...question, onBegin });
      response.writeHead(isHeld ? 204 : 404, isHeld ? {} : { "content-length": 0 }).end();
    } catch (error) {
      refuse(response, toCapsuleError(error));
    } finally {
      this.#served--;
    }
  }
}

function refuse(response: ServerResponse, { code, message, details, retryAfterSec }: CapsuleError): void {
  const body = JSON.stringify({ code, message, details, retryAfterSec });
  response.writeHead(409, { "content-type": "application/json", "content-length": Buffer.byteLength(body) }).end(body);
}

/** undefined: it is malformed. */
function questionOf(header: string): { id: string; need: Need } | undefined {
  if (header.length > questionMaxLength) return undefined;
  try {
    const [id, need] = JSON.parse(Buffer.from(header, "base64url").toString());
    if (typeof id !== "string" || !needs.has(need)) return undefined;
    return { id, need };
  } catch {
    return undefined;
  }
}

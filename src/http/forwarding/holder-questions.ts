/**
 * The question whether another host holds a capsule, over the peer port: it is put to all hosts at once when the database cannot tell. A
 * host answers by its own rows, 204 or 404.
 */
import { type IncomingMessage, type ServerResponse, request as send } from "node:http";
import type { Links, Places } from "../forwarding.ts";

export const questionHeader = "x-capsule-question";
const questionMaxLength = 1_024;
const answerMs = 1_500;
/** Hosts that are asked for one capsule. */
const hostsMax = 32;
/** Capsules that are asked for at once, and those of one team. */
const [askedMax, teamAskedMax] = [16, 4];

export class HolderQuestions {
  readonly #links: Pick<Links, "hosts" | "take">;
  readonly #asked = new Map<string, { team: string | undefined; found: Promise<string | undefined> }>();

  constructor(links: Pick<Links, "hosts" | "take">) {
    this.#links = links;
  }

  /** The host that says so first; undefined: none does, or too many capsules are asked for. Never rejects. */
  ask(team: string | undefined, key: string): Promise<string | undefined> {
    const question = Buffer.from(JSON.stringify([team ?? null, key])).toString("base64url");
    const asked = this.#asked.get(question);
    if (asked !== undefined) return asked.found;
    const ofTeam = [...this.#asked.values()].filter((each) => team !== undefined && each.team === team);
    if (this.#asked.size >= askedMax || ofTeam.length >= teamAskedMax) return Promise.resolve(undefined);
    const hosts = this.#links.hosts().slice(0, hostsMax);
    const answers = hosts.map((host) => this.#askOne(host, team, question));
    const found = Promise.any(answers)
      .catch(() => undefined)
      .finally(() => this.#asked.delete(question));
    this.#asked.set(question, { team, found });
    return found;
  }

  /** Resolves with the host's name. Rejects when it does not hold the capsule, or does not answer. */
  async #askOne(host: string, team: string | undefined, question: string): Promise<string> {
    const { agent, release } = this.#links.take(host, team);
    const { promise, resolve, reject } = Promise.withResolvers<number | undefined>();
    const signal = AbortSignal.timeout(answerMs);
    const message = send({ agent, method: "GET", path: "/", headers: { [questionHeader]: question }, signal });
    message.once("response", (answer) => resolve(answer.resume().statusCode));
    message.once("error", reject);
    message.end();
    try {
      if ((await promise) !== 204) throw new Error(`host ${host} does not hold the capsule`);
      return host;
    } finally {
      release();
    }
  }
}

/** Answers such a request; false: it is none. */
export function answerQuestion(
  request: IncomingMessage,
  response: ServerResponse,
  places: Pick<Places, "isHere">,
): boolean {
  const header = request.headers[questionHeader];
  if (header === undefined) return false;
  const question = questionOf(String(header));
  const status = question === undefined ? 400 : places.isHere(question.team, question.key) ? 204 : 404;
  response.writeHead(status, status === 204 ? {} : { "content-length": 0 }).end();
  return true;
}

/** undefined: it is malformed. */
function questionOf(header: string): { team: string | undefined; key: string } | undefined {
  if (header.length > questionMaxLength) return undefined;
  try {
    const [team, key] = JSON.parse(Buffer.from(header, "base64url").toString());
    if (typeof key !== "string" || (team !== null && typeof team !== "string")) return undefined;
    return { team: team ?? undefined, key };
  } catch {
    return undefined;
  }
}

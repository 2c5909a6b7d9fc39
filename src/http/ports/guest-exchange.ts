/** The request of a visit and its answer, over a connection into the capsule. */
import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import type { Proxies } from "../../network/proxies.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { ChunkTurns } from "../access/chunk-turns.ts";
import type { Ending } from "../access/team-turns.ts";
import { sendContinue } from "../expect-continue.ts";
import { sendHead, writeInformation } from "../node-internals.ts";
import { exemptFromStallWatch } from "../slow-readers.ts";
import { relayBytes } from "./byte-relay.ts";
import { GuestRequest } from "./guest-request.ts";
import type { Grant } from "./port-access.ts";
import { withoutCredentials } from "./port-credentials.ts";
import { bodyOf, headersForClient, headersForGuest, trailersOf } from "./port-heads.ts";
import type { PortReports } from "./port-reports.ts";
import type { PortVisit, Upgrade } from "./port-visit.ts";
import { splice } from "./splice.ts";
import { readEarly, sendUpgradeBody, tooEarly } from "./upgrade-body.ts";

/** Time for the guest to close a connection whose answer is complete. */
const lingerMs = 5_000;

/** The words behind a status. */
const reasonPattern = /^[\t\x20-\x7e\x80-\xff]*$/;

export interface ExchangeOptions {
  grant: Grant;
  chunkTurns: ChunkTurns;
  reports: PortReports;
  hasTls: boolean;
  proxies: Proxies;
  /** From then on only bytes that move are activity. */
  onUpgraded: () => void;
  /** Notes such activity. */
  onActivity: () => void;
}

export class GuestExchange {
  readonly #visit: PortVisit;
  readonly #guest: Duplex;
  readonly #options: ExchangeOptions;
  /** Both messages have passed whole. */
  #isComplete = false;
  /** Gives the client's early bytes back to its socket. */
  #endEarly = () => {};

  constructor(visit: PortVisit, guest: Duplex, options: ExchangeOptions) {
    this.#visit = visit;
    this.#guest = guest;
    this.#options = options;
  }

  /** Resolves when the answer, or the upgraded connection, is over. Rejects while the client can still be told why. */
  async done(): Promise<void> {
    const [visit, guest] = [this.#visit, this.#guest];
    try {
      visit.signal.throwIfAborted();
      if (guest.destroyed) throw reset(visit);
      const sent = this.#send();
      const answer = await visit.until(sent.answer);
      visit.stopDeadline();
      if (answer.upgraded === undefined) await this.#pass(answer.message, sent);
      else if (visit.upgrade === undefined) throw oddAnswer("changes the protocol, which the request did not ask for");
      else await this.#splice(answer.message, visit.upgrade, answer.upgraded);
    } finally {
      this.#closeGuest();
      if (visit.isUpgraded) visit.close();
    }
  }

  #send(): GuestRequest {
    const { grant, hasTls, proxies } = this.#options;
    const { request, response, upgrade, head, host, address, body, remote } = this.#visit;
    const { path, headers } = withoutCredentials(head, grant.hidesAuthorization);
    const forwarding = {
      ...{ remote, host, proto: hasTls ? ("https" as const) : ("http" as const) },
      isAppended: proxies.has(remote),
    };
    const hostHeader = grant.hostHeader?.replaceAll("{port}", String(address.port)) ?? null;
    const sent = new GuestRequest(this.#guest, {
      ...{ method: request.method as string, path },
      headers: headersForGuest(headers, { forwarding, hostHeader, body, asksForUpgrade: upgrade !== undefined }),
      onInformation: (status, raw) => {
        if (status === 100) sendContinue(request);
        else if (request.httpVersion === "1.1")
          writeInformation(response, status, headersForClient(raw, { status, isChunked: false }));
      },
    });
    const onBytes = (bytes: number) => {
      this.#options.reports.moved("in", bytes);
      this.#visit.extendDeadline();
    };
    if (upgrade !== undefined) {
      const bytes = body === "none" ? 0 : Number(request.headers["content-length"]);
      const onEnd = () => {
        if (!this.#visit.signal.aborted) this.#endEarly = readEarly(upgrade.socket, () => this.#visit.end(tooEarly()));
      };
      sendUpgradeBody(upgrade.socket, upgrade.first, { bytes, onBytes, onEnd }, sent.message);
    } else if (body === "none") sent.message.end();
    else this.#sendBody(request, sent, onBytes);
    return sent;
  }

  #sendBody(request: IncomingMessage, { message }: GuestRequest, onBytes: (bytes: number) => void): void {
    const { response } = this.#visit;
    const end = () => {
      if (message.destroyed || message.writableEnded) return;
      if (request.rawTrailers.length > 0 && bodyOf(request.rawHeaders) === "chunked")
        message.addTrailers(trailersOf(request.rawTrailers));
      message.end();
    };
    const stop = relayBytes(request, message, { ...this.#pace(response), onBytes, onEnd: end });
    // The rest of the body of a request that is answered already is not for the guest.
    this.#visit.response.once("finish", stop);
  }

  #pace(client: Ending): { teamId: string; turns: ChunkTurns; client: Ending } {
    return { teamId: this.#options.grant.teamId, turns: this.#options.chunkTurns, client };
  }

  /** Passes an answer on to its end. A guest's that breaks off is one to the client too. */
  async #pass(answer: IncomingMessage, { message }: GuestRequest): Promise<void> {
    const { response, request } = this.#visit;
    const status = answer.statusCode ?? 0;
    const body = bodyOf(answer.rawHeaders);
    if (body === undefined) throw oddAnswer("has a body in another coding than chunked");
    const headers = headersForClient(answer.rawHeaders, {
      status,
      isChunked: body === "chunked" && request.httpVersion === "1.1",
    });
    if (status < 200 || !reasonPattern.test(answer.statusMessage ?? ""))
      throw oddAnswer("has a status that cannot be passed on");
    response.sendDate = false;
    response.writeHead(status, answer.statusMessage, headers);
    sendHead(response);
    const over = Promise.withResolvers<void>();
    response.once("close", over.resolve);
    const cut = () => response.destroy();
    this.#visit.signal.addEventListener("abort", cut);
    relayBytes(answer, response, {
      ...this.#pace(response),
      onBytes: (bytes) => this.#options.reports.moved("out", bytes),
      onEnd: () => {
        if (response.chunkedEncoding && answer.rawTrailers.length > 0)
          response.addTrailers(trailersOf(answer.rawTrailers));
        this.#isComplete = message.writableFinished;
        response.end();
      },
    });
    answer.on("error", cut);
    answer.once("close", () => {
      if (!answer.complete) cut();
    });
    if (this.#visit.signal.aborted || response.destroyed) cut();
    else await over.promise;
  }

  async #splice(answer: IncomingMessage, upgrade: Upgrade, first: Buffer): Promise<void> {
    const { reports, onUpgraded, onActivity, grant, chunkTurns } = this.#options;
    const [visit, { socket }] = [this.#visit, upgrade];
    if (!reasonPattern.test(answer.statusMessage ?? "")) throw oddAnswer("has a status that cannot be passed on");
    if (!socket.readable || !socket.writable) throw new CapsuleError("invalid_request", "the client has hung up");
    visit.becomeUpgraded(upgrade);
    this.#endEarly();
    exemptFromStallWatch(socket);
    const headers = headersForClient(answer.rawHeaders, { status: 101, isChunked: false });
    let head = `HTTP/1.1 101 ${answer.statusMessage ?? ""}\r\n`;
    for (let at = 0; at < headers.length; at += 2) head += `${headers[at]}: ${headers[at + 1]}\r\n`;
    socket.write(`${head}\r\n`, "latin1");
    if (first.length > 0) socket.write(first);
    onUpgraded();
    const cut = () => socket.destroy();
    visit.signal.addEventListener("abort", cut);
    if (visit.signal.aborted) cut();
    await splice({
      ...{ client: socket, guest: this.#guest, teamId: grant.teamId, turns: chunkTurns, onActivity },
      onBytes: (direction, bytes) => reports.moved(direction, bytes),
    });
  }

  /** A server that has its whole request and whose answer is complete sees the connection end, and any other one a reset. */
  #closeGuest(): void {
    const guest = this.#guest;
    if (!this.#isComplete || guest.destroyed) {
      guest.destroy();
      return;
    }
    const late = setTimeout(() => guest.destroy(), lingerMs).unref();
    guest.once("close", () => clearTimeout(late));
    guest.resume();
    guest.end();
  }
}

function reset({ address: { port } }: PortVisit): CapsuleError {
  return new CapsuleError("agent_error", `the server on port ${port} reset the connection`);
}

function oddAnswer(what: string): CapsuleError {
  return new CapsuleError("agent_error", `the answer of the server in the capsule ${what}`);
}

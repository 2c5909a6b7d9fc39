/**
 * The requests that other hosts pass on. They come over the peer port, whose connections are authenticated, and take the way of a
 * client's from there on: the same listeners of the same server. The client is the one that their header names.
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { endWhenAnswered } from "../closing-connections.ts";
import type { ForwardingParts, PassOn, PeerCaller, Places } from "../forwarding.ts";
import { announcesBody } from "../json-body.ts";
import type { ReleasedCapsules } from "../released.ts";
import { closeSlowReaders } from "../slow-readers.ts";
import { AcquireAnswers } from "./acquire-questions.ts";
import { callerHeader, decodeCaller, takeCallerHeader } from "./caller-header.ts";
import { answerQuestion } from "./holder-questions.ts";
import { answerReach, type Reach } from "./reach-questions.ts";

/** Holds the request's id in the 421 of a host that does not hold the capsule; a guest's own 421 has no way to know it. */
export const misdirectedHeader = "x-capsule-misdirected";

interface PeerRequest {
  caller: PeerCaller;
  /** On which the body is asked for; undefined: it was, or an upgrade has none. */
  response: ServerResponse | undefined;
}

export class PeerRequests {
  readonly #received = new WeakMap<IncomingMessage, PeerRequest>();
  /** Servers of peer ports, and what ends their connections. */
  readonly #served = new Map<Server, (drainMs: number) => void>();
  /** Settled when they have closed, or their time is over. */
  readonly #closed: Promise<void>[] = [];
  readonly #places: Pick<Places, "isHere">;
  readonly #acquires: AcquireAnswers;
  readonly #reach: Reach;
  #parts: ForwardingParts | undefined;

  constructor(places: Pick<Places, "isHere">, reach: Reach, released?: Pick<ReleasedCapsules, "acquire">) {
    this.#places = places;
    this.#reach = reach;
    this.#acquires = new AcquireAnswers(released);
  }

  attachTo(parts: ForwardingParts): void {
    this.#parts = parts;
    const { server, onClose, untilClosed, drainMs } = parts;
    onClose(() => {
      for (const [peers, endConnections] of this.#served) {
        endConnections(drainMs);
        const { promise, resolve } = Promise.withResolvers<void>();
        peers.close(() => resolve());
        setTimeout(resolve, drainMs).unref();
        this.#closed.push(promise);
      }
    });
    untilClosed(async () => void (await Promise.all(this.#closed)));
    const strip = (request: IncomingMessage) => void takeCallerHeader(request);
    for (const event of ["request", "checkContinue", "checkExpectation", "upgrade"] as const)
      server.prependListener(event, strip);
  }

  /** Whether the request asks for an upgrade that the server makes. */
  asksForUpgrade(request: IncomingMessage): boolean {
    const { server } = this.#attached();
    return (server as Server & { shouldUpgradeCallback: (request: IncomingMessage) => boolean }).shouldUpgradeCallback(
      request,
    );
  }

  /** `peers`: the server of the peer port. `hostOf`: the name behind an authenticated connection. */
  serve(peers: Server, hostOf: (socket: Socket) => string | undefined): void {
    const { server, stallMs } = this.#attached();
    const enter = (request: IncomingMessage, response?: ServerResponse): boolean => {
      const [host, header] = [hostOf(request.socket), takeCallerHeader(request)];
      const caller = header === undefined ? undefined : decodeCaller(header);
      if (host === undefined || caller === undefined) return false;
      this.#received.set(request, { caller: { ...caller, host }, response });
      return true;
    };
    for (const event of ["request", "checkContinue", "checkExpectation"] as const) {
      peers.on(event, (request: IncomingMessage, response: ServerResponse) => {
        // A request that is passed on names its client, and has that client's headers.
        const isPassedOn = request.headers[callerHeader] !== undefined;
        if (!isPassedOn && answerQuestion(request, response, this.#places)) return;
        if (!isPassedOn && this.#acquires.answer(request, response)) return;
        if (!isPassedOn && answerReach(request, response, hostOf(request.socket), this.#reach)) return;
        if (enter(request, response)) server.emit(event, request, response);
        else refuse(response);
      });
    }
    peers.on("upgrade", (request: IncomingMessage, socket: Socket, head: Buffer) => {
      if (enter(request)) server.emit("upgrade", request, socket, head);
      else socket.destroy();
    });
    closeSlowReaders(peers, stallMs);
    this.#served.set(peers, endWhenAnswered(peers));
  }

  callerOf(request: IncomingMessage): PeerCaller | undefined {
    return this.#received.get(request)?.caller;
  }

  /** Lets the other host send the body: the capsule is held here. */
  accept(request: IncomingMessage): void {
    const received = this.#received.get(request);
    if (received?.response === undefined) return;
    if (!received.response.headersSent && announcesBody(request)) received.response.writeProcessing();
    received.response = undefined;
  }

  /** The other host asks where the capsule is once more. */
  misdirected(requestId: string): PassOn {
    return async ({ request, response, onAnswer }) => {
      onAnswer();
      if (announcesBody(request)) response.shouldKeepAlive = false; // the body, which is not awaited, would be the next request
      response.writeHead(421, { [misdirectedHeader]: requestId, "content-length": 0 }).end();
      return true;
    };
  }

  #attached(): ForwardingParts {
    if (this.#parts === undefined) throw new Error("the server that answers is not attached yet");
    return this.#parts;
  }
}

/** The other host is of the cluster, and its request names no client: a program of another release. */
function refuse(response: ServerResponse): void {
  response.shouldKeepAlive = false;
  response.writeHead(400, { "content-type": "text/plain" }).end(`the header ${callerHeader} is missing or malformed\n`);
}

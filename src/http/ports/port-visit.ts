/** One request at a port's URL, from its head to the end of its answer or of its upgraded connection. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { CapsuleError } from "../../wire/errors.ts";
import type { Grant } from "./port-access.ts";
import { type Credentials, credentialsOf, type Head } from "./port-credentials.ts";
import { type Body, bodyOf } from "./port-heads.ts";
import type { PortAddress } from "./port-hosts.ts";

/** The connection of a request that asks for an upgrade, which Node reads no further. */
export interface Upgrade {
  socket: Socket;
  /** Bytes that came with the head. */
  first: Buffer;
}

/** Time for the head of the guest's answer, from the last byte of the request that was passed on. */
export const answerHeadMs = 600_000;

export class PortVisit {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly upgrade: Upgrade | undefined;
  readonly address: PortAddress;
  /** The Host header. */
  readonly host: string;
  /** As they came. */
  readonly head: Head;
  readonly credentials: Credentials;
  readonly ip: string;
  /** The address of the client's connection. */
  readonly remote: string;
  readonly startedMs = performance.now();
  /** Set once the request was let in. */
  grant: Grant | undefined;
  /** The code of a refusal. */
  code: string | undefined;
  /** The client's connection is the guest's, and the response will not be written. */
  isUpgraded = false;
  readonly #ended = new AbortController();
  readonly #cleanups = new DisposableStack();
  #deadline: NodeJS.Timeout | undefined;

  constructor(
    { request, response, upgrade }: Pick<PortVisit, "request" | "response" | "upgrade">,
    {
      address,
      host,
      path,
      ip,
      remote,
    }: { address: PortAddress; host: string; path: string; ip: string; remote: string },
  ) {
    this.request = request;
    this.response = response;
    this.upgrade = upgrade;
    this.address = address;
    this.host = host;
    this.ip = ip;
    this.remote = remote;
    this.head = { path, headers: request.rawHeaders };
    this.credentials = credentialsOf(this.head);
    response.once("close", () => {
      if (!response.writableFinished) this.#gone();
      if (!this.isUpgraded) this.close();
    });
    // Node itself ends the connection of a client that ends its side during another request.
    upgrade?.socket.once("end", this.#gone);
  }

  readonly #gone = () => this.end(new CapsuleError("invalid_request", "the client has hung up"));

  /** The response is taken from the connection, each of whose directions ends alone from now on. */
  becomeUpgraded({ socket }: Upgrade): void {
    this.isUpgraded = true;
    socket.off("end", this.#gone);
    this.response.detachSocket(socket);
  }

  /** Aborts when the client is gone, the answer is late, or nothing opens the port any more. */
  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  end(reason: Error): void {
    this.#ended.abort(reason);
  }

  /** Called once, when client and guest are done with each other; at once if they are. */
  onEnd(callback: () => void): void {
    if (this.#cleanups.disposed) callback();
    else this.#cleanups.defer(callback);
  }

  /** Ends everything that lasts as long as the visit. */
  close(): void {
    clearTimeout(this.#deadline);
    this.#cleanups.dispose();
  }

  /** The result of `work`, or a rejection with the signal's reason. */
  async until<T>(work: Promise<T>): Promise<T> {
    this.signal.throwIfAborted();
    const ended = Promise.withResolvers<never>();
    const give = () => ended.reject(this.signal.reason);
    this.signal.addEventListener("abort", give);
    try {
      return await Promise.race([work, ended.promise]);
    } finally {
      this.signal.removeEventListener("abort", give);
    }
  }

  /** From now on the guest has its time for the head of an answer. */
  startDeadline(): void {
    const late = () =>
      this.end(
        new CapsuleError(
          "timeout",
          `port ${this.address.port} of the capsule did not answer within ${answerHeadMs / 60_000} minutes`,
        ),
      );
    this.#deadline = setTimeout(late, answerHeadMs);
  }

  /** A part of the request was passed on. */
  extendDeadline(): void {
    this.#deadline?.refresh();
  }

  stopDeadline(): void {
    clearTimeout(this.#deadline);
    this.#deadline = undefined;
  }

  get body(): Body {
    return bodyOf(this.request.rawHeaders) ?? "none";
  }

  /** Throws CapsuleError("invalid_request") for a body in a coding that is not passed on. */
  requireBody(): void {
    if (bodyOf(this.request.rawHeaders) === undefined)
      throw new CapsuleError("invalid_request", "a body in another coding than chunked is not passed on");
  }
}

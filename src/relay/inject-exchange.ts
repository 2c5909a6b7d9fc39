/**
 * One plain HTTP request of a guest that leaves as HTTPS with a rule's headers, and its answer. Nothing of the request is sent before
 * the certificate was verified for the rule's host.
 */
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { request as httpsRequest } from "node:https";
import { connect as connectTls, type SecureContext, type TLSSocket } from "node:tls";
import { injectedRefusalOf, type OperatorRules, type Rules, targetOf } from "../network/decision.ts";
import { addressText } from "../network/destinations.ts";
import type { OpenInjectRule } from "../network/inject.ts";
import type { Noted } from "../network/recent-decisions.ts";
import { messageOf } from "../wire/errors.ts";
import type { Dialler, Upstream } from "./dialler.ts";
import { answerHeaders, bodyOf, injectedHeaders, trailersOf } from "./inject-heads.ts";
import type { Names } from "./names.ts";
import { UpstreamSocket } from "./stream-sockets.ts";
import type { Share } from "./turns.ts";

const httpsPort = 443;
const handshakeMs = 30_000;
/** Time for the head of an answer. */
const answerMs = 600_000;
const lingerMs = 5_000;
const headMaxBytes = 65_536;

export interface ExchangeShared {
  rules: () => Rules;
  operator: () => OperatorRules;
  dialler: Dialler;
  names: Names;
  share: Share;
  /** Trusts Node's roots and those of the operator. */
  trust: () => SecureContext;
  note: (noted: Noted) => void;
}

/** Tells the guest why its request was not answered. */
class NotSent extends Error {
  readonly verdict: "denied" | "failed";
  readonly reason: string;
  readonly address: number | undefined;

  constructor(
    verdict: "denied" | "failed",
    reason: string,
    { address, detail = reason }: { address?: number | undefined; detail?: string } = {},
  ) {
    super(detail);
    this.verdict = verdict;
    this.reason = reason;
    this.address = address;
  }
}

export class InjectExchange {
  readonly host: string;
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #rule: OpenInjectRule;
  readonly #shared: ExchangeShared;
  readonly #abort = new AbortController();
  #address: number | undefined;

  constructor(request: IncomingMessage, response: ServerResponse, rule: OpenInjectRule, shared: ExchangeShared) {
    this.#request = request;
    this.#response = response;
    this.#rule = rule;
    this.#shared = shared;
    this.host = rule.host;
    response.once("close", () => this.#abort.abort());
  }

  /** Whether the policy, as it is now, lets it go on. */
  get isPermitted(): boolean {
    if (this.#address === undefined) return true;
    return injectedRefusalOf(this.#shared.rules(), this.#shared.operator(), this.host, this.#address) === undefined;
  }

  /** Resolves when the answer has passed, whole or not. */
  async run(): Promise<void> {
    try {
      const headers = this.#headers();
      const upstream = await this.#dial(await this.#addresses());
      const socket = await this.#secure(upstream);
      this.#note("allowed", "", this.#address);
      await this.#exchange(socket, headers);
    } catch (error) {
      if (this.#response.destroyed) return;
      const failure =
        error instanceof NotSent ? error : new NotSent("failed", "no answer", { detail: messageOf(error) });
      this.#note(failure.verdict, failure.reason, failure.address ?? this.#address);
      const status = failure.verdict === "denied" && failure.reason === "not listed" ? 403 : 502;
      refuse(this.#response, status, `${this.host}: ${failure.message}`);
    }
  }

  #headers(): string[] {
    const { rawHeaders, method = "" } = this.#request;
    const values = Object.entries(this.#rule.headers);
    const sealed = values.find(([, value]) => value === null);
    if (sealed !== undefined) {
      const detail = `the value of ${sealed[0]} cannot be decrypted: the service has lost the secret.key that it was stored under`;
      throw new NotSent("failed", "secret", { detail });
    }
    const body = bodyOf(rawHeaders);
    if (body === undefined) throw new NotSent("failed", "coding", { detail: "a body in another coding than chunked" });
    const rule = { host: this.host, headers: Object.fromEntries(values) as Record<string, string> };
    return injectedHeaders(rawHeaders, { method, body, rule });
  }

  async #addresses(): Promise<number[]> {
    const found = await this.#shared.names.resolve(this.host);
    const refusals = found.map((address) => this.#refusalOf(address));
    const open = found.filter((_, index) => refusals[index] === undefined);
    if (open.length > 0) return open;
    if (found.length === 0) throw new NotSent("failed", "dns", { detail: "the name has no address" });
    throw new NotSent("denied", refusals[0]!, { address: found[0], detail: `denied: ${refusals[0]}` });
  }

  #refusalOf(address: number) {
    return injectedRefusalOf(this.#shared.rules(), this.#shared.operator(), this.host, address);
  }

  async #dial(addresses: readonly number[]): Promise<Upstream> {
    const operator = this.#shared.operator();
    const targets = addresses.map((address) => targetOf(operator, address, httpsPort));
    const isGranted = targets.every((each) => each.isGranted);
    const chosen = targets.map(({ address }) => address);
    this.#address = addresses[0];
    const { signal } = this.#abort;
    const dialled = await this.#shared.dialler.dial(chosen, httpsPort, { isGranted, signal });
    if ("upstream" in dialled) {
      this.#address = addresses[chosen.indexOf(dialled.upstream.address)] ?? addresses[0];
      if (this.isPermitted) return dialled.upstream;
      dialled.upstream.reset(); // one of several addresses, which the policy has come to forbid
      throw new NotSent("denied", "deny");
    }
    const { failure } = dialled;
    if (failure === "own address") throw new NotSent("denied", "reserved");
    throw new NotSent(failure === "limit" ? "denied" : "failed", failure);
  }

  /** The connection, with a certificate that is valid for the host. */
  async #secure(upstream: Upstream): Promise<TLSSocket> {
    const raw = new UpstreamSocket(upstream, this.#shared.share);
    const socket = connectTls({
      ...{ socket: raw, servername: this.host, secureContext: this.#shared.trust(), rejectUnauthorized: true },
      ALPNProtocols: ["http/1.1"],
    });
    socket.on("error", () => {});
    socket.once("close", () => raw.destroy());
    this.#abort.signal.addEventListener("abort", () => socket.destroy(), { once: true });
    const late = AbortSignal.timeout(handshakeMs);
    try {
      await once(socket, "secureConnect", { signal: AbortSignal.any([late, this.#abort.signal]) });
    } catch (error) {
      socket.destroy();
      if (late.aborted) throw new NotSent("failed", "timeout");
      const isCertificate = /CERT|ALTNAME|ISSUER|SIGNATURE/.test(String((error as NodeJS.ErrnoException).code));
      throw new NotSent("failed", isCertificate ? "certificate" : "tls", { detail: messageOf(error) });
    }
    if (socket.authorized && !this.#abort.signal.aborted) return socket;
    socket.destroy();
    throw new NotSent("failed", "certificate");
  }

  async #exchange(socket: TLSSocket, headers: string[]): Promise<void> {
    const { method = "GET", url: path = "/" } = this.#request;
    const sent = httpsRequest({
      ...{ host: this.host, method, path, headers, maxHeaderSize: headMaxBytes },
      createConnection: () => socket,
    });
    const answered = Promise.withResolvers<IncomingMessage>();
    answered.promise.catch(() => {}); // the timer may come when nobody waits any more
    sent.once("response", answered.resolve);
    sent.once("upgrade", () => answered.reject(new Error("it changes the protocol, which was not asked for")));
    sent.on("error", answered.reject);
    sent.once("close", () => answered.reject(new Error("it closed the connection without an answer")));
    const timer = setTimeout(() => answered.reject(new Error("no answer within 10 minutes")), answerMs);
    if (this.#request.headers.expect !== undefined) sent.once("continue", () => this.#response.writeContinue());
    this.#sendBody(sent);
    try {
      await this.#pass(await answered.promise);
    } finally {
      clearTimeout(timer);
      this.#request.unpipe(sent).resume();
      closeSoon(socket);
    }
  }

  #sendBody(sent: ReturnType<typeof httpsRequest>): void {
    const request = this.#request;
    sent.flushHeaders();
    request.pipe(sent, { end: false });
    request.once("end", () => {
      if (sent.destroyed) return;
      if (bodyOf(request.rawHeaders) === "chunked") sent.addTrailers(trailersOf(request.rawTrailers, this.#rule));
      sent.end();
    });
  }

  /** Resolves when the answer is over. An answer that breaks off does so to the guest too. */
  async #pass(answer: IncomingMessage): Promise<void> {
    const response = this.#response;
    response.sendDate = false;
    response.writeHead(answer.statusCode ?? 502, answer.statusMessage, answerHeaders(answer.rawHeaders));
    response.flushHeaders();
    answer.on("error", () => response.destroy());
    answer.once("close", () => {
      if (!answer.complete) response.destroy();
    });
    answer.once("end", () => {
      if (response.chunkedEncoding) response.addTrailers(trailersOf(answer.rawTrailers));
      response.end();
    });
    answer.pipe(response, { end: false });
    if (!response.destroyed && !response.writableFinished)
      await Promise.race([once(response, "finish"), once(response, "close")]);
  }

  #note(verdict: Noted["verdict"], reason: string, address: number | undefined): void {
    const at = address === undefined ? {} : { address: addressText(address) };
    this.#shared.note({ verdict, reason, host: this.host, ...at, port: httpsPort });
  }
}

/** Answers in the relay's own words. Later bytes of the guest on the connection are dropped. */
export function refuse(response: ServerResponse, status: number, reason: string): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const body = `${reason}\n`;
  response.writeHead(status, {
    ...{ "Content-Type": "text/plain; charset=utf-8", "Content-Length": Buffer.byteLength(body), Connection: "close" },
  });
  response.end(body);
}

/** The peer closes a connection whose answer is complete, or it is cut. */
function closeSoon(socket: TLSSocket): void {
  if (socket.destroyed) return;
  const timer = setTimeout(() => socket.destroy(), lingerMs);
  socket.once("close", () => clearTimeout(timer));
  socket.resume().end();
}

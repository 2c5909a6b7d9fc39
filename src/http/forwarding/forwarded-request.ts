/**
 * One attempt to pass a request on to another host: its head and body, the answer, or the upgraded connection. Nothing is kept, and both
 * directions go at the pace of their reader. The body is sent once the other host has said that it holds the capsule (102).
 */
import { type Agent, ClientRequest, type IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import { closeCodes } from "../../wire/errors.ts";
import type { ChunkTurns } from "../access/chunk-turns.ts";
import { sendContinue } from "../expect-continue.ts";
import { type Exchange, NotConnected } from "../forwarding.ts";
import { announcesBody } from "../json-body.ts";
import { sendHead, writeInformation, writeRequestHead } from "../node-internals.ts";
import { relayBytes } from "../ports/byte-relay.ts";
import { bodyOf, trailersOf } from "../ports/port-heads.ts";
import { splice } from "../ports/splice.ts";
import { readEarly, sendUpgradeBody, tooEarly } from "../ports/upgrade-body.ts";
import { exemptFromStallWatch } from "../slow-readers.ts";
import { encodeCaller } from "./caller-header.ts";
import { headersForHolder, headersOfAnswer } from "./heads.ts";
import { misdirectedHeader } from "./peer-requests.ts";
import { closeFrame, SocketFrames } from "./socket-frames.ts";

/** Status line and headers of an answer, which may be those of a server in a capsule. */
const answerHeadMaxBytes = 128 * 1024;
/** Time for a client to answer the close frame when this host stops. */
const stopMs = 1_000;
/** Provisional answers of one request, which a server in a capsule may send. */
const informationMax = 1_000;

/**
 * - `answered`: by the other host, whole or in part; a client whose answer broke off has lost its connection.
 * - `misdirected`: the other host does not hold the capsule.
 * - `unsent`: the other host cannot have carried the request out.
 * - `lost`: the other host may have.
 */
export type Outcome = "answered" | "misdirected" | "unsent" | "lost";

export interface AttemptOptions {
  agent: Agent;
  chunkTurns: ChunkTurns;
}

export class ForwardedRequest {
  readonly #exchange: Exchange;
  readonly #chunkTurns: ChunkTurns;
  readonly #message: ClientRequest;
  /** The body waits until the other host has said that it holds the capsule. */
  #waits: boolean;
  /** The 102 by which it says so has not come yet, and is not for the client. */
  #awaitsConsent: boolean;
  #hasSentBody = false;
  #hasAnswer = false;
  #informations = 0;
  #isOver = false;
  /** Gives the early bytes of a client that asks for an upgrade back to its socket. */
  #endEarly = () => {};
  /** The frames to the client of an upgraded WebSocket. */
  #frames: SocketFrames | undefined;
  readonly #ended = Promise.withResolvers<Outcome>();

  constructor(exchange: Exchange, { agent, chunkTurns }: AttemptOptions) {
    const { request, upgrade, body, caller } = exchange;
    this.#exchange = exchange;
    this.#chunkTurns = chunkTurns;
    this.#awaitsConsent = upgrade === undefined && (body !== undefined || announcesBody(request));
    this.#waits = this.#awaitsConsent && body === undefined;
    const message = new ClientRequest({
      ...{ agent, method: request.method ?? "GET", path: request.url ?? "/" },
      ...{ setHost: false, maxHeaderSize: answerHeadMaxBytes },
    });
    this.#message = message;
    message.maxHeadersCount = 0; // bounded by their size
    message.on("information", ({ statusCode, rawHeaders }) => this.#inform(statusCode, rawHeaders));
    message.once("response", (answer) => this.#answered(answer));
    message.once("upgrade", (answer, socket, first) => this.#upgraded(answer, socket as Socket, first));
    message.on("error", (error) => this.#failed(error));
    const headers = headersForHolder(request.rawHeaders, {
      ...{ caller: encodeCaller(caller), bodyBytes: body?.length },
    });
    try {
      writeRequestHead(message, headers);
    } catch (error) {
      message.destroy(); // it has taken a connection
      throw error;
    }
    this.#sendBody();
  }

  /** Resolves when the exchange is over. Rejects with "invalid_request" while the client has no byte of an answer. */
  async outcome(): Promise<Outcome> {
    const { response, upgrade } = this.#exchange;
    const gone = () => {
      if (!response.writableFinished) this.#message.destroy(new Error("the client hung up"));
    };
    const hungUp = () => this.#message.destroy(new Error("the client hung up"));
    response.once("close", gone);
    upgrade?.socket.once("end", hungUp);
    this.#message.once("upgrade", () => upgrade?.socket.off("end", hungUp));
    if (response.destroyed) gone();
    try {
      return await this.#ended.promise;
    } finally {
      response.off("close", gone);
      upgrade?.socket.off("end", hungUp);
      this.#isOver = true;
      this.#giveBack();
    }
  }

  #giveBack(): void {
    this.#endEarly();
    this.#endEarly = () => {};
  }

  /** The other host is gone: an answer that has begun breaks off. */
  giveUp(): void {
    this.#message.destroy(new Error("the other host does not answer"));
    if (this.#hasAnswer) this.#cut();
  }

  stop(): void {
    const frames = this.#frames;
    if (frames === undefined) {
      this.giveUp();
      return;
    }
    const frame = frames.close(closeFrame(closeCodes.stopping, "the server is stopping"));
    if (frame.length > 0) this.#exchange.upgrade?.socket.write(frame);
    setTimeout(() => this.giveUp(), stopMs).unref();
  }

  #sendBody(): void {
    const { upgrade, body } = this.#exchange;
    const message = this.#message;
    if (upgrade !== undefined) message.once("socket", () => this.#sendUpgrade(upgrade));
    else if (body !== undefined) message.end(body);
    else if (!this.#waits) message.end();
  }

  /** Nothing is read of a client whose request may have to be sent again. */
  #sendUpgrade(upgrade: NonNullable<Exchange["upgrade"]>): void {
    const { socket, first } = upgrade;
    const { request } = this.#exchange;
    upgrade.first = Buffer.alloc(0); // it is in the socket from now on
    const bytes = announcesBody(request) ? Number(request.headers["content-length"]) : 0;
    const onBytes = () => {
      this.#hasSentBody = true;
    };
    const onEnd = () => {
      if (!this.#isOver) this.#endEarly = readEarly(socket, () => this.#tooEarly());
    };
    sendUpgradeBody(socket, first, { bytes, onBytes, onEnd }, this.#message);
  }

  /** A client of a WebSocket waits: its messages are read when it is open. One of a port is refused, as its holder does. */
  #tooEarly(): void {
    if (this.#exchange.isWebSocket === true) return;
    this.#isOver = true;
    this.#ended.reject(tooEarly());
    this.#message.destroy();
  }

  /** Reads the client's body from now on. */
  #relayBody(): void {
    const { request, response } = this.#exchange;
    const message = this.#message;
    const onEnd = () => {
      if (message.destroyed || message.writableEnded) return;
      if (bodyOf(request.rawHeaders) === "chunked" && request.rawTrailers.length > 0)
        message.addTrailers(trailersOf(request.rawTrailers));
      message.end();
    };
    const onBytes = () => {
      this.#hasSentBody = true;
    };
    const stop = relayBytes(request, message, { ...this.#pace(), onBytes, onEnd });
    response.once("finish", stop);
    message.once("close", stop);
  }

  #pace() {
    const { team: teamId, response: client } = this.#exchange;
    return { teamId, turns: this.#chunkTurns, client };
  }

  #inform(status: number, headers: string[]): void {
    const { request, response } = this.#exchange;
    if (++this.#informations > informationMax) {
      this.#message.destroy(new Error("too many provisional answers"));
    } else if (status === 102 && this.#awaitsConsent) {
      this.#awaitsConsent = false;
      if (!this.#waits) return;
      this.#waits = false;
      this.#relayBody();
    } else if (status === 100) sendContinue(request);
    else if (request.httpVersion === "1.1" && !response.headersSent) writeInformation(response, status, headers);
  }

  #failed(error: Error): void {
    if (this.#hasAnswer) this.#cut();
    else this.#end(error instanceof NotConnected || this.#waits ? "unsent" : "lost");
  }

  #end(outcome: Outcome): void {
    this.#ended.resolve(outcome);
    if (!this.#message.writableFinished) this.#message.destroy();
  }

  #cut(): void {
    this.#exchange.response.destroy();
    this.#exchange.upgrade?.socket.destroy();
    this.#end("answered");
  }

  #answered(answer: IncomingMessage): void {
    const { request, response, caller } = this.#exchange;
    if (answer.statusCode === 421 && answer.headers[misdirectedHeader] === caller.requestId) {
      answer.resume();
      this.#end(this.#hasSentBody ? "lost" : "misdirected");
      return;
    }
    this.#hasAnswer = true;
    if (response.destroyed) {
      this.#cut();
      return;
    }
    this.#exchange.onAnswer();
    const isChunked = bodyOf(answer.rawHeaders) === "chunked";
    const headers = headersOfAnswer(answer.rawHeaders, { isChunked: isChunked && request.httpVersion === "1.1" });
    response.sendDate = false;
    if (answer.headers.connection === undefined) response.removeHeader("connection"); // Node would add one
    response.writeHead(answer.statusCode as number, answer.statusMessage, headers);
    if (isChunked) sendHead(response); // its first bytes may follow late
    this.#relayAnswer(answer);
  }

  #relayAnswer(answer: IncomingMessage): void {
    const { response } = this.#exchange;
    response.once("close", () => this.#end("answered"));
    answer.on("error", () => this.#cut());
    answer.once("close", () => {
      if (!answer.complete) this.#cut();
    });
    relayBytes(answer, response, {
      ...this.#pace(),
      onBytes: () => {},
      onEnd: () => {
        if (response.chunkedEncoding && answer.rawTrailers.length > 0)
          response.addTrailers(trailersOf(answer.rawTrailers));
        response.end();
      },
    });
  }

  #upgraded(answer: IncomingMessage, holder: Socket, first: Buffer): void {
    const { response, upgrade, team: teamId } = this.#exchange;
    const socket = upgrade?.socket;
    this.#hasAnswer = true;
    this.#isOver = true;
    if (socket === undefined || !socket.readable || !socket.writable) {
      holder.destroy();
      this.#cut();
      return;
    }
    this.#exchange.onAnswer();
    this.#giveBack();
    response.detachSocket(socket);
    exemptFromStallWatch(socket);
    holder.setTimeout(0);
    let head = `HTTP/1.1 101 ${answer.statusMessage ?? ""}\r\n`;
    for (let at = 0; at + 1 < answer.rawHeaders.length; at += 2)
      head += `${answer.rawHeaders[at]}: ${answer.rawHeaders[at + 1]}\r\n`;
    socket.write(`${head}\r\n`, "latin1");
    const frames = this.#exchange.isWebSocket === true ? new SocketFrames() : undefined;
    this.#frames = frames;
    const toClient = frames === undefined ? undefined : (chunk: Buffer) => frames.pass(chunk);
    if (first.length > 0) socket.write(toClient === undefined ? first : toClient(first));
    void splice({
      ...{ client: socket, guest: holder, teamId, turns: this.#chunkTurns, toClient },
      ...{ onBytes: () => {}, onActivity: () => {} },
    }).then(() => this.#ended.resolve("answered"));
  }
}

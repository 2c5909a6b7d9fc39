/**
 * From an upgrade request to a line. The request goes the same road as any other (gate, schemas, errors), so that
 * every refusal is an HTTP answer in JSON; only a route that decides to accept turns it into a WebSocket.
 */
import { type IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { FastifyReply, FastifyRequest } from "fastify";
import { type WebSocket, WebSocketServer } from "ws";
import { closeCodes } from "../../wire/close-codes.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Limits } from "../../wire/limits.ts";
import { describeError } from "../log.ts";
import type { App } from "../route.ts";
import type { Services } from "../services.ts";
import { isAnswering, release } from "../slow-readers.ts";
import { Connection, type ErrorMark } from "./connection.ts";

/** How long clients may take to answer a close frame when the server stops. */
const stopMs = 1_000;

export class Sockets {
  readonly #services: Pick<Services, "capsules" | "teams">;
  readonly #limits: Limits;
  readonly #server: WebSocketServer;
  readonly #upgrades = new WeakMap<IncomingMessage, { socket: Socket; head: Buffer }>();
  readonly #lines = new Map<Connection, { teamId: string; capsuleId: string }>();

  constructor(services: Pick<Services, "capsules" | "teams">, limits: Limits) {
    this.#services = services;
    this.#limits = limits;
    this.#server = new WebSocketServer({
      noServer: true,
      clientTracking: true,
      perMessageDeflate: false,
      maxPayload: limits.socket_message_max_bytes,
    });
  }

  attachTo(app: App): void {
    app.server.on("upgrade", (request: IncomingMessage, socket: Socket, head: Buffer) => {
      try {
        this.#route(app, request, socket, head);
      } catch (error) {
        // An event's listener has nobody above it: what it throws would end the process.
        socket.destroy();
        app.log.error({ error: describeError(error as Error) }, "an upgrade request could not be served");
      }
    });
    app.addHook("preClose", (done) => this.#stop(done));
  }

  #route(app: App, request: IncomingMessage, socket: Socket, head: Buffer): void {
    socket.on("error", () => socket.destroy());
    if (isAnswering(socket)) {
      socket.destroy();
      return;
    }
    const response = new ServerResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket);
    response.once("finish", () => socket.destroySoon());
    this.#upgrades.set(request, { socket, head });
    app.routing(request, response);
  }

  /** Throws what an HTTP answer can say: not an upgrade, malformed, too many. */
  check({ raw, identity, params }: FastifyRequest): void {
    if (!this.#upgrades.has(raw))
      throw new CapsuleError("invalid_request", "this is a WebSocket endpoint; ask for an upgrade");
    const { "sec-websocket-key": key, "sec-websocket-version": version } = raw.headers;
    if (key === undefined || !/^[+/0-9A-Za-z]{22}==$/.test(key) || version !== "13") {
      throw new CapsuleError("invalid_request", "the WebSocket handshake is malformed or of another version than 13");
    }
    this.#requireRoom(identity.teamId, (params as { id: string }).id);
  }

  /** Call `check` first. Answers 101; from then on the client hears of errors in messages. */
  accept(request: FastifyRequest, reply: FastifyReply, capsuleId: string, mark: ErrorMark): Connection {
    const { raw, identity, log } = request;
    this.#requireRoom(identity.teamId, capsuleId); // others may have come in since the check
    const { socket, head } = this.#upgrades.get(raw)!;
    delete raw.headers["sec-websocket-protocol"]; // we speak none
    reply.hijack();
    reply.raw.detachSocket(socket);
    let accepted: WebSocket | undefined;
    this.#server.handleUpgrade(raw, socket, head, (webSocket) => {
      accepted = webSocket;
    });
    if (accepted === undefined) throw new Error("the client hung up before its WebSocket was accepted");
    release(socket);
    const line = new Connection(accepted, mark, log);
    const { capsules, teams } = this.#services;
    const listening = [
      capsules.onEnd(capsuleId, (end) => line.runEnded(end)),
      teams.onRevoked(identity.keyId, () => line.fail("the API key is no longer valid", closeCodes.revoked)),
    ];
    const path = request.url.split("?", 1)[0];
    const began = performance.now();
    this.#lines.set(line, { teamId: identity.teamId, capsuleId });
    log.info({ path, team: identity.team, key: identity.keyId }, "socket opened");
    accepted.once("close", (code: number) => {
      this.#lines.delete(line);
      for (const stopListening of listening) stopListening();
      log.info({ path, code, durationMs: Math.round(performance.now() - began) }, "socket closed");
    });
    return line;
  }

  /** How many the team has open. */
  openOf(teamId: string): number {
    return [...this.#lines.values()].filter((line) => line.teamId === teamId).length;
  }

  #requireRoom(teamId: string, capsuleId: string): void {
    const ofTeam = this.openOf(teamId);
    if (ofTeam >= this.#limits.sockets_max) {
      throw new CapsuleError("quota_exceeded", `the team has ${ofTeam} WebSockets open, as many as it may`);
    }
    const ofCapsule = [...this.#lines.values()].filter((line) => line.capsuleId === capsuleId).length;
    if (ofCapsule >= this.#limits.sockets_per_capsule_max) {
      throw new CapsuleError(
        "quota_exceeded",
        `capsule ${capsuleId} has ${ofCapsule} WebSockets open, as many as it may`,
      );
    }
  }

  #stop(done: () => void): void {
    for (const line of this.#lines.keys()) line.close(closeCodes.stopping, "the server is stopping");
    setTimeout(() => {
      for (const client of this.#server.clients) client.terminate();
    }, stopMs).unref();
    done();
  }
}

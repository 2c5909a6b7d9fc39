/**
 * Turns upgrade requests into WebSocket connections. An upgrade request passes the router, the gate and the schemas like
 * any other, so that every refusal is an HTTP response in JSON; only `accept`, called by the route, upgrades it.
 */
import { type IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { FastifyReply, FastifyRequest } from "fastify";
import Type, { type TSchema } from "typebox";
import { type WebSocket, WebSocketServer } from "ws";
import { CapsuleError, closeCodes } from "../../wire/errors.ts";
import type { Limits } from "../../wire/limits.ts";
import { MessageTurns } from "../access/message-turns.ts";
import type { ReceiveBudget } from "../access/receive-budget.ts";
import type { TeamTurns } from "../access/team-turns.ts";
import { upgraded } from "../client-gone.ts";
import { describeError } from "../log.ts";
import { pendingResponse } from "../node-internals.ts";
import type { Upgrades } from "../pass-on.ts";
import type { PortProxy } from "../ports/port-proxy.ts";
import type { Upgrade } from "../ports/port-visit.ts";
import type { App } from "../route.ts";
import type { Services } from "../services.ts";
import { exemptFromStallWatch } from "../slow-readers.ts";
import { Connection, type ErrorMark } from "./connection.ts";
import { paceFrames } from "./paced-frames.ts";
import { fragmentsMax } from "./unfinished.ts";

/** The reason, in `details`, where only an upgrade is missing. */
const upgradeRequired = "upgrade_required";

/** Time for clients to answer the close frame when the server stops. */
const stopMs = 1_000;

/** The schema of a WebSocket's messages, as an extension of OpenAPI. */
export function socketMessages(client: TSchema | undefined, server: TSchema) {
  return {
    "x-websocket": { ...(client === undefined ? {} : { client }), server },
    response: { 101: Type.Null() },
  };
}

interface SocketBounds {
  upgrades: Upgrades;
  turns: TeamTurns;
  received: ReceiveBudget;
  /** Called with the close code of each. */
  onClosed: (code: number) => void;
}

export class Sockets {
  readonly #services: Pick<Services, "capsules" | "teams">;
  readonly #limits: Limits;
  readonly #turns: TeamTurns;
  readonly #received: ReceiveBudget;
  readonly #onClosed: SocketBounds["onClosed"];
  readonly #messageTurns = new MessageTurns();
  readonly #server: WebSocketServer;
  readonly #upgrades: Upgrades;
  readonly #connections = new Map<Connection, { teamId: string; capsuleId: string }>();

  constructor(
    services: Pick<Services, "capsules" | "teams">,
    limits: Limits,
    { turns, received, upgrades, onClosed }: SocketBounds,
  ) {
    this.#services = services;
    this.#limits = limits;
    this.#turns = turns;
    this.#received = received;
    this.#onClosed = onClosed;
    this.#upgrades = upgrades;
    this.#server = new WebSocketServer({
      noServer: true,
      clientTracking: true,
      perMessageDeflate: false,
      // One message or ping of a client in a turn of the event loop: 64 KiB hold some 9,000.
      allowSynchronousEvents: false,
      maxFragments: fragmentsMax,
      maxPayload: limits.socket_message_max_bytes,
    });
  }

  /** `ports`: which has the upgrades of ports' URLs. */
  attachTo(app: App, ports: Pick<PortProxy, "serve">): void {
    app.server.on("upgrade", (request: IncomingMessage, socket: Socket, head: Buffer) => {
      socket.on("error", () => socket.destroy());
      this.#route(app, ports, request, { socket, first: head });
    });
    app.addHook("preClose", (done) => this.#stop(done));
  }

  #route(app: App, ports: Pick<PortProxy, "serve">, request: IncomingMessage, upgrade: Upgrade): void {
    try {
      const { socket } = upgrade;
      const pending = pendingResponse(socket);
      // Its client may have the whole answer, though Node has not heard yet that it was written.
      if (pending?.writableEnded === true) pending.once("close", () => this.#route(app, ports, request, upgrade));
      else if (pending !== undefined || socket.destroyed)
        socket.destroy(); // pipelined behind another request
      else this.#serve(app, ports, request, upgrade);
    } catch (error) {
      // An error thrown by an event listener would end the process.
      upgrade.socket.destroy();
      app.log.error({ error: describeError(error as Error) }, "an upgrade request could not be served");
    }
  }

  #serve(app: App, ports: Pick<PortProxy, "serve">, request: IncomingMessage, { socket, first }: Upgrade): void {
    socket.setTimeout(0); // that of an idle connection
    const response = new ServerResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket);
    response.once("finish", () => socket.destroySoon());
    if (ports.serve(request, response, { socket, first })) return;
    this.#upgrades.set(request, { socket, first });
    app.routing(request, response);
  }

  /** Throws the errors that can still be an HTTP response: not an upgrade, malformed, too many. */
  check({ raw, identity, params }: FastifyRequest): void {
    if (!this.#upgrades.has(raw))
      throw new CapsuleError("invalid_request", "this is a WebSocket endpoint; ask for an upgrade", {
        details: { reason: upgradeRequired },
      });
    const { "sec-websocket-key": key, "sec-websocket-version": version } = raw.headers;
    if (key === undefined || !/^[+/0-9A-Za-z]{22}==$/.test(key) || version !== "13") {
      throw new CapsuleError("invalid_request", "the WebSocket handshake is malformed or of another version than 13");
    }
    this.#requireQuota(identity.teamId, (params as { id: string }).id);
  }

  /** Call `check` first. Answers with status 101; errors after that are messages. */
  accept(request: FastifyRequest, reply: FastifyReply, capsuleId: string, mark: ErrorMark): Connection {
    const { raw, identity, log } = request;
    this.#requireQuota(identity.teamId, capsuleId); // again: other sockets may have opened since the check
    const { socket, first } = this.#upgrades.get(raw)!;
    // Before the hijack, after which an error would be logged as the server's own.
    if (!socket.readable || !socket.writable) throw new CapsuleError("invalid_request", "the client has hung up");
    delete raw.headers["sec-websocket-protocol"]; // no subprotocol is supported
    reply.hijack();
    reply.raw.detachSocket(socket);
    let accepted: WebSocket | undefined;
    this.#server.handleUpgrade(raw, socket, first, (webSocket) => {
      accepted = webSocket;
    });
    if (accepted === undefined) throw new Error("the WebSocket was not accepted");
    reply.raw.emit(upgraded);
    exemptFromStallWatch(socket);
    const { capsules, teams } = this.#services;
    const { teamId } = identity;
    const connection = new Connection({
      ...{ socket: accepted, transport: socket, mark, log, teamId, turns: this.#turns },
      messageTurns: this.#messageTurns,
      charge: this.#received.open(teamId),
    });
    paceFrames(accepted, (units, next) => this.#messageTurns.enter(teamId, units, undefined, next));
    socket.on("data", () => connection.weigh()); // behind the listener of ws
    const unsubscribes = [
      capsules.onEnd(capsuleId, (end) => connection.runEnded(end)),
      teams.onRevoked(identity.keyId, () => connection.fail("the API key is no longer valid", closeCodes.revoked)),
    ];
    const path = request.url.split("?", 1)[0];
    const openedAt = performance.now();
    this.#connections.set(connection, { teamId: identity.teamId, capsuleId });
    log.info({ path, team: identity.team, key: identity.keyId }, "socket opened");
    accepted.once("close", (code: number) => {
      this.#connections.delete(connection);
      this.#onClosed(code);
      for (const unsubscribe of unsubscribes) unsubscribe();
      log.info({ path, code, durationMs: Math.round(performance.now() - openedAt) }, "socket closed");
    });
    return connection;
  }

  /** Open sockets of the team. */
  countOf(teamId: string): number {
    return [...this.#connections.values()].filter((each) => each.teamId === teamId).length;
  }

  #requireQuota(teamId: string, capsuleId: string): void {
    const ofTeam = this.countOf(teamId);
    if (ofTeam >= this.#limits.sockets_max) {
      throw new CapsuleError("quota_exceeded", `the team has ${ofTeam} WebSockets open, as many as it may`);
    }
    const ofCapsule = [...this.#connections.values()].filter((each) => each.capsuleId === capsuleId).length;
    if (ofCapsule >= this.#limits.sockets_per_capsule_max) {
      throw new CapsuleError(
        "quota_exceeded",
        `capsule ${capsuleId} has ${ofCapsule} WebSockets open, as many as it may`,
      );
    }
  }

  #stop(done: () => void): void {
    for (const connection of this.#connections.keys()) connection.close(closeCodes.stopping, "the server is stopping");
    setTimeout(() => {
      for (const client of this.#server.clients) client.terminate();
    }, stopMs).unref();
    done();
  }
}

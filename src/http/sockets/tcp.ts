/** Raw TCP to a port of a capsule, as a WebSocket. */
import { SocketQuery } from "../../wire/credentials.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { PortParams, TcpMessage } from "../../wire/port.ts";
import { addAuditDetails, recordStart } from "../audit-trail.ts";
import { guestReplyMs, requestSignal } from "../client-gone.ts";
import { dialled } from "../dialled.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { TcpRelay } from "./tcp-relay.ts";
import { socketMessages } from "./upgrades.ts";

export const tcpSocketSection: Section = { chapter: "Ports", register };

function register(app: App, { services: { capsules, audit }, ports, sockets, chunkTurns }: RouteContext): void {
  app.get(
    "/capsules/:id/ports/:port/tcp",
    {
      config: {
        action: "ports",
        audit: { action: "port.connect" },
        socket: true,
        refuses: ["quota_exceeded", "agent_error", "conflict", "port_closed"],
      },
      exposeHeadRoute: false,
      schema: {
        operationId: "connectPort",
        summary: "Connect to a TCP port of the capsule (WebSocket)",
        description:
          "One connection, to 127.0.0.1, ::1 or eth0's address inside, the first that accepts. It closes with 1000 when both directions " +
          "have ended, with 1011 after a reset. A server that accepts nobody is 502 before the socket opens, and `details.ports` says " +
          "which ports are listened on.",
        params: PortParams,
        querystring: SocketQuery,
        ...socketMessages(TcpMessage, TcpMessage),
      },
    },
    async (request, reply) => {
      const { identity, params } = request;
      addAuditDetails(request, { subject: params.port });
      using _place = ports.take(identity.teamId, params.id);
      await capsules.use(identity.teamId, params.id, "ports", async (agent) => {
        const signal = requestSignal(reply, guestReplyMs);
        const guest = await dialled(agent, Number(params.port), signal);
        try {
          if (signal.aborted) throw signal.reason;
          // Only now, so that a request without an upgrade, which a client repeats to learn why it was refused, learns that.
          sockets.check(request);
          if (guest.destroyed)
            throw new CapsuleError("agent_error", `the server on port ${params.port} reset the connection`);
          const connection = sockets.accept(request, reply, params.id, { silent: true });
          recordStart(audit, request, params.port);
          const enterTurn = (bytes: number) => chunkTurns.enter(identity.teamId, bytes, request.raw.socket);
          const onActivity = () => noteActivity(identity.teamId, params.id);
          connection.handle(new TcpRelay({ connection, guest, enterTurn, onActivity }));
          await connection.closed;
        } finally {
          guest.destroy();
        }
      });
    },
  );

  function noteActivity(teamId: string, id: string): void {
    try {
      capsules.ping(teamId, id);
    } catch {
      // It is being paused or destroyed, which ends the connection.
    }
  }
}

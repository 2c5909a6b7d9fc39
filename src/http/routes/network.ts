/** The network of a capsule, and links to its ports. */
import Type from "typebox";
import type { NetworkView } from "../../capsules/networks.ts";
import { signPortToken } from "../../network/port-tokens.ts";
import {
  type Network,
  NetworkBody,
  NetworkState,
  PortUrl,
  PortUrlBody,
  portUrlDefaultSec,
} from "../../wire/network.ts";
import { PortParams } from "../../wire/port.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { addAuditDetails } from "../audit-trail.ts";
import { networkBody } from "../capsule-bodies.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { timestamp } from "../timestamps.ts";

export const networkSection: Section = { chapter: "Ports", register };

function register(app: App, context: RouteContext): void {
  networkRoutes(app, context);
  linkRoutes(app, context);
}

/** In the order of an audit entry. */
const settable: (keyof Network)[] = ["egress", "allow", "deny", "public_ports", "host_header", "inject"];

function networkRoutes(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.get(
    "/capsules/:id/network",
    {
      config: { action: "read" },
      schema: {
        operationId: "getNetwork",
        summary: "Get a capsule's network: what was asked for, and what holds",
        params: CapsuleParams,
        response: { 200: NetworkState },
      },
    },
    async ({ identity, params }) => stateOf(await capsules.networks.view(identity.teamId, params.id)),
  );

  app.put(
    "/capsules/:id/network",
    {
      config: {
        action: "update",
        audit: { action: "network.update", durable: true },
        refuses: ["forbidden"],
      },
      schema: {
        operationId: "setNetwork",
        summary: "Replace a capsule's network",
        description:
          "In every status. A field that is left out gets its default. On a running capsule the answer comes when new connections obey it " +
          "and those that it forbids are reset; on another one it holds from its next start or resume on.",
        example: { public_ports: [8_000], host_header: "localhost:{port}" },
        params: CapsuleParams,
        body: NetworkBody(limits),
        response: { 200: NetworkState },
      },
    },
    async (request) => {
      const { identity, params } = request;
      const { teamId } = identity;
      const body: unknown = request.body ?? {};
      const given = settable.filter((field) => Object.hasOwn(Object(body), field));
      addAuditDetails(request, { subject: given.join(", ") });
      capsules.networks.policy(teamId, params.id); // one that cannot be read comes before a flaw of the new one
      await capsules.update(teamId, params.id, capsules.networks.parse(body, limits, params.id));
      await capsules.networks.applied(params.id);
      return stateOf(await capsules.networks.view(teamId, params.id));
    },
  );
}

function stateOf(view: NetworkView): NetworkState {
  const { policy, effective, counters, connectionsOpen, recent, isUnsupported } = view;
  return {
    ...networkBody(policy),
    effective,
    counters: {
      connections_open: connectionsOpen,
      connections_total: counters.connections,
      denied_total: counters.denied,
      bytes_out: counters.bytesOut,
      bytes_in: counters.bytesIn,
    },
    recent,
    unsupported: isUnsupported,
  };
}

function linkRoutes(app: App, { services: { capsules, teams }, bodies, limits }: RouteContext): void {
  app.post(
    "/capsules/:id/ports/:port/url",
    {
      config: {
        action: "read",
        audit: { action: "port.url" },
        headers: ["Cache-Control"],
      },
      schema: {
        operationId: "createPortUrl",
        summary: "Make a link that opens one port without a key",
        description: "In every status; it resumes no capsule.",
        example: { expires_sec: 86_400 },
        params: PortParams,
        body: PortUrlBody(limits),
        response: { 200: PortUrl },
      },
    },
    async (request, reply) => {
      const { identity, params, body } = request;
      addAuditDetails(request, { subject: params.port });
      const [id, port] = [params.id, Number(params.port)];
      const seconds = body.expires_sec ?? Math.min(portUrlDefaultSec, limits.port_token_max_sec);
      const expiresAt = Math.floor(teams.now()) + seconds * 1_000;
      const token = signPortToken(capsules.networks.secret(identity.teamId, id), { id, port, expiresAt });
      const url = `${bodies.portUrl(id).replace("{port}", params.port)}/?capsule_token=${token}`;
      return reply.header("cache-control", "no-store").send({ url, token, expires_at: timestamp(expiresAt) });
    },
  );

  app.delete(
    "/capsules/:id/ports/tokens",
    {
      config: { action: "update", audit: { action: "port.revoke", durable: true } },
      schema: {
        operationId: "revokePortTokens",
        summary: "Revoke all tokens of a capsule's ports",
        description: "What they have opened is closed within a second.",
        params: CapsuleParams,
        response: { 204: Type.Null() },
      },
    },
    async ({ identity, params }, reply) => {
      capsules.networks.renewSecret(identity.teamId, params.id);
      return reply.code(204).send(null);
    },
  );
}
